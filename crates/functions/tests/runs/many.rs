//! Hundreds of thousands of functions that are registered, of which few are loaded.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use partywall_functions::dispatcher::{Outcome, Registration, Share};
use partywall_testkit::{Random, in_own_process, trials};

use super::host::signed;
use super::rig::Rig;

/// Answers with its parameter.
const TELLS: &str = "pub fn handle(r: Request<'_>) -> Reply {\n\
    Ok(r.parameter(\"n\").unwrap_or_default().to_vec()) }";

/// The most memory for a function that is registered, with its name, in bytes.
const EACH: usize = 1024;

/// All of them are found by their names and answer as themselves, and none takes more memory than it should.
#[test]
fn three_hundred_thousand_functions_are_found_and_called() {
    let this = "three_hundred_thousand_functions_are_found_and_called";
    if let Some(said) = in_own_process(module_path!(), this, &[]) {
        said.lines()
            .filter(|line| line.contains(" functions: "))
            .for_each(|line| println!("{line}"));
        return;
    }
    let count = trials(300_000);
    let mut rig = Rig::with(1, |workers| workers.resident = 4 << 20);
    let image = Arc::new(signed(TELLS));
    let before = private_bytes();
    let begun = Instant::now();
    let mut names = HashMap::new();
    for number in 0..count {
        let registration = Registration {
            owner: rig.owner,
            image: image.clone(),
            parameters: parameters(number as u64),
            budget: Duration::from_secs(2),
            idempotent: false,
            share: Share::All,
            strikes: 1000,
        };
        names.insert(name(number), rig.dispatcher.register(registration).unwrap());
    }
    let registered = begun.elapsed() / count as u32;
    let bytes = private_bytes().saturating_sub(before) / count;
    let mut random = Random::of_this_run();
    let asked: Vec<_> = (0..10_000).map(|_| random.below(count)).collect();
    let mut found = Vec::new();
    let mut ids = Vec::new();
    for number in &asked {
        let name = name(*number);
        let begun = Instant::now();
        ids.push(names[&name]);
        found.push(begun.elapsed());
    }
    let mut called = Vec::new();
    for (id, number) in ids.into_iter().zip(asked) {
        let begun = Instant::now();
        let outcome = rig.outcome(id, b"");
        called.push(begun.elapsed());
        assert_eq!(outcome, Outcome::Reply((number as u64).to_le_bytes().to_vec()));
    }
    let (loaded, resident) = rig.dispatcher.resident();
    assert!(resident <= 4 << 20 && loaded <= 1024, "{loaded} {resident}");
    found.sort_unstable();
    called.sort_unstable();
    println!(
        "{count} functions: {bytes} bytes each, registered in {registered:?}, found in {:?} and {:?}, called in \
         {:?} and {:?} (p50, p99), {loaded} loaded",
        found[5_000], found[9_900], called[5_000], called[9_900],
    );
    assert!(bytes <= EACH, "{bytes} bytes for each function");
}

fn name(number: usize) -> String {
    format!("function-{number}")
}

/// A block of parameters with one of them.
fn parameters(number: u64) -> Vec<u8> {
    let lengths = [1_u32, 8].map(u32::to_le_bytes);
    [&lengths[0][..], &lengths[1], b"n", &number.to_le_bytes()].concat()
}

/// The memory of this process that no file has.
fn private_bytes() -> usize {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss_Anon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}
