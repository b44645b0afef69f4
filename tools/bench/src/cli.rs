//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::case::Bench;
use crate::registry;
use crate::stopwatch::Spans;

/// Measures Partywall beside the alternatives.
#[derive(Parser, Debug)]
#[command(name = "partywall-bench", version, after_help = STATUS)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Small calls, echoed: time per call and calls per second
    Calls(Options),
    /// A service that counts the words of a text
    Words(Options),
    /// Calls between domains of one address space, beside calls between processes
    Domain(Options),
    /// Blocks that client and server set and pass by turns: time, CPU time and memory
    Transfer(Options),
    /// Thousands of small functions: launching them, stopping them, and their memory
    Functions(Options),
    /// Calls over sealed links beside plain ones and TLS, and what connecting takes
    Sealed(Options),
    /// One contender of `functions` in one round; started by that command
    #[command(hide = true)]
    FunctionSample {
        /// What to do, as JSON
        task: String,
    },
    /// What is behind a dispatcher of `functions`; started by that command
    #[command(hide = true)]
    FunctionRole {
        /// What it is
        role: String,
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// One process of a sample; started by the other commands
    #[command(hide = true)]
    Child {
        /// What to do, as JSON
        order: String,
    },
    /// The first process of a container; started by the other commands
    #[command(hide = true)]
    Porter {
        /// Where the driver is
        socket: PathBuf,
    },
    /// Both processes of a sample as domains; started by the other commands
    #[command(hide = true)]
    Launch {
        /// What to do, as JSON
        order: String,
    },
}

const STATUS: &str = "\
Exit status: 0 when all was measured; 1 when an answer was wrong, a sample hung or failed, or the bench
itself could not go on; 130 when it was interrupted. With --strict also 1 when a target is missed, and 3
when none is but none could be judged either.";

/// Options of a bench.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Finish within 50 s (`domain`, `sealed`: 110 s, `transfer`: 170 s): short samples, as many rounds as
    /// fit, in `functions` 500 of them instead of 5,000, and in `sealed` three sizes
    #[arg(long)]
    pub quick: bool,

    /// With --quick: also what that leaves out, which is texts of more than a million words, blocks of
    /// more than 64 MiB, 64 clients at once, and the other sizes of `sealed`. With or without it, in
    /// `functions`: 5,000 of them, 100,000 that are stopped in each round, and 65,535 begins of a handler
    #[arg(long)]
    pub full: bool,

    /// With --quick: finish within N seconds instead
    #[arg(long, value_name = "N", requires = "quick")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub seconds: Option<u64>,

    /// Leave out sizes above N (bytes of a call or a block, or words of a text)
    #[arg(long, value_name = "N")]
    pub max: Option<u64>,

    /// Write every sample and finding to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a report with plots to FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Measure only these contenders, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,

    /// Take N rounds [default: 30, `domain` and `sealed` 15, `transfer` 10, `functions` 5; with --quick, as
    /// many as fit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeats: Option<u32>,

    /// Measure for N milliseconds per sample [default: 250; with --quick, 60; each loop of `functions` 200,
    /// and 25]; in `transfer` for no less than ten iterations, of gRPC for two; with --quick for three, and
    /// one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub sample_ms: Option<u64>,

    /// Leave out what is measured in containers. Otherwise an engine is used that answers as Docker does
    /// (DOCKER_HOST, or /run/docker.sock); for root, dockerd is started where there is none; and where
    /// neither can be, the targets of containers are missed
    #[arg(long)]
    pub no_containers: bool,

    /// Exit with status 1 if a target is missed, and with 3 if none could be judged
    #[arg(long)]
    pub strict: bool,

    /// Decides the order of the samples and of the words
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// How much of a bench there is, unless options say otherwise.
struct Extent {
    /// What its sizes are of.
    unit: &'static str,
    /// The largest size of a quick run.
    quick_size: u64,
    /// Seconds of a quick run.
    quick_seconds: u64,
    /// Rounds of a run that is not quick.
    rounds: u32,
    /// Calls that a sample has at least: in a run that is not quick, and in one that is.
    least: (u64, u64),
}

impl Extent {
    const fn of(bench: Bench) -> Self {
        let calls = Self {
            unit: "bytes",
            quick_size: u64::MAX,
            quick_seconds: 49,
            rounds: 30,
            least: (1, 1),
        };
        match bench {
            Bench::Calls => calls,
            Bench::Words => Self { unit: "words", quick_size: 1_000_000, ..calls },
            Bench::Functions => Self { unit: "functions", quick_size: 500, rounds: 5, ..calls },
            Bench::Domain | Bench::Sealed => Self { quick_seconds: 108, rounds: 15, ..calls },
            // All rounds together have a hundred iterations, and twenty of gRPC.
            Bench::Transfer => Self {
                quick_size: 64 << 20,
                quick_seconds: 168,
                rounds: 10,
                least: (10, 3),
                ..calls
            },
        }
    }
}

/// The most clients at once in a quick run.
const QUICK_CLIENTS: u32 = 8;

impl Options {
    /// The sizes to measure.
    pub fn sizes(&self, bench: Bench) -> Result<Vec<u64>, String> {
        let Extent { unit, quick_size, .. } = Extent::of(bench);
        let usual = if self.leaves_out() { quick_size } else { u64::MAX };
        let all = if self.leaves_out() { bench.quick_sizes() } else { bench.sizes() };
        let most = self.max.unwrap_or(usual);
        let sizes: Vec<u64> = all.iter().copied().filter(|size| *size <= most).collect();
        if sizes.is_empty() {
            return Err(format!("--max {most}: the smallest size is {} {unit}", all[0]));
        }
        Ok(sizes)
    }

