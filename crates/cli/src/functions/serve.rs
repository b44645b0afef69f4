//! `partywall fn serve`: a function host.

use std::error::Error;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use partywall_fn_host::host::{Host, Settings};
use partywall_fn_host::policy::Policy;
use partywall_fn_host::{http, page, service, telemetry};
use partywall_functions::clock::Exactness;
use partywall_functions::dispatcher::{Preemption, Workers};
use partywall_functions::isolation::Wanted;
use partywall_functions::runtime;
use partywall_shm::socket::variable;
use tokio::signal::unix::{SignalKind, signal};

use crate::coordinator::{raise_descriptor_limit, survive_limits_of_files};
use crate::socket::Socket;

/// The name that a host serves, unless another one is given.
pub(super) const NAME: &str = "functions";
/// How long a host that is about to end still may serve the name.
const ENDING: Duration = Duration::from_secs(1);
/// So many functions a worker gives up before another one has its place.
const RECYCLE: u32 = 10_000;

/// How a host is run.
#[derive(clap::Args)]
pub(crate) struct Serve {
    /// The name at the coordinator; its policy has to let this user serve it (`register`).
    #[arg(long, default_value = NAME)]
    name: String,
    /// Where functions, their secrets and the signing key are kept; nobody else may reach it. Unless given,
    /// /var/lib/partywall/functions for root, else partywall/functions in XDG_STATE_HOME or ~/.local/state.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Who may deploy, call, read logs and ban; read again on SIGHUP. Without it, this user alone. `fn policy
    /// check` says whether it is one.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Also take calls over HTTP/1.1 and HTTP/2 there, as POST /NAME and as Invoke of gRPC. Nobody vouches
    /// for who calls: to the policy it is `network`.
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    http: Option<SocketAddr>,
    /// Show all functions and their counts there, as a page. Whoever can connect can read it.
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    page: Option<SocketAddr>,
    /// The CPUs of the workers, such as `0,2-3`; a worker for each. Unless given, all of this process, but
    /// for one for the dispatcher where there are several.
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    cpus: Option<Cpus>,
    /// The CPU of the dispatcher.
    #[arg(long, value_name = "CPU")]
    dispatcher_cpu: Option<usize>,
    /// Have workers stop functions by timers that look this often, such as `100us`, instead of by the
    /// dispatcher, which needs a CPU for that while a function runs. The default with one CPU.
    #[arg(long, value_name = "TIME", value_parser = quantum)]
    timer: Option<Duration>,
    /// How far behind the time that functions see may be. `0` has them read the processor's counter, which
    /// tells them most of what others do on the same processor.
    #[arg(long, value_name = "TIME", value_parser = resolution, default_value = "100us")]
    clock: Duration,
    /// The most bytes of images in memory, such as `512M`; beyond them those that were not called of late are
    /// unloaded.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "1G")]
    memory: u64,
    /// The most worker processes. There is one for each CPU and whose functions may meet (`share` in the
    /// policy), and may be two for each CPU at least; the one that was used least recently is ended for
    /// another one. One owner's functions wait for services in at most half of those that others leave.
    #[arg(long, value_name = "NUMBER", default_value_t = 64)]
    processes: usize,
    /// What keeps functions from the memory of their worker: protection-keys, prefer (keys where this
    /// machine has them, and else nothing) or none.
    #[arg(long, value_name = "LEVEL", default_value_t = Wanted::Prefer)]
    isolation: Wanted,
    /// The compiler.
    #[arg(long, value_name = "PATH", default_value = super::RUSTC)]
    rustc: PathBuf,
    #[command(flatten)]
    metrics: crate::metrics::Exporter,
    #[command(flatten)]
    socket: Socket,
}

/// Numbers of CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cpus(Vec<usize>);

fn cpus(text: &str) -> Result<Cpus, String> {
    let wrong = || "write numbers and ranges, such as `0,2-3`".to_owned();
    let number = |text: &str| text.parse::<usize>().ok().filter(|cpu| *cpu < 4096);
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = number(first).zip(number(last)).ok_or_else(wrong)?;
        all.extend(range.0..=range.1);
    }
    let several = all.len();
    all.sort_unstable();
    all.dedup();
    match all.len() {
        0 => Err(wrong()),
        once if once < several => Err("a CPU is named twice".into()),
        _ => Ok(Cpus(all)),
    }
}

/// An address to listen at.
fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let port = text.rsplit(':').next().filter(|port| port.parse::<u16>().is_ok());
        let port = port.unwrap_or("8080");
        format!(
            "write an address and a port: 127.0.0.1:{port} for callers on this host alone, or 0.0.0.0:{port} for \
             all that reach it"
        )
    })
}

