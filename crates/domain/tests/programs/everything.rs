//! What a Rust program may do, done as a domain: ends with 0, or panics.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::Read;
use std::process::{Command, Stdio};

thread_local!(static MINE: Cell<u64> = const { Cell::new(1) });

fn main() {
    let work = |seed: u64| {
        MINE.set(MINE.get() + seed);
        let mut map = HashMap::new();
        for n in 0..50_000_u64 {
            map.insert(n.wrapping_mul(seed | 1), format!("{n}"));
        }
        assert_eq!(map.len(), 50_000);
        assert_eq!(MINE.get(), 1 + seed);
        map.values().map(String::len).sum::<usize>()
    };
    let threads: Vec<_> = (1..5).map(|n| std::thread::spawn(move || work(n))).collect();
    let sums: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    assert!(sums.windows(2).all(|pair| pair[0] == pair[1]));
    std::panic::set_hook(Box::new(|_| {}));
    assert!(std::panic::catch_unwind(|| panic!("caught")).is_err());
    let mut shell = Command::new("/bin/sh");
    let mut child = shell.args(["-c", "echo spoken; exit 3"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "spoken\n");
    assert_eq!(child.wait().unwrap().code(), Some(3));
    let directory = std::env::current_dir().unwrap();
    assert_eq!(directory.as_os_str(), "/");
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    println!("{}", arguments.join(" "));
}