    /// The most clients at once to measure.
    pub fn most_clients(&self) -> u32 {
        if self.leaves_out() { QUICK_CLIENTS } else { u32::MAX }
    }

    /// Whether the costliest cells are left out.
    fn leaves_out(&self) -> bool {
        self.quick && !self.full
    }

    /// Refuses names that no contender of `bench` has.
    pub fn check_names(&self, bench: Bench) -> Result<(), String> {
        for name in &self.only {
            if registry::named(bench, name).is_none() {
                let known: Vec<_> = registry::of(bench).iter().map(|known| known.name).collect();
                return Err(format!("--only {name}: there are {}", known.join(", ")));
            }
        }
        Ok(())
    }

    /// Refuses files that could not be written when the run is over.
    pub fn check_files(&self) -> Result<(), String> {
        for file in [&self.json, &self.html].into_iter().flatten() {
            let name = file.display();
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            if file.is_dir() {
                return Err(format!("{name} is a directory"));
            }
            if folder.is_some_and(|folder| !folder.is_dir()) {
                return Err(format!("{name}: there is no such directory"));
            }
        }
        Ok(())
    }

    /// How long samples are.
    pub fn spans(&self, bench: Bench) -> Spans {
        let (full, quick) = Extent::of(bench).least;
        let sample = self.sample_ms.unwrap_or(if self.quick { 60 } else { 250 });
        Spans {
            warm: Duration::from_micros(sample * 1000 / 6),
            sample: Duration::from_millis(sample),
            least: if self.quick { quick } else { full },
        }
    }

    /// Rounds to take, if the user or the full run says how many.
    pub fn rounds(&self, bench: Bench) -> Option<u32> {
        self.repeats.or(if self.quick { None } else { Some(Extent::of(bench).rounds) })
    }

    /// How long after its begin a quick run takes the last sample, and when that has ended; none
    /// for another run.
    pub fn quick_ends(&self, bench: Bench) -> Option<(Duration, Duration)> {
        let end = Duration::from_secs(self.seconds.unwrap_or(Extent::of(bench).quick_seconds));
        // A sample that hangs has five seconds.
        self.quick.then(|| ((end * 9 / 10).max(end.saturating_sub(LAST_SAMPLE)), end))
    }
}

/// What a quick run leaves for its last sample, or a tenth of its time if that is less.
const LAST_SAMPLE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &[&str]) -> Options {
        let args = ["partywall-bench", "words"].iter().chain(args);
        match Cli::try_parse_from(args).expect("valid").command {
            Command::Words(options) => options,
            other => panic!("parsed {other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_follow_max_and_quick() {
        let sizes = |args: &[&str]| options(args).sizes(Bench::Words);
        assert_eq!(sizes(&[]).expect("all").len(), 7);
        assert_eq!(sizes(&["--quick"]).expect("most").last(), Some(&1_000_000));
        assert_eq!(sizes(&["--quick", "--max", "1000"]).expect("two"), [100, 1000]);
        assert!(sizes(&["--max", "99"]).is_err());
    }

    #[test]
    fn a_quick_run_has_three_sizes_of_sealed_calls() {
        let sizes = |args: &[&str]| options(args).sizes(Bench::Sealed).expect("some");
        assert_eq!(sizes(&["--quick"]), [1, 4 << 10, 64 << 10]);
        assert_eq!(sizes(&["--quick", "--max", "4096"]), [1, 4 << 10]);
        assert_eq!(sizes(&["--quick", "--full"]), sizes(&[]));
        assert_eq!(sizes(&[]).len(), 13);
    }

    #[test]
    fn large_blocks_and_many_clients_need_a_full_run() {
        let most = |args: &[&str]| {
            let options = options(args);
            let sizes = options.sizes(Bench::Transfer).expect("some");
            (
                sizes.last().copied(),
                options.most_clients() >= 64,
                options.spans(Bench::Transfer).least,
            )
        };
        assert_eq!(most(&["--quick"]), (Some(64 << 20), false, 3));
        assert_eq!(most(&["--quick", "--full"]), (Some(1 << 30), true, 3));
        assert_eq!(most(&[]), (Some(1 << 30), true, 10));
        assert_eq!(options(&[]).rounds(Bench::Transfer), Some(10));
    }

    #[test]
    fn a_quick_run_leaves_time_for_its_last_sample() {
        let ends = |args: &[&str]| {
            let ends = options(args).quick_ends(Bench::Words);
            ends.map(|(last, end)| (last.as_secs_f64(), end.as_secs_f64()))
        };
        assert_eq!(ends(&[]), None);
        assert_eq!(ends(&["--quick"]), Some((44.1, 49.0)));
        assert_eq!(ends(&["--quick", "--seconds", "2"]), Some((1.8, 2.0)));
        assert_eq!(ends(&["--quick", "--seconds", "200"]), Some((195.0, 200.0)));
    }

    #[test]
    fn files_that_cannot_be_written_are_refused_at_once() {
        assert!(options(&["--json", "run.json"]).check_files().is_ok());
        assert!(options(&["--html", "/"]).check_files().is_err());
        let error = options(&["--json", "/no/such/place/run.json"]).check_files();
        assert!(error.expect_err("refused").contains("no such directory"));
    }

    #[test]
    fn a_full_run_repeats_so_many_times() {
        assert_eq!(options(&[]).rounds(Bench::Words), Some(30));
        assert_eq!(options(&[]).rounds(Bench::Domain), Some(15));
        assert_eq!(options(&["--quick"]).rounds(Bench::Words), None);
        assert_eq!(options(&["--quick", "--repeats", "3"]).rounds(Bench::Words), Some(3));
    }
}
