//! The `functions` bench: thousands of small functions, called by a dispatcher on one core, run on another.
//!
//! It repeats the evaluation of "Putting the 'Micro' Back in Microservice" (Boucher and others, ATC'18): so
//! many distinct copies of a function that answers with a time stamp, called in turn and in random order.
//!
//! ```text
//! driver --task--> sample (the dispatcher, on the first core) --calls--> worker, or processes, on the second
//!        <-rows---        one fresh process for each contender and round
//! ```
//!
//! *One way* is the function's stamp less the dispatcher's just before it submits; the round trip ends with
//! the dispatcher's stamp when it has the answer. All stamps are of one clock: nanoseconds by the time stamp
//! counter, with the parameters of the page that functions read (`sys::clock::Stamps`). Each answer has the
//! number of the function that has given it, which is checked.
//!
//! | module | what it does |
//! |---|---|
//! | `cell` | what a row measures, and figures that only these rows have |
//! | `task` | what a sample is told, and what it tells |
//! | `run`, `sample` | rounds and processes; one contender in one round |
//! | `prepared` | programs and images, built once for a run |
//! | `load` | closed loops, open loops, each function once |
//! | `link`, `ring`, `floor`, `wasm`, `ours` | a ring from both ends, and what is behind it |
//! | `processes`, `udp`, `spawned` | processes that wait, and processes that are made for a call |
//! | `hashes`, `sha512`, `alarm` | throughput under a quantum |
//! | `signals`, `kills` | handlers' times; functions that are stopped, and those beside them |
//! | `held` | memory |
//!
//! `process-udp` and both `process-fork-exec` run a program that is linked as rustc does by default, all
//! other processes a static one without any library. Each is one file for all processes, so that they share
//! its pages; images of functions are on pages of their own. Both favour the processes.

mod alarm;
pub mod cell;
mod floor;
mod hashes;
mod held;
mod kills;
mod link;
mod load;
mod ours;
mod prepared;
mod processes;
mod ring;
pub mod run;
pub mod sample;
mod sha512;
mod signals;
mod spawned;
mod task;
mod udp;
#[cfg(feature = "opponents")]
mod wasm;

use std::process::ExitCode;

use crate::case::{Case, FUNCTIONS, Mode};
use crate::contender::{Contender, Kind};
use cell::{Cell, Measure, Order, Whose, Within};

/// Calls under way at once where throughput is measured.
pub const WINDOW: u32 = 64;
/// Loads of open loops, in per cent.
pub const LOADS: [u32; 5] = [10, 30, 50, 70, 90];
/// Quanta, in microseconds.
pub const QUANTA: [u32; 8] = [5, 10, 20, 50, 100, 200, 500, 1000];
/// The budget of functions that are stopped, in microseconds.
pub const BUDGET_US: u32 = 20;
/// Periods of which deviations are measured, in microseconds.
pub const PERIODS: [u32; 2] = [20, 100];

/// A process of a sample that is no sample: what runs behind a ring, in a sandbox, or under signals.
pub fn behind(role: &str, arguments: &[String]) -> ExitCode {
    let last = arguments.last().map_or("", String::as_str);
    let said = match role {
        "worker" => partywall_functions::worker::main(),
        "sandbox" => return ExitCode::from(partywall_functions::sandbox::main(last)),
        "floor" => floor::main(),
        "alarm" => alarm::main(arguments),
        "spin" => signals::main(arguments),
        #[cfg(feature = "opponents")]
        "wasm" => wasm::main(arguments),
        _ => format!("there is no `{role}`"),
    };
    eprintln!("{said}");
    ExitCode::FAILURE
}

/// The runtime's worker: the program `functions-worker` beside this one, or, where that was not built, this
/// one, which has no protection keys, for it has the bytes of WRPKRU in its code.
fn worker() -> crate::error::Result<Vec<String>> {
    let own = std::env::current_exe()?.with_file_name("functions-worker");
    match own.to_str().filter(|_| own.exists()) {
        Some(file) => Ok(vec![file.to_owned()]),
        None => program("worker", &[]),
    }
}

/// The arguments with which this program is what [`behind`] calls `role`.
fn program(role: &str, arguments: &[&str]) -> crate::error::Result<Vec<String>> {
    let file = std::env::current_exe()?;
    let file = file.to_str().ok_or("the program's path is no text")?;
    let all = [file, "function-role", role].into_iter().chain(arguments.iter().copied());
    Ok(all.map(str::to_owned).collect())
}

fn each(cells: impl Fn(u64) -> Vec<Case>) -> Vec<Case> {
    FUNCTIONS.into_iter().flat_map(cells).collect()
}

/// All rows of functions that are loaded.
fn warm() -> Vec<Case> {
    each(|count| {
        let case = |cell| Case::functions(Mode::Warm, count, cell);
        let orders = [Order::RoundRobin, Order::Random];
        let mut cells: Vec<_> = orders
            .into_iter()
            .flat_map(|order| [1, WINDOW].map(|w| Cell::closed(order, w)))
            .collect();
        cells.extend(LOADS.map(|percent| Cell::poisson(percent, Whose::Own)));
        cells.extend([LOADS[0], SPARSE].map(|percent| Cell::poisson(percent, Whose::ProcessFair)));
        cells.push(Cell::of(Measure::Memory));
        cells.into_iter().map(case).collect()
    })
}

