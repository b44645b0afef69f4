//! Services that run as domains of one launcher.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use partywall::operator::LinkInfo;
use partywall_system_tests::domain_programs;
use rustix::process::{Pid, Signal, kill_process};

use super::{command, partywall, text};

/// A while that is long enough on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// A Compose file with these extensions for `test` and its caller `web`, and room for a run.
pub(super) struct Run {
    pub(super) dir: tempfile::TempDir,
}

pub(super) const DOMAIN: &str = "link: domain, isolation: none";
const WITH_KEYS: &str = "link: domain, isolation: protection-keys";

/// Each isolation that domains can have here. Where there are no protection keys, the emulated machine
/// (`cargo xtask vm-test`) runs `up` with them.
fn each_isolation() -> impl Iterator<Item = (&'static str, &'static str)> {
    use partywall_domain::machine;
    let keys = machine::keys_usable().and_then(|_| machine::keys_come_to());
    [(DOMAIN, "none")].into_iter().chain(keys.map(|keys| (WITH_KEYS, keys.word())))
}

impl Run {
    /// `st-server` and `st-client` in this mode, linked so.
    pub(super) fn new(server: &str, client: &str, mode: &str) -> Self {
        let [server_file, client_file] = domain_programs().each_ref().map(|p| p.to_str().unwrap());
        Self::of(&format!(
            "services:\n  test:\n    x-partywall: {{program: {server_file}, {server}}}\n  web:\n    \
             depends_on: [test]\n    x-partywall: {{program: {client_file}, args: [--mode, {mode}], \
             calls: [test/*], {client}}}\n"
        ))
    }

    pub(super) fn of(compose: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("compose.yaml"), compose).unwrap();
        Self { dir }
    }

    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
        command
            .args(["up", "--wide"])
            .arg(self.dir.path().join("compose.yaml"))
            .stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.dir.path()).current_dir("/");
        command
    }

    /// Runs it to its end; the exit status, what it said and what it complained of.
    pub(super) fn end(&self) -> (Option<i32>, String, String) {
        let out = self.command().output().unwrap();
        assert_eq!(self.left(), [""; 0], "{}", text(&out.stderr));
        (out.status.code(), text(&out.stdout), text(&out.stderr))
    }

    /// What an `up` has made for itself beside the files of this value.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).unwrap().flatten();
        let names = entries.map(|e| e.file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("partywall-")).collect()
    }

    /// Runs it without an end of its own; its standard output is this.
    pub(super) fn spawn(&self, output: impl Into<Stdio>) -> Up<'_> {
        let errors = fs::File::create(self.dir.path().join("stderr")).unwrap();
        let child = self.command().stdout(output).stderr(errors).spawn().unwrap();
        Up { run: self, child }
    }

    /// Runs it without an end of its own, until its services are linked.
    pub(super) fn begin(&self) -> Up<'_> {
        let mut up = self.spawn(Stdio::null());
        up.wait_for(|links| links.iter().any(|l| l.stats.calls > 0));
        up
    }
}

/// An `up` under way, killed with the value.
pub(super) struct Up<'r> {
    run: &'r Run,
    pub(super) child: Child,
}

