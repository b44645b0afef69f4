//! Runs the bench: prepares what all samples need, takes rounds of samples, and judges.
//!
//! A round has each contender once, in random order; `process-fair` comes first in the first one, since
//! others are called at a part of its calls per second. Parts of a sample during which the cores have moved
//! are dropped; a sample is taken again when that is all of it.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use partywall_testkit::Random;

use super::cell::{Cell, Order};
use super::task::{Task, Told};
use super::{CONTENDERS, WINDOW, prepared};
use crate::case::{Bench, Case, Mode};
use crate::cli::Options;
use crate::contender::Contender;
use crate::driver::{Run, Tally};
use crate::error::Result;
use crate::machine::{self, Machine};
use crate::row::Row;
use crate::sys::clock::{Stamps, Ticker};
use crate::sys::cpu::Cpus;
use crate::sys::stop::Stop;
use crate::target;

/// How long a sample may take.
const LIMIT: Duration = Duration::from_secs(600);
/// How often a sample is taken again when the cores have moved.
const RETRIES: u32 = 1;
/// Functions that are stopped in each of the four places: of a quick run, of a full one, of any other.
const KILLS: [u32; 3] = [250, 25_000, 2_500];
/// Begins of handlers, of the same.
const BEGINS: [u32; 3] = [2_000, 65_535, 16_384];

/// Runs it; none if the user stopped it.
///
/// # Errors
/// If it cannot go on. A contender's failure is part of the result.
pub fn run(options: &Options) -> Result<Option<Run>> {
    let bench = Bench::Functions;
    options.check_names(bench)?;
    options.check_files()?;
    let count = options.sizes(bench)?.into_iter().max().ok_or("no number of functions")?;
    let stop = Stop::listen()?;
    let (ticker, cpus) = (Ticker::calibrate(), Cpus::find()?);
    let second = cpus.second.ok_or("functions need two cores: a dispatcher's, and a worker's")?;
    let machine = Machine::look(ticker, cpus);
    eprintln!("{}", machine.line());
    for warning in machine.warnings() {
        eprintln!("{warning}");
    }
    let dir = tempfile::Builder::new().prefix("partywall-functions-").tempdir()?;
    prepared::prepare(dir.path())?;
    let amount = |of: [u32; 3]| match (options.full, options.quick) {
        (true, _) => of[1],
        (false, true) => of[0],
        (false, false) => of[2],
    };
    let task = Task {
        contender: String::new(),
        count: u32::try_from(count)?,
        driver: std::process::id(),
        cpus: [cpus.first, second],
        span: Duration::from_millis(options.sample_ms.unwrap_or(if options.quick {
            25
        } else {
            200
        })),
        kills: amount(KILLS),
        begins: amount(BEGINS),
        fair_per_s: None,
        seed: options.seed,
        stamps: Stamps::measure(),
        ticker,
        files: dir.path().to_owned(),
    };
    let started = Instant::now();
    let (steal, others) = (machine::steal(), machine::others_cpu());
    let tally =
        Tally { seed: options.seed, sample_ms: task.span.as_millis() as u64, ..Tally::default() };
    let mut session = Session { task, stop, rows: Vec::new(), tally };
    let last = options.quick_ends(bench).map(|(last, _)| started + last);
    if !session.rounds(options, last)? {
        return Ok(None);
    }
    let Session { rows, mut tally, .. } = session;
    tally.seconds = started.elapsed().as_secs_f64();
    tally.steal_seconds = machine::steal().saturating_sub(steal) as f64 / 100.0;
    let others = machine::others_cpu().saturating_sub(others);
    tally.others_cpus = others.as_secs_f64() / tally.seconds;
    let targets = target::judge(&rows, &target::targets(bench, &[count]));
    let no_containers = String::new();
    Ok(Some(Run { bench, machine, rows, floors: Vec::new(), targets, no_containers, tally }))
}

struct Session {
    task: Task,
    stop: Stop,
    rows: Vec<Row>,
    tally: Tally,
}