/// A load, in per cent of what `process-fair` takes, under which workers sleep between calls.
pub const SPARSE: u32 = 1;

/// All rows of functions that are not.
fn cold() -> Vec<Case> {
    each(|count| {
        let orders = [Order::RoundRobin, Order::Random];
        orders.map(|order| Case::functions(Mode::Cold, count, Cell::closed(order, 1))).into()
    })
}

fn both() -> Vec<Case> {
    [warm(), cold()].concat()
}

fn quanta() -> Vec<Case> {
    each(|count| {
        let quanta = std::iter::once(None).chain(QUANTA.map(Some));
        let case =
            |quantum| Case::functions(Mode::Warm, count, Cell::of(Measure::Hashes).every(quantum));
        quanta.map(case).collect()
    })
}

/// Functions beyond their budget, at each place.
fn kills() -> Vec<Case> {
    each(|count| Within::ALL.map(|within| killed(count, within)).into())
}

/// The row of functions that are stopped in this place.
pub fn killed(count: u64, within: Within) -> Case {
    let cell = Cell::of(Measure::Kills).every(Some(BUDGET_US));
    Case::functions(Mode::Warm, count, Cell { within: Some(within), ..cell })
}

fn deviations() -> Vec<Case> {
    each(|count| {
        let cell = |period| Cell::of(Measure::Deviation).every(Some(period));
        PERIODS.map(|period| Case::functions(Mode::Warm, count, cell(period))).into()
    })
}

fn ours() -> Vec<Case> {
    let more = each(|count| {
        let overruns = Cell::of(Measure::Overruns).every(Some(BUDGET_US));
        let cells = [overruns, neighbour(false), neighbour(true)];
        cells.map(|cell| Case::functions(Mode::Warm, count, cell)).into()
    });
    [both(), quanta(), kills(), more].concat()
}

/// An owner alone, or beside another one.
pub const fn neighbour(beside: bool) -> Cell {
    let cell = Cell::poisson(LOADS[0], Whose::ProcessFair);
    Cell { measure: Measure::Neighbour, owners: Some(if beside { 2 } else { 1 }), ..cell }
}

fn bare_signals() -> Vec<Case> {
    let bare = each(|count| {
        vec![Case::functions(Mode::Warm, count, Cell::of(Measure::Kills).every(Some(BUDGET_US)))]
    });
    [bare, deviations()].concat()
}

/// Who is measured, in the order of a report.
pub const CONTENDERS: &[Contender] = &[
    Contender::function(
        Kind::Ours,
        "partywall-fn",
        "the function runtime: its dispatcher, its ring and its worker, with all that they do for a call",
        ours,
    ),
    Contender::function(
        Kind::Ours,
        "partywall-worker",
        "the runtime's worker behind its ring, without the dispatcher's queues, owners and budgets",
        warm,
    ),
    Contender::function(
        Kind::Ours,
        "partywall-worker-open",
        "the same without protection keys; where the machine has none, both are that",
        warm,
    ),
    Contender::function(
        Kind::Other,
        "process-udp",
        "a process for each function, blocked in recv(2) on UDP, as ATC'18 has it",
        warm,
    ),
    Contender::function(
        Kind::Other,
        "process-fair",
        "warm: a process for each function, asleep on a futex; cold: posix_spawn(3) of a static program \
         that binds itself to its core",
        both,
    ),
    Contender::function(
        Kind::Other,
        "process-zygote",
        "fork(2) of a process that is warm, asleep on a futex until then",
        cold,
    ),
    Contender::function(
        Kind::Other,
        "process-fork-exec",
        "taskset(1) and then the function's program, with shared libraries, as ATC'18 has it",
        cold,
    ),
    Contender::function(
        Kind::Other,
        "process-fork-exec-once",
        "the same program without taskset(1): one exec, and the program binds itself to its core",
        cold,
    ),
    #[cfg(feature = "opponents")]
    Contender::function(
        Kind::Other,
        "wasmtime",
        "wasmtime 48 with pooled instances and epochs behind the same ring; a module without memory",
        both,
    ),
    #[cfg(feature = "opponents")]
    Contender::function(
        Kind::Other,
        "wasmtime-memory",
        "the same, a module with a memory of 64 KiB that is fresh for each call",
        both,
    ),
    Contender::function(
        Kind::Ours,
        "partywall-fn-timer",
        "hashing where the runtime's dispatcher has no core of its own: each worker's timer looks how long the \
         function has run",
        quanta,
    ),
    Contender::function(
        Kind::Other,
        "sigalrm",
        "hashing in a process under a periodic timer (setitimer(2)) whose handler looks how long the \
         function has run, as ATC'18 has it",
        quanta,
    ),
    Contender::function(
        Kind::Other,
        "timer",
        "the handler of a periodic timer (setitimer(2)) in a process that spins",
        deviations,
    ),
    Contender::function(
        Kind::Floor,
        "bare-signal",
        "a signal (pidfd_send_signal(2)) to a process that spins on the other core, to its handler's stamp",
        bare_signals,
    ),
    Contender::function(
        Kind::Floor,
        "ring-floor",
        "bare functions at the addresses of images, behind the same ring: no stack, no reset, no check",
        warm,
    ),
];