impl Up<'_> {
    pub(super) fn socket(&self) -> Option<PathBuf> {
        let entries = fs::read_dir(self.run.dir.path()).unwrap().flatten();
        entries.map(|e| e.path().join("coordinator.sock")).find(|socket| socket.exists())
    }

    pub(super) fn said(&self) -> String {
        fs::read_to_string(self.run.dir.path().join("stderr")).unwrap()
    }

    pub(super) fn links(&self) -> Vec<LinkInfo> {
        let socket = self.socket();
        socket.and_then(|socket| partywall::operator::links(Some(&socket)).ok()).unwrap_or_default()
    }

    /// The only one, once there is one and the coordinator has the time to say so.
    fn link(&self) -> LinkInfo {
        let begin = Instant::now();
        loop {
            let links = self.links();
            assert!(links.len() < 2, "the caller needed another link: {links:?}");
            if let Some(link) = links.into_iter().next() {
                return link;
            }
            assert!(begin.elapsed() < LONG, "no link: {}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(super) fn wait_for(&mut self, seen: impl Fn(&[LinkInfo]) -> bool) {
        let begin = Instant::now();
        loop {
            let links = self.links();
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?} {}", self.said());
            if seen(&links) {
                return;
            }
            assert!(begin.elapsed() < LONG, "{:?} {}", self.links(), self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(super) fn wait_until_said(&mut self, text: &str, at_most: Duration) {
        let begin = Instant::now();
        while !self.said().contains(text) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() || self.said().contains(text), "{ended:?} {}", self.said());
            assert!(begin.elapsed() < at_most, "not within {at_most:?}: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// `partywall domain`; what it says, or what it complains of.
    fn switch(&self, order: &str, service: &str) -> Result<String, String> {
        let socket = self.socket().unwrap();
        let out = partywall(&["domain", order, service, "--socket", socket.to_str().unwrap()]);
        if out.status.success() { Ok(text(&out.stdout)) } else { Err(text(&out.stderr)) }
    }

    /// The launcher and its domains.
    fn launched(&self) -> (u32, Vec<u32>) {
        let is_launcher = |pid: &u32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split('\0').nth(1) == Some("launcher")
        };
        let mut launchers = children(self.child.id()).into_iter().filter(is_launcher);
        let launcher = launchers.next().expect("one launcher");
        assert_eq!(launchers.next(), None);
        (launcher, children(launcher))
    }

    pub(super) fn signal(&self, pid: u32, signal: Signal) {
        kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
    }

    /// Asks it to end, as Ctrl-C does; what it said. Nothing of these is left then.
    pub(super) fn interrupt(self, pids: &[u32]) -> String {
        self.signal(self.child.id(), Signal::INT);
        let (code, said) = self.end(pids);
        assert_eq!(code, Some(130), "{said}");
        said
    }

    /// Its exit status, once [`late`] may start.
    fn end_with_late(self) -> (Option<i32>, String) {
        fs::write(self.run.dir.path().join("go"), "").unwrap();
        self.end(&[])
    }

    /// Its exit status; nothing of these is left then.
    pub(super) fn end(mut self, pids: &[u32]) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        let begin = Instant::now();
        while let Some(left) = pids.iter().find(|p| lives(**p)) {
            assert!(begin.elapsed() < LONG, "process {left} is left behind");
            std::thread::sleep(Duration::from_millis(5));
        }
        // Its coordinator removes the socket; the directory around that is its own.
        assert_eq!(self.run.left(), [""; 0], "left behind: {}", self.said());
        (status.code(), self.said())
    }
}

/// The processes that this one has started and not waited for.
fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let lists = tasks.map(|t| fs::read_to_string(t.path().join("children")).unwrap());
    lists
        .flat_map(|l| l.split_whitespace().map(|p| p.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

pub(super) fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

impl Drop for Up<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn up_runs_the_word_count_in_one_address_space() {
    let mut up = command(&["up", "--debug", "--wide", "examples/wordcount/compose-domain.yaml"]);
    let out = up.env("ISOLATION", "none").output().unwrap();
    let (said, complained) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{said}{complained}");
    assert!(said.contains("total 332 words"), "{said}{complained}");
    // Why it builds a second time.
    assert!(complained.contains("building the programs of domains, static-pie"), "{complained}");
    let row = said.lines().find(|l| l.contains("wordcount (pid")).unwrap();
    let words: Vec<&str> = row.split("  ").map(str::trim).filter(|w| !w.is_empty()).collect();
    assert_eq!(words[4..6], ["gate", "none"], "{row}");
    assert_eq!(row.matches(" started)").count(), 2, "{row}");
    // What a call costs in the service is known.
    assert!(words[words.len() - 1].ends_with("µs") || words[words.len() - 1].ends_with("ms"));
    assert!(words[words.len() - 2].parse::<f64>().is_ok(), "{row}");
}

#[test]
fn domains_and_processes_call_each_other_by_rings() {
    for (server, client) in [(DOMAIN, "link: ring"), ("link: ring", DOMAIN)] {
        let (code, said, complained) = Run::new(server, client, "few").end();
        assert_eq!(code, Some(0), "{said}{complained}");
        let row = said.lines().find(|l| l.contains("test (pid")).unwrap();
        let words: Vec<&str> = row.split("  ").map(str::trim).filter(|w| !w.is_empty()).collect();
        assert_eq!(words[4..6], ["ring", "process"], "{row}");
        assert_eq!(row.matches(" started)").count(), 2, "{row}");
        assert_eq!(words[words.len() - 2..], ["-", "-"], "{row}");
    }
}

#[test]
fn domain_that_fails_in_a_call_is_restarted_for_the_next_call() {
    for (domain, isolation) in each_isolation() {
        fails_in_calls(domain, isolation);
    }
}

fn fails_in_calls(domain: &str, isolation: &str) {
    let (code, said, complained) = Run::new(domain, domain, "fail").end();
    assert_eq!(code, Some(0), "{said}{complained}");
    print!("{said}{complained}");
    assert!(said.contains(&format!("gate  {isolation} ")), "{said}");
    for (how, status) in [
        ("abort", "Unavailable"),
        ("overflow", "Unavailable"),
        ("spin", "DeadlineExceeded"),
        ("exit", "Unavailable"),
    ] {
        let line = said.lines().find(|l| l.starts_with(&format!("web   | {how}"))).unwrap();
        assert!(line.contains(status) && line.contains("the next call works"), "{line}");
    }
    // The delay is short again after a long run, which a busy machine makes of a short one.
    let ends = complained.lines().filter_map(|l| l.split_once("; started again in "));
    let ends: Vec<_> = ends.map(|(end, _)| end).collect();
    let in_the_middle = "partywall: `test` is ended: a call in it ended in the middle";
    let aborted = "partywall: `test` ended with signal: 6 (SIGABRT)";
    let exited = "partywall: `test` ended with exit status: 7";
    assert_eq!(ends, [aborted, in_the_middle, in_the_middle, exited], "{complained}");
}

#[test]
fn service_waits_for_a_domain_that_is_restarted() {
    let run = Run::new(DOMAIN, DOMAIN, "fail");
    let file = run.dir.path().join("compose.yaml");
    let compose = fs::read_to_string(&file).unwrap();
    fs::write(&file, compose.replace("    depends_on: [test]\n", "")).unwrap();
    late(&run);
    let mut up = run.begin();
    // Nobody has waited for `test` before. Each of the four calls that end it has to find it asleep, which
    // the caller tries for a minute.
    up.wait_until_said("ended with exit status: 7; started again in", 15 * LONG);
    let (code, said) = up.end_with_late();
    assert_eq!(code, Some(0), "{said}");
}

/// A service that starts when both `test` serves and [`Up::end_with_late`] says so.
fn late(run: &Run) {
    let dir = run.dir.path();
    let file = dir.join("compose.yaml");
    let compose = fs::read_to_string(&file).unwrap();
    let go = dir.join("go");
    let late = format!(
        "  nap:\n    x-partywall: {{program: /bin/sh, args: ['-c', 'until [ -e {} ]; do sleep 0.02; \
         done']}}\n  late:\n    depends_on: {{nap: {{condition: \
         service_completed_successfully}}, test: {{condition: service_started}}}}\n    \
         x-partywall: {{program: /bin/true}}\n",
        go.display()
    );
    fs::write(&file, compose + &late).unwrap();
}

#[test]
fn a_domain_that_was_called_by_a_ring_has_served_as_well() {
    let run = Run::new(DOMAIN, "link: ring", "few");
    late(&run);
    let mut up = run.begin();
    up.wait_for(|links| links.iter().any(|l| l.stats.calls == 50));
    // It is away for longer each time, and is when `late` is to start.
    let begin = Instant::now();
    while !up.said().contains("started again in 1.6s") {
        assert!(begin.elapsed() < LONG, "{}", up.said());
        if let [domain] = up.launched().1[..]
            && lives(domain)
        {
            // It may just have ended.
            let _gone = kill_process(Pid::from_raw(domain as i32).unwrap(), Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let (code, said) = up.end_with_late();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_process_that_has_served_and_is_gone_is_not_awaited() {
    let run = Run::new("link: ring", "link: ring", "few");
    late(&run);
    let mut up = run.begin();
    up.wait_for(|links| links.iter().any(|l| l.stats.calls == 50));
    let server = up.link().server.as_ref().and_then(|server| server.pid).unwrap();
    up.signal(server, Signal::KILL);
    up.wait_for(|_| !lives(server));
    let (code, said) = up.end_with_late();
    assert_eq!(code, Some(128 + 9), "{said}");
    let why = "`late` depends on `test`, which ended with signal: 9 (SIGKILL)";
    assert!(said.contains(why), "{said}");
}

#[test]
fn an_interrupt_while_services_start_is_no_failure() {
    let run = Run::new(DOMAIN, DOMAIN, "few");
    late(&run);
    let up = run.begin();
    let (launcher, domains) = up.launched();
    up.interrupt(&[&domains[..], &[launcher]].concat());
}

/// Both ends, the table after the run, and what the two have in common with the kind of link.
#[test]
fn both_ends_and_the_table_show_the_security_of_links() {
    const RING: &str = "link: ring";
    let domains = each_isolation().map(|(link, isolation)| (link, link, isolation, "space"));
    let others = [(RING, RING, "process", "host"), (DOMAIN, RING, "process", "space")];
    for (server, client, isolation, confidentiality) in domains.chain(others) {
        let (code, said, complained) = Run::new(server, client, "security").end();
        assert_eq!(code, Some(0), "{said}{complained}");
        let expected = format!("{isolation}, {confidentiality}, started");
        for end in ["task caller", "task service", "blocking caller", "blocking service"] {
            assert!(said.contains(&format!("{end} {expected}")), "{end} {expected}: {said}");
        }
        let of_link = |line: &&str| {
            let words: Vec<_> = line.split_whitespace().collect();
            words.windows(3).any(|w| w == [isolation, confidentiality, "started"])
        };
        assert_eq!(said.lines().filter(of_link).count(), 2, "{expected}: {said}");
    }
}

#[test]
fn gates_that_open_and_close_under_load_lose_no_call() {
    for (domain, isolation) in each_isolation() {
        open_and_close(domain, isolation);
    }
}

fn open_and_close(domain: &str, isolation: &str) {
    let run = Run::new(domain, domain, "flood");
    let mut up = run.begin();
    assert_eq!(up.link().security.isolation.to_string(), isolation);
    let counted = |up: &Up| up.link().stats;
    for _ in 0..50 {
        let said = up.switch("disable", "test").unwrap();
        assert_eq!(said, "`test`: callers go by the ring from now on\n");
        let begin = Instant::now();
        // Whoever was inside comes out, and nobody goes in, while calls go on.
        loop {
            let before = counted(&up);
            std::thread::sleep(Duration::from_millis(5));
            let after = counted(&up);
            if after.visits == before.visits && after.calls > before.calls {
                break;
            }
            assert!(begin.elapsed() < LONG, "{before:?} {after:?}");
        }
        assert!(!up.link().gate);
        let said = up.switch("enable", "test").unwrap();
        assert_eq!(said, "`test`: callers go through the gate from now on\n");
        let before = counted(&up).visits;
        up.wait_for(|links| links.iter().any(|l| l.gate && l.stats.visits > before));
    }
    let stats = counted(&up);
    println!("{stats:?}");
    assert_eq!((stats.failed, stats.denied), (0, 0));
    let unknown = up.switch("disable", "tset").unwrap_err();
    assert!(unknown.contains("nobody serves `tset` here; served are test"), "{unknown}");
    let (launcher, domains) = up.launched();
    assert_eq!(domains.len(), 2);
    let said = up.interrupt(&[&domains[..], &[launcher]].concat());
    assert!(!said.contains("; started again in") && !said.contains("killed"), "{said}");
}

#[test]
fn end_of_the_launcher_ends_the_run_with_a_message() {
    let run = Run::new(DOMAIN, DOMAIN, "flood");
    let up = run.begin();
    let (launcher, domains) = up.launched();
    up.signal(launcher, Signal::KILL);
    let (code, said) = up.end(&domains);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the launcher has ended (signal: 9 (SIGKILL))"), "{said}");
}

#[test]
fn launcher_that_hangs_is_ended_with_the_run() {
    let run = Run::new(DOMAIN, DOMAIN, "flood");
    let up = run.begin();
    let (launcher, domains) = up.launched();
    up.signal(launcher, Signal::STOP);
    let begin = Instant::now();
    let said = up.interrupt(&[&domains[..], &[launcher]].concat());
    assert!(begin.elapsed() < LONG, "{said}");
}

#[test]
fn a_process_has_no_gate_to_close() {
    let run = Run::new("link: ring", "link: ring", "flood");
    let up = run.begin();
    let refused = up.switch("disable", "test").unwrap_err();
    assert!(refused.contains("has no gate") && refused.contains("link: domain"), "{refused}");
}

/// A program in C, for a domain.
fn c(dir: &Path, source: &str) -> PathBuf {
    let (file, program) = (dir.join("program.c"), dir.join("program"));
    fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    let output = cc.args(["-static-pie", "-O1", "-o"]).args([&program, &file]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    program
}

#[test]
fn a_program_in_c_is_a_domain_as_well() {
    let run = Run::of(
        "services:\n  c:\n    environment: {WORD: wall}\n    x-partywall: {program: program, args: \
         [party], link: domain, isolation: none}\n",
    );
    c(
        run.dir.path(),
        "#include <stdio.h>\n#include <stdlib.h>\nint main(int n, char **a) {\n\
         printf(\"%s%s %s\\n\", a[1], getenv(\"WORD\"), getenv(\"PARTYWALL_FD\"));\n\
         return getchar() == EOF ? 5 : 6;\n}\n",
    );
    let (code, said, complained) = run.end();
    assert_eq!(code, Some(5), "{said}{complained}");
    assert!(said.starts_with("c  | partywall 3\n"), "{said}{complained}");
    assert!(complained.contains("`c` ended with exit status: 5"), "{complained}");
}

#[test]
fn unfit_domain_is_refused_with_place_and_remedy() {
    let refused = |extension: &str| {
        let run = Run::of(&format!("services:\n  a:\n    x-partywall: {{{extension}}}\n"));
        let (code, _, complained) = run.end();
        assert_eq!(code, Some(1), "{complained}");
        complained
    };
    let said = refused("program: /bin/sleep, link: domain, isolation: none");
    assert!(said.contains("service `a`: /bin/sleep: ") && said.contains("static"), "{said}");
    let said = refused("program: gone, link: domain, isolation: none");
    assert!(said.contains("compose.yaml:3: services.a.x-partywall.program: "), "{said}");
    let long = format!("program: /bin/sleep, args: [{}], {DOMAIN}", "x".repeat(200_000));
    let said = refused(&long);
    assert!(said.contains("a domain takes 131072; put them into a file"), "{said}");
    let run = Run::of(&format!(
        "services:\n  a:\n    x-partywall: {{program: /bin/true, {DOMAIN}}}\n  b:\n    depends_on: \
         {{a: {{condition: service_completed_successfully}}}}\n    x-partywall: {{program: /bin/true, \
         calls: [a/*]}}\n"
    ));
    let (code, _, complained) = run.end();
    assert_eq!(code, Some(1), "{complained}");
    assert!(complained.contains("compose.yaml:4: services.b"), "{complained}");
    assert!(complained.contains("`b` waits for the end of `a`"), "{complained}");
    assert!(complained.contains("depend on it with service_started"), "{complained}");
    if partywall_domain::machine::keys_usable().is_err() {
        let said = refused("program: /bin/sleep, link: domain");
        assert!(said.contains("compose.yaml:3: services.a.x-partywall.link: "), "{said}");
        assert!(said.contains("isolation `protection-keys` needs protection keys"), "{said}");
        // Never a bare domain: as a process of its own it runs.
        let run = Run::of(
            "services:\n  a:\n    x-partywall: {program: /bin/true, link: domain, isolation: \
             prefer}\n",
        );
        let (code, _, complained) = run.end();
        assert_eq!(code, Some(0), "{complained}");
        assert!(complained.contains("started as a process of its own"), "{complained}");
    }
}
