//! Runs a bench from the first sample to the judged result.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::case::{Bench, Place};
use crate::cli::Options;
use crate::engine::Containers;
use crate::error::Result;
use crate::image;
use crate::machine::{self, Machine};
use crate::pair::{self, Outcome, Runner};
use crate::plan::{Choice, Entry, Plan};
use crate::row::{Figures, Row};
use crate::sys::clock::Ticker;
use crate::sys::cpu::Cpus;
use crate::sys::stop::Stop;
use crate::target::{self, Finding, Verdict};
use crate::text::Text;
use crate::words::generate;
use partywall_testkit::Random;

/// Groups that no target needs come in one of so many quick rounds.
const STRIDE: u32 = 5;

/// How often a sample is taken again in its round when the cores moved meanwhile.
const RETRIES: u32 = 2;

/// What may be amiss where a sample in containers hangs.
const BRIDGE: &str = ". Where only TCP hangs, the host's firewall lets no packet of the engine's bridge pass \
                      (chain FORWARD). Remedy: allow it there, or set net.bridge.bridge-nf-call-iptables to 0";

/// What happened besides the rows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    /// Rounds that were begun.
    pub rounds: u32,
    /// Samples that were started.
    pub samples: u64,
    /// Samples dropped because the cores moved.
    pub dropped: u64,
    /// Samples that did not end in time.
    pub hangs: u64,
    /// Samples that the end of a quick run cut off.
    pub cut: u64,
    /// Wrong answers.
    pub wrong: u64,
    /// Samples that hung or failed otherwise, by message.
    pub failures: BTreeMap<String, u64>,
    /// Wall time of the run in seconds.
    pub seconds: f64,
    /// Time that other machines took from this one's CPUs meanwhile, in seconds over all CPUs.
    pub steal_seconds: f64,
    /// CPUs that programs outside of the run used meanwhile, in the mean.
    pub others_cpus: f64,
    /// The seed of the order.
    pub seed: u64,
    /// Milliseconds measured per sample.
    pub sample_ms: u64,
}

/// A finished run.
#[derive(Debug)]
pub struct Run {
    /// Which bench.
    pub bench: Bench,
    /// Where it ran.
    pub machine: Machine,
    /// Every sample.
    pub rows: Vec<Row>,
    /// Whether the floors hold.
    pub floors: Vec<Finding>,
    /// How the targets came out.
    pub targets: Vec<Finding>,
    /// Why nothing was measured in containers; empty where there was nothing to measure, or it was.
    pub no_containers: String,
    /// What else happened.
    pub tally: Tally,
}

impl Run {
    /// What keeps the figures from meaning what they seem to; a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut found: Vec<String> = self.machine.warnings();
        let (others, cores) = (self.tally.others_cpus, self.machine.cores as f64);
        if others > machine::BUSY * cores {
            found.push(format!(
                "Other programs used {others:.1} of {cores} CPUs during the run: its figures are of \
                 a busy machine."
            ));
        }
        if !self.no_containers.is_empty() {
            found.push(format!(
                "Nothing was measured in containers, so their targets are missed: {}.",
                self.no_containers
            ));
        }
        let rests = |floor: &Finding| {
            self.targets.iter().any(|target| target.measured.is_some() && target.rests_on(floor))
        };
        let unknown = self.floors.iter().filter(|floor| floor.verdict != Verdict::Pass);
        for floor in unknown.filter(|floor| rests(floor)) {
            let measured = floor.measured.as_ref().map(|m| floor.quantity.show(m.median));
            found.push(format!(
                "Floor {}{}: {}, {}{}. What is compared with it is {}.",
                floor.verdict.text(),
                floor.near.map_or("", |near| if near { ", near cores" } else { ", far cores" }),
                floor.text,
                measured.map_or(String::new(), |measured| format!("{measured}, wanted ")),
                floor.bound,
                if floor.verdict == Verdict::Fail { "VOID" } else { "not known to be sound" },
            ));
        }
        found
    }
}