/// A number of bytes, also in units of 1024: `65536`, `64K`, `512M` or `2GiB`.
fn bytes(text: &str) -> Result<u64, String> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let shift = match unit.strip_suffix("iB").unwrap_or(unit) {
        "" if unit.is_empty() => Some(0),
        "K" => Some(10),
        "M" => Some(20),
        "G" => Some(30),
        "T" => Some(40),
        _ => None,
    };
    let number = number.parse::<u64>().ok();
    number
        .zip(shift)
        .and_then(|(number, shift)| number.checked_mul(1 << shift))
        .ok_or_else(|| "write a number of bytes, such as `65536`, `512M` or `2G`".to_owned())
}

/// How often a timer looks at most: each look takes its function the time of a signal.
const SHORTEST: Duration = Duration::from_micros(20);

fn quantum(text: &str) -> Result<Duration, String> {
    let quantum = super::sources::time(text)?;
    match quantum < SHORTEST {
        true => Err(format!(
            "the timers of workers would leave functions no time; write {}us or more, such as `100us`",
            SHORTEST.as_micros()
        )),
        false => Ok(quantum),
    }
}

fn resolution(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { super::sources::time(text) }
}

/// Who runs where.
struct Places {
    dispatcher: Option<usize>,
    workers: Vec<usize>,
    preemption: Preemption,
}

impl Serve {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn Error>> {
        raise_descriptor_limit();
        let places = self.places(&allowed()?)?;
        let directory = self.directory()?;
        let policy = self.read_policy()?;
        let exactness = match self.clock {
            Duration::ZERO => Exactness::Exact,
            resolution => Exactness::Coarse(resolution),
        };
        let workers = Workers {
            program: super::worker()?,
            cpus: places.workers.iter().copied().map(Some).collect(),
            exactness,
            preemption: places.preemption,
            resident: self.memory,
            recycle: RECYCLE,
            processes: self.processes.max(2 * places.workers.len()),
            isolation: self.isolation,
            archive: directory.clone(),
        };
        let settings = Settings {
            directory: directory.clone(),
            policy,
            runtime: runtime::Settings { cpu: places.dispatcher, blocks: 64, workers },
            rustc: self.rustc.clone(),
            sandbox: super::this_program(super::SANDBOX)?,
            coordinator: self.socket.place(),
        };
        let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let done = tokio.block_on(async {
            let mut interrupt = signal(SignalKind::interrupt())?;
            let mut terminate = signal(SignalKind::terminate())?;
            let mut hang_up = signal(SignalKind::hangup())?;
            survive_limits_of_files()?;
            // Whoever has started this may have it ignored, and then no end of a process can be waited for.
            let _children = signal(SignalKind::child())?;
            let host = Host::start(settings)?;
            let bound = self.bind(&host).await?;
            self.alone(&bound).await?;
            let listening = self.listen(&host).await?;
            let started = self.started(&host, &directory, &places)?;
            crate::say(&format!("{started}{listening}ready\n"))?;
            let mut server = std::pin::pin!(bound.serve());
            let metrics = crate::metrics::serve(&self.metrics)?;
            if metrics.is_some() {
                tokio::spawn(telemetry::tell(host.clone()));
            }
            let all = host.clone();
            tokio::spawn(async move { all.register_all().await });
            loop {
                tokio::select! {
                    ended = &mut server => return Ok(ended?),
                    _ = interrupt.recv() => break,
                    _ = terminate.recv() => break,
                    _ = hang_up.recv() => self.reload(&host).await,
                    why = host.over() => {
                        return Err(format!("the dispatcher of functions has ended: {why}").into());
                    }
                }
            }
            crate::say("stopped\n")?;
            Ok::<_, Box<dyn Error>>(())
        });
        tokio.shutdown_background();
        done.map(|()| ExitCode::SUCCESS)
    }

    fn places(&self, allowed: &[usize]) -> Result<Places, String> {
        let known = |cpu: &usize| match allowed.contains(cpu) {
            true => Ok(*cpu),
            false => Err(format!("CPU {cpu} is none of this process; it has {allowed:?}")),
        };
        let timer = self.timer.map(Preemption::Timer);
        let dispatcher = self.dispatcher_cpu.as_ref().map(known).transpose()?;
        let workers: Vec<_> = match &self.cpus {
            Some(Cpus(cpus)) => cpus.iter().map(known).collect::<Result<_, _>>()?,
            None => {
                let spare = match (dispatcher, timer) {
                    (Some(cpu), _) => Some(cpu),
                    (None, Some(_)) => None,
                    (None, None) => allowed.last().copied(),
                };
                let others = allowed.iter().copied().filter(|cpu| Some(*cpu) != spare);
                let others: Vec<_> = others.collect();
                if others.is_empty() { allowed.to_vec() } else { others }
            }
        };
        let free = allowed.iter().copied().rfind(|cpu| !workers.contains(cpu));
        let preemption = match (timer, dispatcher.or(free)) {
            (Some(timer), _) => timer,
            (None, Some(cpu)) if !workers.contains(&cpu) => Preemption::Dispatcher,
            // It shares a CPU with a worker, and would stop nothing in time.
            (None, _) => Preemption::Timer(Duration::from_micros(100)),
        };
        let dispatcher = match preemption {
            Preemption::Dispatcher => dispatcher.or(free),
            Preemption::Timer(_) => dispatcher,
        };
        Ok(Places { dispatcher, workers, preemption })
    }

