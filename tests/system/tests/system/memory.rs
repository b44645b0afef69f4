//! A process whose memory is short.

use std::time::{Duration, Instant};

use super::host::{Host, alone};

#[test]
fn a_link_without_memory_fails_alone() {
    let _alone = alone();
    let host = Host::new();
    let _server = host.server(&[]);
    let mut client = host.client(&["--mode", "cramped"]);
    let why = client.line();
    let (count, why) = why.split_once(" links: ").unwrap();
    let count: usize = count.parse().unwrap();
    assert!((2..20).contains(&count), "{count} links in 4 MiB");
    assert!(why.contains("mmap") && why.contains("Cannot allocate memory"), "{why}");
    client.ready();
    // Of the one that failed nothing is left in the books.
    let end = Instant::now() + Duration::from_secs(10);
    let open = || {
        let links = partywall::links(Some(&host.socket)).unwrap();
        links.iter().filter(|link| link.open).count()
    };
    while open() != count + 1 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(open(), count + 1);
}