impl Tally {
    /// Whether every sample ended and every answer was right.
    pub fn is_clean(&self) -> bool {
        self.hangs == 0 && self.wrong == 0 && self.failures.is_empty()
    }
}

/// Runs `bench`; none if the user stopped it.
///
/// # Errors
/// If the driver itself cannot go on. A contender's failure is part of the result.
pub fn run(bench: Bench, options: &Options) -> Result<Option<Run>> {
    options.check_names(bench)?;
    options.check_files()?;
    let sizes = options.sizes(bench)?;
    let stop = Stop::listen()?;
    let (mut ticker, cpus) = (Ticker::calibrate(), Cpus::find()?);
    if bench == Bench::Domain {
        ticker = ticker.settled();
    }
    let machine = Machine::look(ticker, cpus);
    eprintln!("{}", machine.line());
    for warning in machine.warnings() {
        eprintln!("{warning}");
    }
    let choice = Choice {
        only: options.only.clone(),
        sizes: sizes.clone(),
        two_cores: cpus.second.is_some(),
        pinned_only: options.quick,
        most_clients: options.most_clients(),
        host_only: options.no_containers,
    };
    if !choice.two_cores {
        eprintln!("Only one core can be used: nothing is measured on two cores.");
    }
    let mut plan = Plan::new(bench, &choice);
    for name in plan.impossible() {
        eprintln!("This machine has no protection keys: {name} is not measured.");
    }
    let image = if plan.has_domains() { image::build(&stop)? } else { None };
    if stop.requested() {
        return Ok(None);
    }
    let dir = tempfile::Builder::new().prefix("partywall-bench-").tempdir()?;
    let (mut containers, mut no_containers) = (None, String::new());
    if plan.has_containers() {
        pair::readable(dir.path())?;
        match Containers::start(dir.path(), &stop) {
            Ok(None) => return Ok(None),
            Ok(started) => containers = started,
            Err(error) => {
                no_containers = error.to_string();
                eprintln!("Nothing is measured in containers: {no_containers}.");
                plan.miss_containers();
            }
        }
    }
    let started = Instant::now();
    let ends = options.quick_ends(bench);
    let (steal, others) = (machine::steal(), machine::others_cpu());
    let runner = Runner {
        containers,
        dir,
        ticker,
        cpus,
        stop,
        spans: options.spans(bench),
        count: 0,
        hard_end: ends.map(|(_, end)| started + end),
        image,
    };
    let mut session = Session {
        runner,
        texts: BTreeMap::new(),
        rows: Vec::new(),
        tally: Tally {
            seed: options.seed,
            sample_ms: options.spans(bench).sample.as_millis() as u64,
            ..Tally::default()
        },
    };
    if bench == Bench::Words && !session.write_texts(&sizes, options.seed)? {
        return Ok(None);
    }
    if !session.rounds(&plan, options, started, ends.map(|(last, _)| last))? {
        return Ok(None);
    }
    let Session { rows, mut tally, .. } = session;
    tally.seconds = started.elapsed().as_secs_f64();
    tally.steal_seconds = machine::steal().saturating_sub(steal) as f64 / 100.0;
    let others = machine::others_cpu().saturating_sub(others);
    tally.others_cpus = others.as_secs_f64() / tally.seconds;

    let floors = target::judge(&rows, &target::floors(bench));
    let mut targets = target::judge(&rows, &target::targets(bench, &sizes));
    target::apply_floors(&mut targets, &floors);
    target::miss(&mut targets, plan.missing(), &no_containers);
    Ok(Some(Run { bench, machine, rows, floors, targets, no_containers, tally }))
}

struct Session {
    runner: Runner,
    texts: BTreeMap<u64, Text>,
    rows: Vec<Row>,
    tally: Tally,
}