    fn directory(&self) -> Result<PathBuf, Box<dyn Error>> {
        if let Some(directory) = &self.directory {
            return Ok(directory.clone());
        }
        if rustix::process::geteuid().is_root() {
            return Ok("/var/lib/partywall/functions".into());
        }
        let state = variable("XDG_STATE_HOME").map(PathBuf::from);
        let home = || variable("HOME").map(|home| PathBuf::from(home).join(".local/state"));
        let state =
            state.or_else(home).ok_or("HOME is not set; name a directory with --directory")?;
        Ok(state.join("partywall/functions"))
    }

    fn read_policy(&self) -> Result<Policy, Box<dyn Error>> {
        let own = rustix::process::geteuid().as_raw();
        let Some(path) = &self.policy else { return Ok(Policy::of_user(own)) };
        let policy = super::policy::read(path)?;
        if let Some(note) = policy.note() {
            crate::remark(&format!("{}: {note}", path.display()));
        }
        Ok(policy)
    }

    async fn reload(&self, host: &Arc<Host>) {
        if self.policy.is_none() {
            return crate::remark("SIGHUP: there is no --policy to read again");
        }
        let set = match self.read_policy() {
            Ok(policy) => host.set_policy(policy).await.map_err(|e| e.message().to_owned()),
            Err(error) => Err(error.to_string()),
        };
        match set {
            Ok(()) => crate::remark("the policy is read again"),
            Err(why) => crate::remark(&format!("the policy stays as it was: {why}")),
        }
    }

    /// Registers the name; an error says which coordinator was asked.
    async fn bind(&self, host: &Arc<Host>) -> Result<partywall::Bound, Box<dyn Error>> {
        let mut server = partywall::Server::builder();
        if let Some(place) = self.socket.place() {
            server = server.coordinator(place);
        }
        let bound = server.add_service(service::of(host.clone())).bind(self.name.as_str()).await;
        self.socket.ask(|_| bound)
    }

    /// Whether no other process serves the name: two hosts have different functions, and calls and
    /// deployments would go to the one or the other.
    async fn alone(&self, bound: &partywall::Bound) -> Result<(), String> {
        match bound.others(ENDING).await {
            0 => Ok(()),
            _ => Err(format!(
                "another process serves `{name}` at this coordinator, and calls and deployments would go to the \
                 one or the other; end that (`partywall ps` shows it), or serve another name: --name {name}2, \
                 which the coordinator's policy has to allow",
                name = self.name
            )),
        }
    }

    /// Listens where it is to, and says where that is.
    async fn listen(&self, host: &Arc<Host>) -> Result<String, Box<dyn Error>> {
        let mut said = String::new();
        let mut serve = |what: &str, bound: partywall::Bound| {
            let at = bound.addresses().iter().map(|at| format!("{what} at {at}/\n"));
            said.extend(at);
            // No address ends by itself.
            tokio::spawn(bound.serve());
        };
        if let Some(address) = self.http {
            let bound = http::bind(host.clone(), address).await;
            serve("calls", bound.map_err(|error| format!("--http {address}: {error}"))?);
        }
        if let Some(address) = self.page {
            let bound = page::bind(host.clone(), address).await;
            serve("page", bound.map_err(|error| format!("--page {address}: {error}"))?);
        }
        Ok(said)
    }

    fn started(
        &self,
        host: &Arc<Host>,
        directory: &std::path::Path,
        places: &Places,
    ) -> Result<String, Box<dyn Error>> {
        let functions = host.list().map_err(|status| status.message().to_owned())?.len();
        let mut text = format!("functions as `{}`, kept in {}\n", self.name, directory.display());
        let by = match places.preemption {
            Preemption::Timer(quantum) => format!("timers of {} us", quantum.as_micros()),
            Preemption::Dispatcher => match places.dispatcher {
                Some(cpu) => format!("the dispatcher on CPU {cpu}"),
                None => "the dispatcher".into(),
            },
        };
        let cpus: Vec<_> = places.workers.iter().map(ToString::to_string).collect();
        writeln!(text, "workers on CPU {}; functions are stopped by {by}", cpus.join(", "))?;
        if let Some(in_force) = host.in_force().map_err(|status| status.message().to_owned())? {
            writeln!(text, "functions are kept from their workers' memory by: {in_force}")?;
        }
        match functions {
            1 => writeln!(text, "1 function is deployed")?,
            _ => writeln!(text, "{functions} functions are deployed")?,
        }
        if let Some(why) = host.no_compiler() {
            writeln!(text, "only signed images can be deployed, for there is no compiler: {why}")?;
        }
        Ok(text)
    }
}

