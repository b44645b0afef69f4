//! The `partywall` command.
#![forbid(unsafe_code)]

mod build;
mod ca;
mod call;
mod compose;
mod coordinator;
mod demands;
mod doctor;
mod domain;
mod files;
mod functions;
mod isolation;
mod launcher;
mod links;
#[cfg_attr(not(feature = "prometheus"), path = "no_metrics.rs")]
mod metrics;
mod policy;
mod project;
mod ps;
mod receipt;
mod sign;
mod socket;
mod terminal;
mod trace;
mod up;

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::{CommandFactory, Parser, Subcommand};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use tracing_appender::non_blocking::NonBlocking;
use tracing_subscriber::EnvFilter;

const EXAMPLES: &str = "\
Examples:
  partywall up compose.yaml                    build and run the services of a Compose file
  partywall compose up compose.yaml            the same in containers, by docker compose
  partywall links                              who calls whom
  partywall call greeter hello.Greeter/SayHello --data '{}'
  partywall watch --json | jq .calls           each change as an object
  partywall policy check policy.toml           whether a coordinator takes this policy
  partywall policy explain --policy policy.toml web greeter helloworld.Greeter/SayHello
  partywall fn new shout                       a function to begin with; `partywall fn --help` has more
  partywall sign target/release/web --service web --key builder.key
  partywall ca init /var/lib/partywall/authority
  partywall coordinator --policy policy.toml   a coordinator of its own, without `up`
  source <(partywall completions bash)         completion of these commands
  partywall manual | man -l -                  this text as a manual page

Environment:
  PARTYWALL_SOCKET           where the coordinator listens, for these commands and for services
  PARTYWALL_COORDINATOR_UID  the user whose coordinator is trusted; unless set, one's own and root
  PARTYWALL_LOG, RUST_LOG    what is logged, such as `debug` or `partywall_coordinator=info`; the
                             former wins. Unless set, warnings. `up` passes both to services
  XDG_RUNTIME_DIR            where `up` has its sockets (else the directory for temporary files), and
                             where a user's coordinator is looked for
  NO_COLOR                   set: names before lines of services have no colour

The form of a policy is in docs/policy.md of the source; `policy check` names each mistake.
Commands end with status 0, or 1 and the reason on standard error; with 2 for wrong arguments. That of
`up` is its services'.";

const UP: &str = "\
Each line of a service has its name before it. What `up` says of itself is on standard error; the
line `export PARTYWALL_SOCKET=...` has `links`, `ps`, `watch` and `domain` in another shell find this
run. Ctrl-C, SIGTERM, SIGQUIT and SIGHUP stop all services, by their `stop_signal`, and kill them
after their `stop_grace_period` (5 s unless set); the second one kills at once.