impl Session {
    /// Writes the texts to count. False if the user asked for an end.
    fn write_texts(&mut self, sizes: &[u64], seed: u64) -> Result<bool> {
        let bar = bar(sizes.iter().sum(), "writing texts");
        let mut before = 0;
        for &words in sizes {
            let path = self.runner.dir.path().join(format!("words-{words}"));
            let stop = self.runner.stop.clone();
            let go_on = |written: u64| {
                bar.set_position(before + written);
                !stop.requested()
            };
            match generate::generate(&path, words, seed, go_on) {
                Ok(text) => self.texts.insert(words, text),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            before += words;
        }
        bar.finish_and_clear();
        Ok(true)
    }

    /// Takes every sample. False if the user asked for an end.
    fn rounds(
        &mut self,
        plan: &Plan,
        options: &Options,
        started: Instant,
        last: Option<Duration>,
    ) -> Result<bool> {
        let mut rng = Random::new(options.seed);
        let rounds = options.rounds(plan.bench());
        let stride = if options.only.is_empty() { STRIDE } else { 1 };
        let total = match last {
            Some(last) => last.as_secs(),
            None => u64::from(rounds.unwrap_or(1)) * plan.len() as u64,
        };
        let bar = bar(total, if options.quick { "seconds" } else { "samples" });
        let spent = |started: Instant| last.is_some_and(|last| started.elapsed() > last);
        for round in 0.. {
            if rounds.is_some_and(|rounds| round >= rounds) || spent(started) {
                break;
            }
            self.tally.rounds = round + 1;
            let entries = if options.quick {
                plan.short_round(round, stride, &mut rng)
            } else {
                plan.round(&mut rng)
            };
            for entry in &entries {
                if spent(started) {
                    break;
                }
                bar.set_message(format!("{}, {}", entry.contender.name, entry.case));
                if !self.take(entry, round)? {
                    bar.finish_and_clear();
                    return Ok(false);
                }
                if options.quick {
                    bar.set_position(started.elapsed().as_secs());
                } else {
                    bar.inc(1);
                }
            }
            if bar.is_hidden() {
                eprintln!(
                    "round {}: {} samples, {} dropped, {} hangs, {} failed, {:.0} s",
                    round + 1,
                    self.runner.count,
                    self.tally.dropped,
                    self.tally.hangs,
                    self.tally.failures.values().sum::<u64>(),
                    started.elapsed().as_secs_f64()
                );
            }
        }
        bar.finish_and_clear();
        self.tally.samples = self.runner.count;
        Ok(true)
    }

    /// Takes one sample, again if the cores moved. False if the user asked for an end.
    fn take(&mut self, entry: &Entry, round: u32) -> Result<bool> {
        let name = entry.contender.name;
        let text = entry.case.size.and_then(|words| self.texts.get(&words));
        let broken = Figures { errors: 1, ..Figures::default() };
        for _ in 0..=RETRIES {
            let (near, figures) = match self.runner.sample(entry.contender, entry.case, text)? {
                Outcome::Interrupted => return Ok(false),
                Outcome::Dropped => {
                    self.tally.dropped += 1;
                    continue;
                }
                Outcome::Measured { near, figures } => {
                    self.tally.wrong += figures.errors;
                    (near, *figures)
                }
                Outcome::Cut => {
                    self.tally.cut += 1;
                    break;
                }
                Outcome::Hung(doing) => {
                    self.tally.hangs += 1;
                    let remedy = if entry.case.place == Place::Host { "" } else { BRIDGE };
                    let message = format!("{name}, {} hung{doing}{remedy}", entry.case);
                    *self.tally.failures.entry(message).or_default() += 1;
                    (None, broken)
                }
                Outcome::Failed(error) => {
                    let message = format!("{name}, {}: {error}", entry.case);
                    *self.tally.failures.entry(message).or_default() += 1;
                    (None, broken)
                }
            };
            self.rows.push(Row { contender: name, case: entry.case, near, rep: round, figures });
            break;
        }
        Ok(true)
    }
}

/// A bar on a terminal; hidden elsewhere. It never draws by itself, only between samples.
fn bar(total: u64, unit: &str) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let template = "{wide_bar} {pos}/{len} {prefix}, {elapsed} of about {duration}\n{msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_prefix(unit.to_owned());
    bar
}