impl Session {
    /// Takes every sample. False if the user asked for an end.
    fn rounds(&mut self, options: &Options, last: Option<Instant>) -> Result<bool> {
        let mut random = Random::new(options.seed);
        let is_chosen = |of: &&Contender| {
            options.only.is_empty() || options.only.iter().any(|name| name == of.name)
        };
        let mut chosen: Vec<&Contender> = CONTENDERS.iter().filter(is_chosen).collect();
        let is_over = || last.is_some_and(|last| Instant::now() > last);
        for round in 0.. {
            let rounds = options.rounds(Bench::Functions);
            if rounds.is_some_and(|rounds| round >= rounds) || (round > 0 && is_over()) {
                return Ok(true);
            }
            self.tally.rounds = round + 1;
            random.shuffle(&mut chosen);
            if round == 0 {
                chosen.sort_by_key(|of| of.name != "process-fair");
            }
            for contender in &chosen {
                // The first round of a quick run is whole.
                if round > 0 && is_over() {
                    return Ok(true);
                }
                if !self.take(contender, round)? {
                    return Ok(false);
                }
            }
            eprintln!(
                "round {}: {} samples, {} dropped, {} hangs, {} failed",
                round + 1,
                self.tally.samples,
                self.tally.dropped,
                self.tally.hangs,
                self.tally.failures.values().sum::<u64>(),
            );
        }
        Ok(true)
    }

    /// Takes one sample, again if the cores moved. False if the user asked for an end.
    fn take(&mut self, contender: &Contender, round: u32) -> Result<bool> {
        let name = contender.name;
        self.task.contender = name.to_owned();
        for _ in 0..=RETRIES {
            self.task.seed = self.task.seed.wrapping_add(1);
            self.tally.samples += 1;
            let told = match self.sample()? {
                Outcome::Interrupted => return Ok(false),
                Outcome::Hung => {
                    self.tally.hangs += 1;
                    self.fail(format!("{name} hung"));
                    return Ok(true);
                }
                Outcome::Told(told) => told,
            };
            let has_failed = told.error.is_some();
            if let Some(error) = told.error {
                self.fail(format!("{name}: {error}"));
            }
            let (kept, moved): (Vec<_>, Vec<_>) =
                told.rows.into_iter().partition(|(.., near)| near.is_some());
            // One of which all is lost is taken again.
            if !moved.is_empty() && kept.is_empty() && !has_failed {
                self.tally.dropped += 1;
                continue;
            }
            self.tally.dropped += u64::from(!moved.is_empty());
            for (case, figures, near) in kept {
                self.tally.wrong += figures.errors;
                self.rows.push(Row { contender: name, case, near, rep: round, figures });
                let throughput = Cell::closed(Order::Random, WINDOW);
                let is_it = case == Case::functions(Mode::Warm, self.task.count.into(), throughput);
                if name == "process-fair" && is_it {
                    self.task.fair_per_s = figures.per_s;
                }
            }
            break;
        }
        Ok(true)
    }

    fn fail(&mut self, message: String) {
        *self.tally.failures.entry(message).or_default() += 1;
    }

    fn sample(&self) -> Result<Outcome> {
        let task = serde_json::to_string(&self.task)?;
        let mut child = Ended(
            Command::new(std::env::current_exe()?)
                .args(["function-sample", &task])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()?,
        );
        let mut says = child.0.stdout.take().ok_or("no pipe")?;
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            says.read_to_string(&mut text).map(|_| text)
        });
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.0.try_wait()? {
                break status;
            }
            if self.stop.requested() {
                return Ok(Outcome::Interrupted);
            }
            if begun.elapsed() > LIMIT {
                return Ok(Outcome::Hung);
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let text = reader.join().map_err(|_| "the reader has panicked")??;
        Ok(Outcome::Told(serde_json::from_str(&text).unwrap_or_else(|_| Told {
            error: Some(format!("ended without a report: {status}")),
            ..Told::default()
        })))
    }
}

enum Outcome {
    Told(Told),
    Hung,
    Interrupted,
}

/// A child that does not outlive its handle.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Neither does anything to a child whose status was collected.
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}
