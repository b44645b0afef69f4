//! How long the compiler takes for stubs of partywall-build, beside those of tonic-prost-build.
//!
//! ```sh
//! cargo bench -p partywall-bench --bench compile
//! cargo bench -p partywall-bench --bench compile -- 30
//! ```
//!
//! The argument is how many pairs are measured. One program for each generator serves and calls a hundred
//! unary methods, each with messages of its own. The two programs differ in their stubs alone, and take their
//! crates from the workspace's lock file. All that they depend on is compiled before, and both have to answer
//! right. Then Cargo compiles them in turns, optimised.
//!
//! The bound is 1.3 of both figures: the time that passes, and the CPU time of Cargo and the compiler. A
//! verdict is `pass` or `FAIL` where all of the 95 % interval of the ratio's median is on one side of the
//! bound.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

#[path = "../pairs/summary.rs"]
mod summary;

use summary::summary;

/// Of the time with the stubs of tonic-prost-build.
const WANTED: f64 = 1.3;
const METHODS: usize = 100;
const PAIRS: usize = 15;
/// With fewer there is no interval.
const FEWEST: usize = 6;
/// Pairs that are not counted.
const WARM_UP: usize = 1;

type Failure = Box<dyn Error>;

/// A program for each generator: ours, tonic's.
const PROGRAMS: [&str; 2] = ["by-partywall-build", "by-tonic-prost-build"];

/// What compiling took.
#[derive(Clone, Copy)]
struct Took {
    /// Seconds that passed.
    passed: f64,
    /// Seconds of CPU time.
    cpu: f64,
}

/// The two programs, in a workspace of their own.
struct Programs {
    directory: PathBuf,
    source: String,
}

impl Programs {
    fn write() -> Result<Self, Failure> {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let repository = own.ancestors().nth(2).ok_or("no repository around the crate")?;
        let programs = Self {
            directory: Path::new(env!("CARGO_TARGET_TMPDIR")).join("compile"),
            source: source(),
        };
        let proto = programs.directory.join("hundred.proto");
        for program in PROGRAMS {
            let sources = programs.directory.join(program).join("src");
            std::fs::create_dir_all(&sources)?;
            std::fs::write(
                programs.directory.join(program).join("Cargo.toml"),
                manifest(program, repository),
            )?;
            programs.change(program)?;
        }
        std::fs::write(&proto, proto_file())?;
        let [ours, tonics] = PROGRAMS.map(|program| programs.directory.join(program).join("src"));
        partywall_build::configure()
            .emit_rerun_if_changed(false)
            .out_dir(ours)
            .compile_protos(&[&proto], &[&programs.directory])?;
        let files = protox::compile([&proto], [&programs.directory])?;
        tonic_prost_build::configure().out_dir(tonics).compile_fds(files)?;

        let check = programs.directory.join("check");
        std::fs::create_dir_all(check.join("src"))?;
        std::fs::write(check.join("Cargo.toml"), CHECK_MANIFEST)?;
        std::fs::write(check.join("src/main.rs"), CHECK)?;
        std::fs::write(programs.directory.join("Cargo.toml"), WORKSPACE)?;
        std::fs::copy(repository.join("Cargo.lock"), programs.directory.join("Cargo.lock"))?;
        Ok(programs)
    }

    /// Has Cargo compile a program again.
    fn change(&self, program: &str) -> Result<(), Failure> {
        Ok(std::fs::write(self.directory.join(program).join("src/lib.rs"), &self.source)?)
    }

    fn cargo(&self, arguments: &[&str]) -> Result<(), Failure> {
        let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
        let mut command = Command::new(cargo);
        command.args(arguments).args(["--release", "--offline", "--quiet"]);
        command.current_dir(&self.directory).env("CARGO_TARGET_DIR", self.directory.join("target"));
        match command.status()?.success() {
            true => Ok(()),
            false => {
                Err(format!("cargo {} failed in {}", arguments.join(" "), self.directory.display())
                    .into())
            }
        }
    }

    /// Compiles a program, with all that it needs at hand.
    fn compile(&self, program: &str) -> Result<Took, Failure> {
        self.change(program)?;
        let (start, cpu) = (Instant::now(), cpu_of_children()?);
        self.cargo(&["build", "-p", program])?;
        Ok(Took { passed: start.elapsed().as_secs_f64(), cpu: cpu_of_children()? - cpu })
    }
}

/// Seconds of CPU time of all processes that this one has started, and that have ended.
fn cpu_of_children() -> Result<f64, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("/proc/self/stat has no name")?;
    let mut fields = fields.split(' ').skip(13).map(str::parse::<u64>);
    let mut next = || fields.next().ok_or("/proc/self/stat is too short");
    let (user, system) = (next()??, next()??);
    Ok((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64)
}

const WORKSPACE: &str = r#"[workspace]
resolver = "3"
members = ["by-partywall-build", "by-tonic-prost-build", "check"]
"#;

fn manifest(program: &str, repository: &Path) -> String {
    let partywall = repository.join("crates/partywall");
    format!(
        r#"[package]
name = "{program}"
version = "0.0.0"
edition = "2024"

[dependencies]
partywall = {{ path = {partywall:?} }}
prost = "0.14"
tonic = "0.14"
tonic-prost = "0.14"
"#
    )
}

