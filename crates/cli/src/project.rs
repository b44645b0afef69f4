//! `partywall compose`: the services of Compose files in containers, with a coordinator on the host.
//!
//! ```text
//! read the files -> directory -> coordinator -> the engine makes and starts the containers -> the end
//! ```
//!
//! The engine (`docker compose` or `docker-compose`) reads the same files, and after them an override that
//! this command writes: for each service with an `x-partywall` a read-only mount of the directory that has
//! nothing but the coordinator's socket, and the variables by which the library finds and trusts it.
//!
//! Who is who: a service is the containers that the engine's Compose has made for it, whenever that was. The
//! coordinator takes a container's id from control groups, and asks the engine what it was made for
//! ([`partywall_coordinator::engine`]). What lets a container connect at all is the mount of this run.
//!
//! # States
//!
//! The directory of a run ([`run_dir`]) is its only state. It is there from before the coordinator's start
//! until after its end, and until the engine has removed the containers. It is made exclusively, so that
//! there is one run of a project at a time.
//!
//! - A step that fails, and Ctrl-C, SIGTERM, SIGQUIT and SIGHUP, undo what was done: containers and networks
//!   are removed (`down`), the coordinator ends, the directory is removed. Where the engine cannot remove the
//!   containers, the directory stays and is named, for `partywall compose down`.
//! - When this process dies by SIGKILL, the containers and the coordinator go on, as after `up -d`;
//!   `partywall compose down` ends them.
//! - When the coordinator dies, links go on; this process ends the run, and after `up -d` somebody else does.
//! - When the engine dies, its containers may go on or not; the coordinator sees links end. The engine's
//!   Compose ends then, and with it the run, which stays to be undone by `down`.
//! - Two of these commands at once: `down` removes the directory last, and whoever does not find it any more
//!   has nothing to undo.

mod command;
mod engine;
mod rules;
mod run_dir;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use tokio::sync::oneshot;

use crate::compose::{self, Containers};
use crate::up::{Signals, Stop};
use command::Compose;
use engine::{Engine, Mapping};
use run_dir::{Record, RunDir};

/// More on these commands.
pub(crate) const HELP: &str = "\
The engine's Compose reads the files, and an override that mounts the coordinator's socket into each service
that has an `x-partywall`, read-only. A service may serve its own name, and call what its `calls` list; with
--policy, what that file says. Keys of `x-partywall` that count here: calls, descriptors and leases; the
others are for `partywall up`. Needs root, or CAP_SYS_PTRACE, to know which container a process is in.

`up` ends all at Ctrl-C, and when the engine's Compose ends; `up -d` leaves all running until `down`.";

/// Root of a container with users of its own may say to the kernel that it is another process there.
const REMAPPED: &str = "the engine gives containers users of their own (userns-remap), whose root may claim other \
     process numbers: so the coordinator does not know which container such a process is in, and `calls` allow \
     nothing; write a policy that goes by `uid` (--policy FILE), or use an engine without userns-remap";

/// What is to be done with a project.
#[derive(Subcommand)]
pub(crate) enum Order {
    /// Make and start the containers of Compose files, with a coordinator of their own.
    Up(Up),
    /// Remove the containers and networks of a project, and end its coordinator.
    Down(Which),
    /// Show the containers of a project, and how its links are listed.
    Ps(Which),
    /// Show what the containers of a project have said.
    Logs(Logs),
}

/// Which project is meant.
#[derive(clap::Args)]
pub(crate) struct Which {
    /// The Compose file.
    file: Option<PathBuf>,
    /// A further Compose file, on top of those before it.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The project's name, as Compose has it: unless given, COMPOSE_PROJECT_NAME, else the last `name` of the
    /// files, else that of the first file's directory.
    #[arg(short, long, value_name = "NAME")]
    project: Option<String>,
}

/// What is to be started, and how.
#[derive(clap::Args)]
pub(crate) struct Up {
    #[command(flatten)]
    which: Which,
    /// Leave all running in the background, until `down`.
    #[arg(short, long)]
    detach: bool,
    /// Build images first.
    #[arg(long)]
    build: bool,
    /// The coordinator's policy, instead of the files' `calls`: principals of the services' names are their
    /// containers, and need no table there.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
}

/// Whose words are wanted.
#[derive(clap::Args)]
pub(crate) struct Logs {
    #[command(flatten)]
    which: Which,
    /// Go on with what they say from now on.
    #[arg(long)]
    follow: bool,
    /// This service alone; may be given several times.
    #[arg(long = "service", value_name = "NAME")]
    services: Vec<String>,
}

/// Does it.
pub(crate) fn run(order: Order) -> Result<ExitCode, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        match order {
            Order::Up(arguments) => up(arguments).await,
            Order::Down(which) => down(&which).await,
            Order::Ps(which) => ps(&which).await,
            Order::Logs(arguments) => logs(&arguments).await,
        }
    });
    runtime.shutdown_background();
    done
}