/// The CPUs of this process.
fn allowed() -> Result<Vec<usize>, Box<dyn Error>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        serve: Serve,
    }

    fn places(
        line: &[&str],
        allowed: &[usize],
    ) -> Result<(Option<usize>, Vec<usize>, bool), String> {
        let line = std::iter::once("fn").chain(line.iter().copied());
        let serve = Line::try_parse_from(line).map_err(|error| error.to_string())?.serve;
        let Places { dispatcher, workers, preemption } = serve.places(allowed)?;
        Ok((dispatcher, workers, preemption == Preemption::Dispatcher))
    }

    #[test]
    fn addresses_and_sizes_are_read_or_have_a_remedy() {
        assert_eq!(address("[::1]:7").map(|at| at.port()), Ok(7));
        for (bad, said) in [
            (
                "8080",
                "write an address and a port: 127.0.0.1:8080 for callers on this host alone, or 0.0.0.0:8080",
            ),
            (":81", "127.0.0.1:81 for"),
            ("localhost:82", "127.0.0.1:82 for"),
            ("http://127.0.0.1:83", "127.0.0.1:83 for"),
            ("127.0.0.1", "127.0.0.1:8080 for"),
            ("127.0.0.1:99999", "127.0.0.1:8080 for"),
            ("", "127.0.0.1:8080 for"),
        ] {
            let refused = address(bad).unwrap_err();
            assert!(refused.contains(said), "{bad}: {refused}");
        }
        for (text, number) in
            [("0", 0), ("65536", 65_536), ("1M", 1 << 20), ("3K", 3072), ("2GiB", 2 << 30)]
        {
            assert_eq!(bytes(text), Ok(number), "{text}");
        }
        for bad in ["", "M", "-1", "1.5G", "1MB", "1 M", "iB", "1iB", "1m", "99999999999T"] {
            assert!(bytes(bad).unwrap_err().contains("such as `65536`, `512M`"), "{bad}");
        }
        let line = |flag: &str, text: &str| match Line::try_parse_from(["fn", flag, text]) {
            Ok(line) => Ok(line.serve.memory),
            Err(error) => Err(error.to_string()),
        };
        assert_eq!((line("--memory", "1M"), line("--timer", "1ms")), (Ok(1 << 20), Ok(1 << 30)));
        let refused = line("--http", "8080").unwrap_err();
        assert!(
            refused.contains("'8080' for '--http") && refused.contains("127.0.0.1:8080"),
            "{refused}"
        );
    }

    #[test]
    fn the_dispatcher_has_a_cpu_where_one_is_to_spare() {
        assert_eq!(places(&[], &[0, 1, 2]), Ok((Some(2), vec![0, 1], true)));
        assert_eq!(places(&[], &[0, 1]), Ok((Some(1), vec![0], true)));
        assert_eq!(places(&[], &[3]), Ok((None, vec![3], false)));
        assert_eq!(places(&["--timer", "50us"], &[0, 1]), Ok((None, vec![0, 1], false)));
        let short = places(&["--timer", "1ns"], &[0, 1]).unwrap_err();
        assert!(short.contains("write 20us or more"), "{short}");
        assert_eq!(places(&["--timer", "20us"], &[0, 1]), Ok((None, vec![0, 1], false)));
        assert_eq!(places(&["--cpus", "0-1"], &[0, 1]), Ok((None, vec![0, 1], false)));
        assert_eq!(places(&["--cpus", "1"], &[0, 1]), Ok((Some(0), vec![1], true)));
        assert_eq!(places(&["--dispatcher-cpu", "0"], &[0, 1]), Ok((Some(0), vec![1], true)));
        let shared = places(&["--dispatcher-cpu", "0", "--cpus", "0"], &[0, 1]);
        assert_eq!(shared, Ok((Some(0), vec![0], false)));
        assert!(places(&["--cpus", "7"], &[0, 1]).unwrap_err().contains("CPU 7 is none of this"));
        for bad in ["", "a", "1-0", "0,0", "5000"] {
            assert!(places(&["--cpus", bad], &[0, 1]).is_err(), "{bad}");
        }
    }
}
