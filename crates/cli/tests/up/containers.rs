//! `partywall compose` with an engine that is a script, without root.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process_group};

use super::domains::lives;
use super::newcomer::wait_for;
use super::{command, text};

/// Whose runs root tries these with, since root's own are in /run.
const USER: u32 = 65534;

/// A directory that is XDG_RUNTIME_DIR, with the engine's command and the run `shop`.
struct Shop {
    dir: tempfile::TempDir,
}

impl Shop {
    /// `docker` does this, once its process number is in the file `pid`.
    fn new(docker: &str) -> Self {
        let shop = Self { dir: tempfile::tempdir().unwrap() };
        let docker = format!(
            "#!/bin/sh\ncd {}\necho $$ > .pid && mv .pid pid\n{docker}\n",
            shop.dir.path().display()
        );
        fs::write(shop.path("docker"), docker).unwrap();
        shop.chmod("docker", 0o755);
        fs::create_dir_all(shop.run()).unwrap();
        fs::write(shop.run().join("run.json"), "{\"files\": [], \"engine\": \"plugin\"}").unwrap();
        fs::write(shop.run().join("override.json"), "{}").unwrap();
        if is_root() {
            let run = ["", "partywall", "partywall/compose", "partywall/compose/shop"];
            for dir in run {
                chown(shop.path(dir), Some(USER), Some(USER)).unwrap();
            }
        }
        shop
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self) -> PathBuf {
        self.path("partywall/compose/shop")
    }

    fn chmod(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// `partywall compose ORDER`, of a user who is not root.
    fn order(&self, order: &[&str]) -> Command {
        let mut command = command(&["compose"]);
        command.args(order).args(["-p", "shop"]).env("XDG_RUNTIME_DIR", self.dir.path());
        let path = format!("{}:{}", self.dir.path().display(), std::env::var("PATH").unwrap());
        command.env("PATH", path);
        if is_root() {
            command.uid(USER).gid(USER);
        }
        command
    }

    /// As at a terminal, in a process group of its own. Returns once `docker` runs, with its number.
    fn begin(&self, order: &[&str]) -> (Child, u32) {
        let mut command = self.order(order);
        let errors = fs::File::create(self.path("stderr")).unwrap();
        let child = command.process_group(0).stderr(errors).spawn().unwrap();
        let pid = self.path("pid");
        wait_for(|| pid.exists(), "docker is not called");
        let number = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        fs::remove_file(pid).unwrap();
        (child, number)
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_signal_ends_what_shows_logs_and_containers() {
    let shop = Shop::new("exec sleep 60");
    for order in [&["logs", "--follow"][..], &["ps"]] {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
            let (mut child, docker) = shop.begin(order);
            kill_process_group(Pid::from_child(&child), signal).unwrap();
            let ended = child.wait().unwrap().code();
            let left = lives(docker);
            if left {
                kill_process_group(Pid::from_raw(docker as i32).unwrap(), Signal::KILL).unwrap();
            }
            assert!(!left, "{order:?} goes on after {signal:?}");
            assert_eq!(ended, Some(code), "{order:?} {signal:?}");
        }
    }
}

#[test]
fn a_signal_leaves_nothing_of_down_half_done() {
    let shop = Shop::new("for i in $(seq 3000); do [ -e go ] && exit; sleep 0.01; done; exit 1");
    let (mut child, docker) = shop.begin(&["down"]);
    let said = || fs::read_to_string(shop.path("stderr")).unwrap();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        kill_process_group(Pid::from_child(&child), signal).unwrap();
        let over = || !lives(child.id());
        wait_for(|| over() || !said().is_empty(), "it does not say that it goes on");
    }
    fs::write(shop.path("go"), "").unwrap();
    let code = child.wait().unwrap().code();
    wait_for(|| !lives(docker), "docker goes on");
    assert_eq!(code, Some(0), "{}", said());
    assert_eq!(said(), "project `shop` is being removed; a signal does not end that\n");
    assert!(!shop.run().exists(), "its directory is left");
}

#[test]
fn a_run_that_others_could_change_is_not_obeyed() {
    let shop = Shop::new("");
    let dirs = ["", "partywall", "partywall/compose", "partywall/compose/shop"];
    for dir in dirs {
        for order in ["ps", "logs", "down"] {
            shop.chmod(dir, 0o777);
            let out = shop.order(&[order]).output().unwrap();
            shop.chmod(dir, 0o755);
            let (said, path) = (text(&out.stderr), shop.path(dir));
            let shown = path.components().collect::<PathBuf>().display().to_string();
            assert!(said.contains(&format!("others can write {shown} (mode 777)")), "{said}");
            assert!(said.contains(&format!("remedy: chmod go-w {shown}")), "{said}");
            assert!(!out.status.success() && !shop.path("pid").exists(), "{order}: {said}");
        }
    }
    let out = shop.order(&["ps"]).output().unwrap();
    assert!(out.status.success() && shop.path("pid").exists(), "{}", text(&out.stderr));
    // As /tmp is.
    shop.chmod("", 0o1777);
    let out = shop.order(&["down"]).output().unwrap();
    assert!(out.status.success() && !shop.run().exists(), "{}", text(&out.stderr));
}