Keys of `x-partywall`: package (a Cargo package) and bin, or program (a file); args; link (ring or
domain); isolation (protection-keys, prefer or none, with `link: domain`); calls (what the service may call, as
SERVICE/package.Service/Method or SERVICE/*); descriptors (how many may cross beside a message of its
calls); leases (whether leases may be among them). That of the whole file: signed, keys, revoked (whether and by
whom programs have to be signed). Of Compose's own keys these count: depends_on,
environment, working_dir, restart, stop_signal, stop_grace_period. Keys that would protect or limit
the service are refused, for `up` starts plain processes; the others are named in a note.

A service has the variables of its `environment`, PARTYWALL_FD (its socket to the coordinator),
PARTYWALL_RUN_DIR (a directory of this run for sockets, which the file may name as well) and, unless its
`environment` sets them, `up`'s PATH, LANG, HOME, PARTYWALL_LOG, RUST_LOG and RUST_BACKTRACE; nothing else.

The exit status is that of the first service that did not end well; 128 and the signal's number after one.";

/// Calls between services on one host, through shared memory.
#[derive(Parser)]
#[command(name = "partywall", version, arg_required_else_help = true)]
#[command(after_long_help = EXAMPLES, after_help = "`--help` has examples and the environment.")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build and run the services of a Compose file, with a coordinator of their own.
    #[command(after_long_help = UP)]
    Up(up::Arguments),
    /// Run the services of a Compose file in containers, with a coordinator on this host.
    #[command(after_long_help = project::HELP)]
    Compose {
        #[command(subcommand)]
        order: project::Order,
    },
    /// Call a method with JSON, or list what a service has.
    #[command(after_help = call::HELP)]
    Call(call::Arguments),
    /// Run a coordinator until it is stopped.
    Coordinator(coordinator::Arguments),
    /// Check a policy, ask what it says, or have it read again.
    Policy {
        #[command(subcommand)]
        order: policy::Order,
    },
    /// Make, replace and show the authority that certifies processes.
    #[command(after_help = ca::HELP)]
    Ca {
        #[command(subcommand)]
        order: ca::Order,
    },
    /// Sign a program as a service, or make a key for that.
    #[command(after_help = sign::SIGN_HELP)]
    Sign(sign::Sign),
    /// Verify the signature of a program.
    #[command(after_help = sign::VERIFY_HELP)]
    Verify(sign::Verify),
    /// Verify receipts of signed messages, as an audit log has them: who has said what.
    #[command(after_help = receipt::HELP)]
    VerifyReceipt(receipt::Arguments),
    /// Show what this machine offers to keep services apart, what links would be like on it, and whether
    /// functions can be built and run.
    Doctor(doctor::Arguments),
    /// Show who calls whom, over which link and with which isolation.
    #[command(after_help = links::HELP)]
    Links(links::Arguments),
    /// Show the links again and again: the table on a terminal, else each change.
    #[command(after_help = links::HELP)]
    Watch(links::Watch),
    /// Show what crosses a link, record by record: of a sealed one what is encrypted.
    #[command(after_help = trace::HELP)]
    Trace(trace::Arguments),
    /// Show the services of an `up`, and the processes at the ends of links.
    #[command(after_help = ps::HELP)]
    Ps(ps::Arguments),
    /// Open and close the gates of services that run as domains.
    Domain {
        #[command(subcommand)]
        order: domain::Order,
    },
    /// Write, deploy, call and serve functions.
    #[command(after_help = functions::HELP)]
    Fn {
        #[command(subcommand)]
        order: functions::Order,
    },
    /// Print what a shell needs to complete these commands.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print this help as a manual page.
    Manual,
    /// Build one function in a sandbox, whose builder starts this.
    #[command(hide = true, name = functions::SANDBOX)]
    FnSandbox {
        /// Its role.
        role: String,
    },
    /// Hold the domains of one `up`, which starts this.
    #[command(hide = true)]
    Launcher {
        /// What keeps them apart.
        #[arg(value_parser = isolation::of_domains)]
        isolation: partywall::Isolation,
    },
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    let log = tracing_subscriber::fmt().with_env_filter(filter());
    // `up` and a coordinator wait for nobody who reads their log and remarks: a thread writes them, and
    // what that has no room for is left out.
    let mut _written = None;
    if matches!(command, Command::Up(_) | Command::Coordinator(_)) {
        let (writer, guard) = tracing_appender::non_blocking(std::io::stderr());
        _written = Some(guard);
        let writer = REMARKS.get_or_init(|| writer);
        log.with_writer(|| writer.clone()).init();
    } else {
        log.with_writer(std::io::stderr).init();
    }
    let done = match command {
        Command::Up(arguments) => up::run(&arguments),
        Command::Compose { order } => project::run(order),
        Command::Call(arguments) => call::run(&arguments),
        Command::Coordinator(arguments) => coordinator::run(&arguments),
        Command::Policy { order } => policy::run(&order),
        Command::Ca { order } => ca::run(&order),
        Command::Sign(sign) => sign.run(),
        Command::Verify(verify) => verify.run(),
        Command::VerifyReceipt(arguments) => receipt::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Links(arguments) => links::run(&arguments),
        Command::Watch(arguments) => links::watch(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Ps(arguments) => ps::run(&arguments),
        Command::Domain { order } => domain::run(&order),
        Command::Fn { order } => functions::run(&order),
        Command::FnSandbox { role } => Ok(partywall_functions::sandbox::main(&role).into()),
        Command::Completions { shell } => completions(shell),
        Command::Manual => manual(),
        Command::Launcher { isolation } => launcher::run(isolation),
    };
    done.unwrap_or_else(|error| {
        if error.is::<Unread>() {
            return ExitCode::SUCCESS;
        }
        remark(&format!("partywall: {error}"));
        ExitCode::FAILURE
    })
}

/// What is logged: as `PARTYWALL_LOG` says, or as `RUST_LOG` does, else warnings.
fn filter() -> EnvFilter {
    for name in ["PARTYWALL_LOG", "RUST_LOG"] {
        let Some(text) = std::env::var(name).ok().filter(|text| !text.is_empty()) else { continue };
        match EnvFilter::try_new(&text) {
            Ok(filter) => return filter,
            Err(error) => remark(&format!(
                "partywall: {name}=`{text}` is ignored: {error}; write a level, such as `debug`, or \
                 TARGET=LEVEL"
            )),
        }
    }
    EnvFilter::new("warn")
}

fn completions(shell: clap_complete::Shell) -> Result<ExitCode, Box<dyn Error>> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "partywall", &mut text);
    say(&String::from_utf8(text)?)?;
    Ok(ExitCode::SUCCESS)
}

/// One page: the command, then each of its subcommands with its own.
fn manual() -> Result<ExitCode, Box<dyn Error>> {
    let mut text = Vec::new();
    let mut command = Arguments::command();
    command.build();
    let man = Man::new(command.clone());
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    let mut commands = Roff::new();
    commands.control("SH", ["COMMANDS"]);
    for sub in shown(&command) {
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        commands.control("TP", []).text([bold(sub.get_name())]).text([roman(about)]);
    }
    commands.to_writer(&mut text)?;
    after_help(&command, &mut text)?;
    for sub in shown(&command) {
        page(sub, &mut text)?;
        for below in shown(sub) {
            page(below, &mut text)?;
        }
    }
    say(&String::from_utf8(text)?)?;
    Ok(ExitCode::SUCCESS)
}

fn shown(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

/// The sections of a subcommand, under a heading of its own.
fn page(command: &clap::Command, text: &mut Vec<u8>) -> Result<(), Box<dyn Error>> {
    let name = command.get_display_name().unwrap_or_default().replace('-', " ").to_uppercase();
    Roff::new().control("SH", [name.as_str()]).to_writer(text)?;
    let man = Man::new(command.clone());
    for section in [Man::render_synopsis_section, Man::render_description_section] {
        section(&man, text)?;
    }
    man.render_options_section(text)?;
    after_help(command, text)
}

/// What a help says after its options, in lines as they are there.
fn after_help(command: &clap::Command, text: &mut Vec<u8>) -> Result<(), Box<dyn Error>> {
    let Some(after) = command.get_after_long_help().or(command.get_after_help()) else {
        return Ok(());
    };
    let mut roff = Roff::new();
    roff.control("PP", []).control("nf", []);
    for line in after.to_string().lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []).to_writer(text)?;
    Ok(())
}

/// Standard output is a pipe, and who read it wants no more: the command ends, and well.
#[derive(Debug, thiserror::Error)]
#[error("standard output: nobody reads it any more")]
struct Unread;

/// Writes to standard output what a terminal may show.
fn say(text: &str) -> Result<(), Box<dyn Error>> {
    write_out(&terminal::printable(text))
}

/// Writes to standard output, which may be a full disk or a pipe that nobody reads any more.
fn write_out(text: &str) -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    let said = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    said.map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Unread.into(),
        _ => format!("standard output: {error}").into(),
    })
}

/// What writes remarks, where a thread does.
static REMARKS: OnceLock<NonBlocking> = OnceLock::new();

/// Writes a line that a terminal may show to standard error, whole. Where that cannot be written, the exit
/// status has to do.
fn remark(line: &str) {
    let line = format!("{}\n", terminal::printable(line));
    let _unsaid = match REMARKS.get() {
        Some(writer) => writer.clone().write_all(line.as_bytes()),
        None => std::io::stderr().write_all(line.as_bytes()),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn help_names_every_variable_that_is_read() {
        let help = Arguments::command().render_long_help().to_string();
        for name in ["PARTYWALL_SOCKET", "PARTYWALL_COORDINATOR_UID", "PARTYWALL_LOG", "RUST_LOG"] {
            assert!(help.contains(name), "{name}");
        }
        assert!(help.contains("Examples:") && help.contains("partywall up compose.yaml"), "{help}");
    }

    /// The commands of a text: of its blocks for a shell, and of lines indented by two blanks.
    fn commands(text: &str) -> Vec<Vec<String>> {
        let mut shell = false;
        let mut found = Vec::new();
        for line in text.lines() {
            match line.strip_prefix("```") {
                Some(kind) => shell = kind == "sh",
                None if shell || line.starts_with("  partywall ") => {
                    let line = line.split("   ").find(|part| !part.is_empty()).unwrap_or_default();
                    let ours = ["cargo run --release -- ", "cargo run -- ", "partywall "];
                    let Some((_, rest)) = ours.iter().find_map(|ours| line.split_once(ours)) else {
                        continue;
                    };
                    let ends = |word: &&str| !["|", "&", "#", ">"].contains(word);
                    let words = rest.split_whitespace().take_while(ends).map(String::from);
                    found.push(words.collect());
                }
                None => {}
            }
        }
        found
    }

    /// README.md first, then the other pages for users, with their names.
    fn documents() -> Vec<(String, String)> {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let pages = ["README.md", "examples/README.md"].map(str::to_owned);
        let examples = ["camera", "wordcount"].map(|of| format!("examples/{of}/README.md"));
        let mut files: Vec<_> = pages.iter().chain(&examples).map(|page| root.join(page)).collect();
        let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
        files.extend(docs.filter(|path| path.extension().is_some_and(|e| e == "md")));
        let read = |file: &std::path::PathBuf| std::fs::read_to_string(file).unwrap();
        files.iter().map(|file| (file.display().to_string(), read(file))).collect()
    }

    /// The blocks of this kind.
    fn blocks<'t>(text: &'t str, kind: &str) -> Vec<&'t str> {
        let mut parts = text.split("\n```").skip(1).step_by(2);
        let mut found = Vec::new();
        for part in &mut parts {
            found.extend(part.strip_prefix(kind).and_then(|rest| rest.strip_prefix('\n')));
        }
        found
    }

    #[test]
    fn policies_and_compose_files_of_the_documents_are_good() {
        let (mut policies, mut composes, mut of_functions) = (0, 0, 0);
        for (from, text) in documents() {
            for block in blocks(&text, "toml").into_iter().filter(|b| b.contains("[service.")) {
                // As the command adds it.
                let store = match block.starts_with("# For `partywall compose`") {
                    true => "\n[engine.docker]\n[principal.store]\ncontainer = []\n",
                    false => "",
                };
                let policy =
                    partywall_coordinator::Policy::parse(&from, &format!("{block}{store}"));
                assert!(policy.is_ok(), "{from}: {}\n{block}", policy.unwrap_err());
                policies += 1;
            }
            for block in blocks(&text, "toml").into_iter().filter(|b| b.contains("[owner.")) {
                let policy = partywall_fn_host::policy::Policy::parse(&from, block);
                assert!(policy.is_ok(), "{from}: {}\n{block}", policy.unwrap_err());
                of_functions += 1;
            }
            for block in blocks(&text, "yaml").into_iter().filter(|b| b.contains("x-partywall")) {
                // What belongs to a service alone is put into one.
                let block = match block.starts_with("x-partywall") {
                    true => format!("services:\n  a:\n    {}", block.replace('\n', "\n    ")),
                    false => block.to_owned(),
                };
                let dir = tempfile::tempdir().unwrap();
                let file = dir.path().join("compose.yaml");
                std::fs::write(&file, &block).unwrap();
                composes += 1;
                if block.contains("image:") {
                    // For containers.
                    let read = compose::load_containers(&[file], &|_| None);
                    let read = read.unwrap_or_else(|e| panic!("{from}: {e}\n{block}"));
                    assert!(read.notes.is_empty() && !read.services.is_empty(), "{from}\n{block}");
                    continue;
                }
                let compose = compose::load(&file, &|_| None);
                let compose = compose.unwrap_or_else(|e| panic!("{from}: {e}\n{block}"));
                assert_eq!(compose.notes, Vec::<String>::new(), "{from}\n{block}");
            }
        }
        assert!(policies >= 2 && composes >= 3, "{policies} policies, {composes} Compose files");
        assert!(of_functions >= 1, "{of_functions} policies of function hosts");
    }

    #[test]
    fn every_command_of_the_documents_is_one_that_there_is() {
        let mut texts = documents();
        texts.push(("EXAMPLES".into(), EXAMPLES.into()));
        for (from, text) in &texts {
            for words in commands(text) {
                let line = [vec!["partywall".to_owned()], words].concat();
                if let Err(error) = Arguments::try_parse_from(&line) {
                    panic!("{from}: {}: {error}", line.join(" "));
                }
            }
        }
        let (readme, examples) = (commands(&texts[0].1).len(), commands(EXAMPLES).len());
        assert!(readme > 9 && examples > 6, "{readme} and {examples} commands were found");
    }
}