fn proto_file() -> String {
    let mut text = String::from("syntax = \"proto3\";\npackage hundred;\nservice Hundred {\n");
    for n in 0..METHODS {
        let _ = writeln!(text, "  rpc Method{n}(Request{n}) returns (Reply{n});");
    }
    text.push_str("}\n");
    for n in 0..METHODS {
        let _ = writeln!(text, "message Request{n} {{ string name = 1; uint64 number = 2; }}");
        let _ = writeln!(text, "message Reply{n} {{ string name = 1; uint64 number = 2; }}");
    }
    text
}

/// Both programs, beside their stubs.
fn source() -> String {
    let mut text = String::from(
        "#[path = \"hundred.rs\"]
pub mod hundred;

use std::pin::Pin;

use hundred::hundred_client::HundredClient;
use hundred::hundred_server::{Hundred, HundredServer};
use hundred::*;
use tonic::{Request, Response, Status};

type Client = HundredClient<partywall::Channel>;
type Answer<'a> = Pin<Box<dyn Future<Output = Result<u64, Status>> + Send + 'a>>;

pub fn services() -> partywall::Router {
    partywall::Server::builder().add_service(HundredServer::new(Service))
}

pub fn client(channel: partywall::Channel) -> Client {
    HundredClient::new(channel)
}

struct Service;

#[tonic::async_trait]
impl Hundred for Service {
",
    );
    for n in 0..METHODS {
        let _ = writeln!(
            text,
            "    async fn method{n}(&self, request: Request<Request{n}>) -> Result<Response<Reply{n}>, Status> {{
        let Request{n} {{ name, number }} = request.into_inner();
        Ok(Response::new(Reply{n} {{ name, number: number + {n} }}))
    }}"
        );
    }
    let _ = writeln!(
        text,
        "}}\npub static CALLS: [for<'a> fn(&'a mut Client) -> Answer<'a>; {METHODS}] = ["
    );
    for n in 0..METHODS {
        let _ = writeln!(text, "    |client| Box::pin(call_method{n}(client)),");
    }
    text.push_str("];\n");
    for n in 0..METHODS {
        let _ = writeln!(
            text,
            "async fn call_method{n}(client: &mut Client) -> Result<u64, Status> {{
    let request = Request{n} {{ name: String::from(\"{n}\"), number: 1000 }};
    let Reply{n} {{ name, number }} = client.method{n}(request).await?.into_inner();
    if name == \"{n}\" {{ Ok(number) }} else {{ Err(Status::data_loss(name)) }}
}}"
        );
    }
    text
}

const CHECK_MANIFEST: &str = r#"[package]
name = "check"
version = "0.0.0"
edition = "2024"

[dependencies]
by-partywall-build = { path = "../by-partywall-build" }
by-tonic-prost-build = { path = "../by-tonic-prost-build" }
tokio = { version = "1", features = ["macros", "rt"] }
"#;

/// Each method answers, on the first call of the service and on later ones.
const CHECK: &str = "macro_rules! check {
    ($program:ident) => {
        let services = $program::services().in_process().expect(\"a channel\");
        let mut client = $program::client(services);
        for _ in 0..2 {
            for (n, call) in $program::CALLS.iter().enumerate() {
                assert_eq!(call(&mut client).await.expect(\"an answer\"), 1000 + n as u64);
            }
        }
    };
}

#[tokio::main(flavor = \"current_thread\")]
async fn main() {
    check!(by_partywall_build);
    check!(by_tonic_prost_build);
}
";

/// Prints one figure of all pairs (ours, tonic's); false if the bound is missed.
fn judge(figure: &str, pairs: &[[f64; 2]]) -> bool {
    let [ours, _, _] = summary(pairs.iter().map(|[ours, _]| *ours).collect());
    let [tonics, _, _] = summary(pairs.iter().map(|[_, tonics]| *tonics).collect());
    let [ratio, low, high] = summary(pairs.iter().map(|[ours, tonics]| ours / tonics).collect());
    let verdict = match () {
        () if high <= WANTED => "pass",
        () if low > WANTED => "FAIL",
        () => "undecided",
    };
    println!(
        "{figure:>8}: ours {ours:.2} s, tonic's {tonics:.2} s; ratio {ratio:.3} [{low:.3}, {high:.3}], wanted \
         {WANTED}: {verdict}"
    );
    verdict != "FAIL"
}

fn main() -> Result<ExitCode, Failure> {
    let argument = std::env::args().skip(1).find(|argument| argument != "--bench");
    let pairs = argument.map_or(Ok(PAIRS), |pairs| pairs.parse())?;
    if pairs < FEWEST {
        let text = format!("{pairs} pairs have no interval; remedy: ask for {FEWEST} or more");
        return Err(text.into());
    }
    let programs = Programs::write()?;
    programs.cargo(&["run", "-p", "check"])?;
    let (mut passed, mut cpu) = (Vec::new(), Vec::new());
    for pair in 0..WARM_UP + pairs {
        let [ours, tonics] = PROGRAMS;
        // Who is first takes turns.
        let (ours, tonics) = if pair % 2 == 0 {
            let first = programs.compile(ours)?;
            (first, programs.compile(tonics)?)
        } else {
            let first = programs.compile(tonics)?;
            (programs.compile(ours)?, first)
        };
        if pair >= WARM_UP {
            passed.push([ours.passed, tonics.passed]);
            cpu.push([ours.cpu, tonics.cpu]);
        }
    }
    let holds = [judge("time", &passed), judge("CPU time", &cpu)];
    Ok(if holds == [true; 2] { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