impl Which {
    /// All files, in their order, by absolute paths.
    fn paths(&self) -> Result<Vec<PathBuf>, Box<dyn Error>> {
        let given = self.file.iter().chain(&self.files);
        let absolute = |file: &PathBuf| {
            std::path::absolute(file).map_err(|e| format!("{}: {e}", file.display()).into())
        };
        given.map(absolute).collect()
    }

    fn project(&self) -> Result<Named, Box<dyn Error>> {
        let paths = self.paths()?;
        let read = match paths.is_empty() {
            true => None,
            false => Some(compose::load_containers(&paths, &|name| std::env::var(name).ok())?),
        };
        let of_environment = std::env::var("COMPOSE_PROJECT_NAME").ok().filter(|n| !n.is_empty());
        let of_files = read.as_ref().and_then(|read| read.name.clone());
        let said = self.project.clone().or(of_environment).or(of_files);
        let name = match (said, paths.first()) {
            (Some(name), _) => name,
            (None, Some(first)) => name_of_directory(first)?,
            (None, None) => {
                return Err("no project: name a Compose file, or a project by -p".into());
            }
        };
        check_name(&name)?;
        Ok(Named { project: name, paths, read })
    }
}

/// A project that was found out.
struct Named {
    project: String,
    paths: Vec<PathBuf>,
    /// What the files say, if some were named.
    read: Option<Containers>,
}

/// As Compose makes a name of a directory's.
fn name_of_directory(file: &Path) -> Result<String, String> {
    let directory = file.parent().and_then(Path::file_name).unwrap_or_default();
    let lower = directory.to_string_lossy().to_lowercase();
    let kept = lower.chars().filter(|c| c.is_ascii_alphanumeric() || "_-".contains(*c));
    let name: String = kept.skip_while(|c| "_-".contains(*c)).collect();
    match name.is_empty() {
        true => Err(format!(
            "{}: its directory's name makes no project's; give one by -p",
            file.display()
        )),
        false => Ok(name),
    }
}

/// It is a part of paths and of the engine's commands.
fn check_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    if begins && name.chars().all(plain) && name.len() <= 63 {
        return Ok(());
    }
    Err(format!(
        "project `{}`: a project's name has 1 to 63 bytes of `a-z 0-9 _ -` and begins with a letter or digit; \
         give such a one by -p",
        name.escape_debug()
    ))
}

async fn up(arguments: Up) -> Result<ExitCode, Box<dyn Error>> {
    let Named { project, paths, read } = arguments.which.project()?;
    let read = read.ok_or("name the Compose file to start")?;
    for note in &read.notes {
        crate::remark(&format!("note: {note}"));
    }
    let api = engine::api()?;
    let policy = rules::policy_of(&project, &read, arguments.policy.as_deref(), &api)?;
    check_rights()?;
    let engine = Engine::find()?;
    let mapping = engine.mapping(&api)?;
    partywall_coordinator::engine::check(&api)
        .map_err(|why| format!("{}: {why}", api.display()))?;
    if mapping == Mapping::Remapped && arguments.policy.is_none() {
        return Err(REMAPPED.into());
    }
    let record = Record { files: paths, engine, api: Some(api) };
    let run = Run { dir: RunDir::create(&project)?, record };
    let (running, coordinated) = oneshot::channel();
    let (_said, unsaid) = oneshot::channel();
    let mut stop = Stop::new(unsaid, coordinated)?;
    let done = match run.prepare(&read, &policy, mapping) {
        Ok(()) => run.start(&arguments, running, &mut stop).await,
        Err(why) => Err(why),
    };
    match (&done, arguments.detach) {
        (Ok(code), true) if *code == ExitCode::SUCCESS => {
            crate::remark(&format!(
                "project `{project}` is up; `partywall compose down -p {project}` ends it"
            ));
            run.say_how_links_are_listed();
        }
        _ => {
            let undone = run.undo(stop.hurries()).await;
            if done.is_ok() {
                undone?;
            } else if let Err(why) = undone {
                crate::remark(&format!("partywall: {why}"));
            }
        }
    }
    done
}

/// A run of a project.
struct Run {
    dir: RunDir,
    record: Record,
}

impl Run {
    /// One that is there.
    fn of(which: &Which) -> Result<Self, Box<dyn Error>> {
        let Named { project, .. } = which.project()?;
        let dir = RunDir::of(&project)?;
        Ok(Self { record: dir.record()?, dir })
    }

    fn compose(&self) -> Compose {
        Compose::new(&self.record, &self.dir)
    }

    /// Writes what the coordinator and the engine are to read.
    fn prepare(
        &self,
        read: &Containers,
        policy: &str,
        mapping: Mapping,
    ) -> Result<(), Box<dyn Error>> {
        self.dir.write_record(&self.record)?;
        self.dir.write_override(read, mapping)?;
        self.dir.write_policy(policy)
    }

