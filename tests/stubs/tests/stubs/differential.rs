//! Random calls come to the same on all ways.

use std::collections::BTreeMap;

use partywall::Server;
use partywall_stubs_tests::Settings;
use partywall_testkit::Random;

use super::random;
use super::ways::{Way, same};

/// Data that a record has room for, beside all else of a request.
const SHORT: usize = 56 << 10;

#[tokio::test]
async fn random_calls_come_to_the_same_on_each_way() {
    let settings = Settings::default();
    let mut ways = Way::all(&Server::builder(), settings, settings).await;
    ways.push(Way::blocking(&Server::builder(), settings, settings).await);
    let mut random = Random::new(7);
    let mut codes = BTreeMap::<i32, usize>::new();
    // Answers to short requests, and long requests whatever they come to.
    let (mut short, mut long) = (0, 0);
    for trial in 0..partywall_testkit::trials(20_000) {
        let asked = random::asked(&mut random);
        let outcome = same(&mut ways, &asked, trial).await;
        *codes.entry(outcome.code as i32).or_default() += 1;
        match asked.blob.len() < SHORT {
            true => short += u64::from(outcome.is_ok()),
            false => long += 1,
        }
    }
    assert!(codes.len() > 15, "{codes:?}");
    assert!(short > long && long > 20, "{short} short answers, {long} long requests");
    // Both ends of the native ways have seen nothing of HTTP but in the first call and in long requests.
    for way in &ways {
        let natives = way.natives;
        match way.name {
            "native" | "blocking" => assert!(natives >= short - 1, "{}: {natives}", way.name),
            _ => assert_eq!(natives, 0, "{}", way.name),
        }
    }
    // The service of the last way has its counts in the list of links.
    let blocking = ways.last().expect("a way");
    let (native, ordinary) = blocking.counted(blocking.natives).await;
    assert!(ordinary <= 1 + long, "{native} native calls, {ordinary} others, {long} long requests");
}
