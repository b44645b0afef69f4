//! Two hundred honest functions: each is built, and answers as it does anywhere else.

mod native;
mod sources;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use partywall_abi::function::{Completion, End};
use partywall_functions::builder::{BuildError, Built};
use partywall_functions::image::ImageError;
use partywall_functions::verify::VerifyError;
use partywall_testkit::{Random, is_full};

use super::host::{BUILDER, Host, OUT};
use sources::{Function, Request};

/// How many there are at least.
const FUNCTIONS: usize = 200;
/// How many of them are built without `--full`.
const QUICK: usize = 20;

/// No honest function is refused, whatever bytes its code has by chance, and all answer what the same source
/// answers as an ordinary program.
#[test]
fn honest_functions_are_all_built_and_answer_as_elsewhere() {
    let all = sources::all();
    assert!(all.len() >= FUNCTIONS, "{} functions", all.len());
    let names: BTreeMap<_, _> = all.iter().map(|f| (&f.name, &f.files)).collect();
    assert_eq!(names.len(), all.len(), "two functions have one name");
    let mut picked: Vec<&Function> = all.iter().collect();
    if !is_full() {
        Random::of_this_run().shuffle(&mut picked);
        picked.truncate(QUICK);
    }
    let built = built(&picked);
    let mut host = Host::new();
    let plain: Vec<_> = picked.iter().copied().filter(|f| !f.needs_runtime).collect();
    let mut elsewhere = native::answers(&plain).into_iter();
    let mut compared = 0;
    for (function, built) in picked.iter().zip(&built) {
        let loaded = host.load(&built.image);
        let known = if function.needs_runtime { None } else { elsewhere.next() };
        for (number, request) in function.requests.iter().enumerate() {
            let answer = answer(&mut host, &loaded, request);
            let name = &function.name;
            if let Some(reply) = &request.reply {
                let texts = [&answer.1, reply].map(|b| String::from_utf8_lossy(b).into_owned());
                assert_eq!((answer.0, &texts[0]), (0, &texts[1]), "{name}");
                compared += 1;
            }
            if let Some(known) = &known {
                let (kind, bytes) = &known[number];
                let texts = [&answer.1, bytes].map(|b| String::from_utf8_lossy(b).into_owned());
                assert_eq!((answer.0, &texts[0]), (*kind, &texts[1]), "{name}, request {number}");
                compared += 1;
            }
        }
        host.store.take(&loaded).unwrap();
    }
    report(&picked, &built);
    println!("{compared} replies compared");
    assert!(compared >= picked.len(), "{compared} replies compared");
}

/// Builds all, on two threads.
fn built(picked: &[&Function]) -> Vec<Built> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(function) = picked.get(at) else { return };
            let built = BUILDER.build(&function.files);
            done.lock().unwrap_or_else(PoisonError::into_inner).insert(at, built);
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    let done = done.into_inner().unwrap();
    let (mut all, mut faults) = (Vec::new(), Vec::new());
    for (function, built) in picked.iter().zip(done.into_values()) {
        match built {
            Ok(built) => all.push(built),
            Err(why @ BuildError::Forbidden(_)) => faults.push(format!("{}: {why}", function.name)),
            Err(why) => faults.push(format!("{} is no function: {why}", function.name)),
        }
    }
    assert!(faults.is_empty(), "{} are refused:\n{}", faults.len(), faults.join("\n"));
    all
}

/// What a function answers: a kind as in [`native`], and bytes.
fn answer(
    host: &mut Host,
    loaded: &partywall_functions::store::Loaded,
    request: &Request,
) -> (u32, Vec<u8>) {
    // A cell that may wait, and has room enough.
    host.cell = 1;
    let mut done = host.call(loaded, &request.bytes);
    while done.end == End::Calls {
        let said = host.link.read(OUT, (done.bytes + done.log + done.lost) as usize);
        let (names, body) = said.split_at((done.bytes + done.log) as usize);
        let reply = [names, b":", body].concat();
        host.resume(host.cell, 0, &reply);
        done = host.wait();
    }
    let bytes = bytes(host, &done);
    host.link.clean(host.cell).unwrap();
    match done.end {
        End::Reply => (0, bytes),
        End::Error => (done.code.into(), bytes),
        End::Panic => (native::PANIC, Vec::new()),
        other => panic!("{other:?}: {done:?}"),
    }
}

fn bytes(host: &Host, done: &Completion) -> Vec<u8> {
    match done.short {
        Some(short) => short.bytes()[..done.bytes as usize].to_vec(),
        None => host.link.read(OUT, done.bytes as usize),
    }
}

/// How many tries there were, how long the code is, and what was found in it.
fn report(picked: &[&Function], built: &[Built]) {
    let (mut tries, mut sizes) = (BTreeMap::<_, u32>::new(), BTreeMap::<_, u32>::new());
    let mut found = BTreeMap::<String, u32>::new();
    for (function, built) in picked.iter().zip(built) {
        *tries.entry(built.tries).or_default() += 1;
        *sizes.entry(built.image.code.len().next_power_of_two() / 1024).or_default() += 1;
        for why in &built.refused {
            let VerifyError::Image { why: ImageError::Forbidden { instruction, .. }, .. } = why
            else {
                panic!("{why}")
            };
            *found.entry(instruction.to_string()).or_default() += 1;
            println!("{}: {why}", function.name);
        }
    }
    println!("{} functions built", built.len());
    println!("tries: {tries:?}");
    println!("KiB of code, at most: {sizes:?}");
    println!("bytes found: {found:?}");
}