    /// From the coordinator's start to the end of all that was started, or with `-d` to its start.
    async fn start(
        &self,
        arguments: &Up,
        running: oneshot::Sender<()>,
        stop: &mut Stop,
    ) -> Result<ExitCode, Box<dyn Error>> {
        // What it refuses it would not take down either.
        let compose = self.compose();
        let checked = compose.run(&["config", "--quiet"], async || stop.wait().await).await?;
        if let Some(code) = checked {
            self.dir.remove_override()?;
            return Ok(code);
        }
        self.dir.start_coordinator(arguments.detach, running).await?;
        let mut order = vec!["up"];
        order.extend(arguments.build.then_some("--build"));
        if arguments.detach {
            order.push("-d");
        } else {
            self.say_how_links_are_listed();
        }
        let code = compose.run(&order, async || stop.wait().await).await?;
        Ok(code.unwrap_or(ExitCode::SUCCESS))
    }

    /// What the engine's Compose says, until a signal ends it.
    async fn show(&self, order: &[&str]) -> Result<Option<ExitCode>, Box<dyn Error>> {
        let mut signals = Signals::new()?;
        self.compose().run(order, async || signals.next().await).await
    }

    fn say_how_links_are_listed(&self) {
        crate::remark("`partywall links`, `ps` and `watch` find this run, in another shell, by");
        let socket = crate::up::quoted(&self.dir.socket());
        crate::remark(&format!("export PARTYWALL_SOCKET={socket}"));
    }

    /// Removes what the run has made, and its directory last. A signal meanwhile changes nothing, so that
    /// nothing is left half done.
    async fn undo(&self, hurries: bool) -> Result<(), Box<dyn Error>> {
        let mut signals = Signals::new()?;
        let removal = self.remove(hurries);
        tokio::pin!(removal);
        tokio::select! {
            removed = &mut removal => return removed,
            _ = signals.next() => {}
        }
        let project = self.dir.project();
        crate::remark(&format!("project `{project}` is being removed; a signal does not end that"));
        removal.await
    }

    async fn remove(&self, hurries: bool) -> Result<(), Box<dyn Error>> {
        let dir = &self.dir;
        if !dir.exists() {
            return Ok(());
        }
        // A service that is in the files no more is of this run as well.
        let mut order = vec!["down", "--remove-orphans"];
        order.extend(if hurries { &["-t", "0"][..] } else { &[] });
        let removed = match dir.has_override() {
            false => Ok(None),
            true => {
                let never = async || std::future::pending().await;
                self.compose().run(&order, never).await.map_err(|e| e.to_string())
            }
        };
        dir.stop_coordinator().await?;
        let left = match removed {
            Ok(None) => return dir.remove(),
            Ok(Some(_)) => "its Compose failed, as it says above".to_owned(),
            Err(why) => why,
        };
        let project = dir.project();
        Err(format!(
            "the engine has not removed the containers of project `{project}`: {left}; when it can, run \
             `partywall compose down -p {project}`"
        )
        .into())
    }
}

async fn down(which: &Which) -> Result<ExitCode, Box<dyn Error>> {
    Run::of(which)?.undo(false).await?;
    Ok(ExitCode::SUCCESS)
}

async fn ps(which: &Which) -> Result<ExitCode, Box<dyn Error>> {
    let run = Run::of(which)?;
    let code = run.show(&["ps"]).await?;
    match run.dir.has_coordinator() {
        true => run.say_how_links_are_listed(),
        false => crate::remark(
            "the coordinator has ended: links that are open go on, and no new ones are made",
        ),
    }
    Ok(code.unwrap_or(ExitCode::SUCCESS))
}

async fn logs(arguments: &Logs) -> Result<ExitCode, Box<dyn Error>> {
    let run = Run::of(&arguments.which)?;
    let mut order = vec!["logs"];
    order.extend(arguments.follow.then_some("--follow"));
    order.extend(arguments.services.iter().map(String::as_str));
    let code = run.show(&order).await?;
    Ok(code.unwrap_or(ExitCode::SUCCESS))
}

/// The coordinator has to see whose the namespaces of containers are.
fn check_rights() -> Result<(), Box<dyn Error>> {
    let effective = rustix::thread::capabilities(None)?.effective;
    if effective.contains(rustix::thread::CapabilitySet::SYS_PTRACE) {
        return Ok(());
    }
    Err("needs root, or CAP_SYS_PTRACE: without it the coordinator does not know which container a process is \
         in, and would refuse all; run it by sudo, or run the services as processes with `partywall up`"
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn project_is_named_as_compose_names_it() {
        let named = |file: &str| name_of_directory(Path::new(file));
        assert_eq!(named("/srv/My Shop/compose.yaml").unwrap(), "myshop");
        assert_eq!(named("/srv/_x-1/compose.yaml").unwrap(), "x-1");
        assert!(named("/compose.yaml").unwrap_err().contains("by -p"));
        assert!(check_name("shop_1-a").is_ok());
        for bad in ["", "Shop", "-p", "a/b", "..", "a b", &"x".repeat(64)] {
            assert!(check_name(bad).unwrap_err().contains("1 to 63 bytes"), "{bad}");
        }
    }
}
