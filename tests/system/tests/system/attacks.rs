//! Attacks by another user: what an honest program notices of each.
//!
//! User 1234 attacks with a thousand connections where it can have them; user 1235 is admitted,
//! registers, opens links and calls a server of user 1236. It is compared with itself while user 1234
//! only uses as much CPU time as the attack took from the machine, in its own processes and in the
//! coordinator's.

use std::time::{Duration, Instant};

use super::host::{Process, alone, cpu_time, trials};

const ATTACKER: u32 = 1234;
const HONEST: u32 = 1235;
const SERVER: u32 = 1236;
/// The coordinator's.
const COORDINATOR: u32 = 1237;
/// The first of four users whose programs are measured.
const MEASURED: u32 = 1240;
/// Rounds of each measurement.
const ROUNDS: usize = 100;

/// Most of an honest step in microseconds, at the 99th percentile, whatever others do. Without `--full`
/// other programs may have the processors for a while; who waits for a socket that lingers waits for three
/// seconds.
fn in_time() -> u64 {
    if trials(20) == 20 { 50_000 } else { 500_000 }
}

/// What the attacker may do; `flip.N` is for attacks on registrations.
fn policy() -> String {
    let mut text = format!(
        "[principal.attacker]\nuid = {ATTACKER}\n[principal.honest]\nuid = {HONEST}\n\
         [principal.server]\nuid = {SERVER}\n\
         [service.test]\nregister = ['server']\n[service.test.call]\nanyone = ['*']\n\
         [service.own]\nregister = ['honest']\n\
         [service.closed]\nregister = ['server']\n\
         [service.bad]\nregister = ['attacker']\n[service.bad.call]\nanyone = ['*']\n\
         [service.'flip.dead']\nregister = ['attacker']\n[service.'flip.dead'.call]\nanyone = ['*']\n"
    );
    for uid in MEASURED..MEASURED + 4 {
        let program = format!("sha256:{}", "00".repeat(32));
        text += &format!("[principal.p{uid}]\nuid = {uid}\nprogram = '{program}'\n");
        text += "evidence = 'observed'\n";
    }
    for n in 0..1000 {
        text += &format!("[service.'flip.{n}']\nregister = ['attacker']\n");
        text += &format!("[service.'flip.{n}'.call]\nattacker = ['*']\n");
    }
    text
}

struct Town {
    dir: tempfile::TempDir,
    coordinator: Process,
    _server: Process,
    honest: Process,
}

/// Median, 99th percentile and maximum of each step, in microseconds.
#[derive(Debug)]
struct Figures([[u64; 3]; 4]);

const STEPS: [&str; 4] = ["admit", "register", "link", "call"];

impl Town {
    fn new(old_kernel: bool, honest: &[&str]) -> Self {
        Self::with(old_kernel, honest, &[])
    }

    fn with(old_kernel: bool, honest: &[&str], of_coordinator: &[&str]) -> Self {
        use std::os::unix::fs::PermissionsExt;
        assert!(rustix::process::geteuid().is_root(), "needs root, for processes of four users");
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(dir.path().join("policy.toml"), policy()).unwrap();
        let run = dir.path().join("run");
        std::fs::create_dir(&run).unwrap();
        std::os::unix::fs::chown(&run, Some(COORDINATOR), Some(COORDINATOR)).unwrap();
        let policy = dir.path().join("policy.toml");
        let mut arguments = vec!["--policy", policy.to_str().unwrap()];
        arguments.extend(of_coordinator);
        let program = env!("CARGO_BIN_EXE_st-coordinator");
        let start = |program, uid, arguments: &[&str]| {
            start(old_kernel, dir.path(), program, uid, arguments)
        };
        let mut coordinator = start(program, COORDINATOR, &arguments);
        coordinator.ready();
        let server = start(env!("CARGO_BIN_EXE_st-server"), SERVER, &[]);
        let mut honest = start(env!("CARGO_BIN_EXE_st-honest"), HONEST, honest);
        honest.ready();
        Self { coordinator, _server: server, honest, dir }
    }

    fn attacker(&self, arguments: &[&str]) -> Process {
        start(false, self.dir.path(), env!("CARGO_BIN_EXE_st-attacker"), ATTACKER, arguments)
    }

    fn measure(&mut self) -> Figures {
        self.honest.say(&ROUNDS.to_string());
        let line = self.honest.line();
        let words: Vec<&str> = line.split_whitespace().collect();
        let of_step = |n: usize| {
            assert_eq!(words[4 * n], STEPS[n], "{line}");
            [1, 2, 3].map(|i| words[4 * n + i].parse().unwrap())
        };
        Figures([0, 1, 2, 3].map(of_step))
    }

    /// Figures during an attack that is under way, how much of a CPU it took, and how much it did.
    fn during(&mut self, attacker: &mut Process) -> (Figures, f64, u64) {
        let pid = attacker.pid();
        let spent = |town: &Self| cpu_time(pid) + cpu_time(town.coordinator.pid());
        let done = done(attacker);
        let (before, start) = (spent(self), Instant::now());
        let figures = self.measure();
        let load = (spent(self) - before).as_secs_f64() / start.elapsed().as_secs_f64();
        (figures, load, self::done(attacker) - done)
    }
}

/// What an attacker has done by now.
fn done(attacker: &mut Process) -> u64 {
    attacker.say("");
    let line = attacker.line();
    line.strip_prefix("done ").and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

fn start(
    old_kernel: bool,
    dir: &std::path::Path,
    program: &str,
    uid: u32,
    arguments: &[&str],
) -> Process {
    let socket = dir.join("run/c.sock");
    let coordinator = COORDINATOR.to_string();
    let environment = [("PARTYWALL_COORDINATOR_UID", coordinator.as_str())];
    if old_kernel {
        let program = [env!("CARGO_BIN_EXE_st-old-kernel"), program];
        return Process::begin(&program, &socket, arguments, &environment, Some(uid));
    }
    Process::start(program, &socket, arguments, &environment, Some(uid))
}

/// Runs an attack of a thousand connections, checks what the honest program notices, and compares. The
/// attack is one: it holds so many connections or links, and does so much in the meantime.
fn withstands(mode: &str, holds: usize, does: u64) {
    let _alone = alone();
    let mut town = Town::new(false, &[]);
    town.measure();
    let mut attacker = town.attacker(&["--mode", mode, "--connections", "1000"]);
    let mut held = 0;
    loop {
        match attacker.line().as_str() {
            "ready" => break,
            said => {
                println!("{mode}: {said}");
                held = said.strip_prefix("holds ").map_or(held, |n| n.parse().unwrap());
            }
        }
    }
    assert!(held >= holds, "the attack holds {held} only");
    let (attacked, load, did) = town.during(&mut attacker);
    println!("{mode}: did {did}");
    assert!(did >= does, "the attack did {did} only");
    drop(attacker);
    let load = load.clamp(0.01, 1.99);
    let burners: Vec<_> = [load.min(1.0), (load - 1.0).max(0.0)]
        .iter()
        .filter(|part| **part > 0.005)
        .map(|part| {
            let mut burner = town.attacker(&["--mode", "burn", "--load", &part.to_string()]);
            burner.ready();
            burner
        })
        .collect();
    let control = town.measure();
    drop(burners);
    println!("{mode}: {load:.2} of a CPU; attacked {:?}, control {:?}", attacked.0, control.0);
    for (step, (attacked, control)) in STEPS.iter().zip(attacked.0.iter().zip(control.0)) {
        // Beside other tests and builds the control is late, too.
        let in_time = in_time().max(2 * control[1]);
        assert!(attacked[1] <= in_time, "{step}: 99 % take {} us", attacked[1]);
        let times = attacked[0] as f64 / control[0] as f64;
        // Beside other tests and builds, what others leave differs by more than that.
        let quiet = trials(20) == 20;
        assert!(
            !quiet || times <= 1.5,
            "{step}: {} us, {times:.2} times those of the control",
            attacked[0]
        );
    }
}

#[test]
fn a_flood_of_connections_that_say_nothing_leaves_others_their_part() {
    withstands("connect", 1000, 1000);
}

#[test]
fn a_flood_of_proofs_leaves_others_their_part() {
    withstands("prove", 1000, 50);
}

#[test]
fn a_thousand_connections_that_ask_and_do_not_read_leave_others_their_part() {
    withstands("ask", 1000, 10_000);
}

#[test]
fn unread_refusals_leave_others_their_part() {
    withstands("denied", 1000, 10_000);
}

#[test]
fn a_flood_of_refused_questions_leaves_others_their_part() {
    withstands("refused", 1000, 10_000);
}

#[test]
fn lists_that_nobody_reads_leave_others_their_part() {
    withstands("list", 1000, 10_000);
}

#[test]
fn a_flood_of_false_reports_leaves_others_their_part() {
    withstands("report", 1000, 10_000);
}

#[test]
fn registrations_that_flip_leave_others_their_part() {
    withstands("register", 1000, 100);
}

#[test]
fn watches_do_not_amplify() {
    withstands("watch", 1000, 1);
}

#[test]
fn memory_that_is_pinned_and_given_up_is_its_callers() {
    withstands("memory", 0, 100);
}

#[test]
fn one_user_does_not_lock_everybody_out_of_a_server() {
    withstands("links", 1000, 0);
}

#[test]
fn a_server_that_never_answers_holds_up_nobody_else() {
    withstands("hung", 1000, 10_000);
}

/// Programs of 255 MiB, each measured twice before its process is admitted.
#[test]
fn large_programs_of_four_users_that_are_measured_hold_nobody_up() {
    use std::os::unix::fs::PermissionsExt;
    let _alone = alone();
    let mut town = Town::new(false, &[]);
    let program = town.dir.path().join("large");
    std::fs::copy(env!("CARGO_BIN_EXE_st-attacker"), &program).unwrap();
    std::fs::OpenOptions::new().write(true).open(&program).unwrap().set_len(255 << 20).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = program.to_str().unwrap();
    let arguments = ["--mode", "prove", "--connections", "2"];
    let _attackers: Vec<Process> = (MEASURED..MEASURED + 4)
        .map(|uid| start(false, town.dir.path(), program, uid, &arguments))
        .collect();
    // The first ones are under way.
    let begin = Instant::now();
    while cpu_time(town.coordinator.pid()) < Duration::from_millis(200) {
        assert!(begin.elapsed() < Duration::from_secs(20), "nothing is measured");
        std::thread::sleep(Duration::from_millis(10));
    }
    let (before, start) = (cpu_time(town.coordinator.pid()), Instant::now());
    let figures = town.measure();
    let load = (cpu_time(town.coordinator.pid()) - before).as_secs_f64();
    let load = load / start.elapsed().as_secs_f64();
    println!("measuring: {load:.2} of a CPU; {:?}", figures.0);
    assert!(load > 0.2, "nothing was measured meanwhile: {load:.2} of a CPU");
    for (step, [_, most, _]) in STEPS.iter().zip(figures.0) {
        assert!(most <= in_time(), "{step}: 99 % take {most} us");
    }
}

/// The coordinator has started the attacker itself, which sends before it proves itself.
const STARTED: &str = "linger-started";

/// Sockets that linger do not hold up who receives them, nor anybody else.
fn survives_lingering(mode: &str, old_kernel: bool) {
    let _alone = alone();
    let beside: &[&str] = if mode.contains("server") { &["--beside", "bad"] } else { &[] };
    let own = ["--start", env!("CARGO_BIN_EXE_st-attacker")];
    let own: &[&str] = if mode == STARTED { &own } else { &[] };
    let mut town = Town::with(old_kernel, beside, own);
    let mut attacker = (mode != STARTED).then(|| town.attacker(&["--mode", mode]));
    // What the coordinator starts says what it says there.
    let attacks = attacker.as_mut().unwrap_or(&mut town.coordinator);
    // From Linux 6.16 on the kernel refuses them to the sender.
    let expected = if old_kernel || !kernel_refuses() { "sent" } else { "refused" };
    let serves = mode.contains("server");
    if !serves {
        assert_eq!(attacks.line(), expected);
    }
    attacks.ready();
    for _ in 0..3 {
        let figures = town.measure();
        println!("{mode}: {:?}", figures.0);
        for (step, [_, most, _]) in STEPS.iter().zip(figures.0) {
            assert!(most <= in_time(), "{step}: 99 % take {most} us");
        }
    }
    if let Some(attacker) = attacker.as_mut().filter(|_| serves) {
        assert_eq!(attacker.line(), expected, "to those who called it meanwhile");
    }
    let start = Instant::now();
    drop(town.honest);
    town.coordinator.end_input();
    town.coordinator.succeed();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?} to stop", start.elapsed());
}

fn kernel_refuses() -> bool {
    let (a, _b) = partywall_shm::socket::pair().unwrap();
    partywall_shm::socket::refuse_descriptors(std::os::fd::AsFd::as_fd(&a))
}

/// A test for each place where a descriptor could arrive, here and on kernels that let it in.
macro_rules! lingering {
    ($($here:ident, $old:ident: $mode:literal;)*) => {$(
        #[test]
        fn $here() {
            survives_lingering($mode, false);
        }

        #[test]
        fn $old() {
            survives_lingering($mode, true);
        }
    )*};
}

lingering! {
    sockets_that_linger_before_the_proof_hold_nobody_up,
    sockets_that_linger_before_the_proof_hold_nobody_up_on_an_old_kernel: "linger-unproven";
    sockets_that_linger_from_a_service_that_was_started_hold_nobody_up,
    sockets_that_linger_from_a_service_that_was_started_hold_nobody_up_on_an_old_kernel:
        "linger-started";
    sockets_that_linger_after_the_proof_hold_nobody_up,
    sockets_that_linger_after_the_proof_hold_nobody_up_on_an_old_kernel: "linger-proven";
    sockets_that_linger_in_a_link_that_is_not_filled_hold_no_server_up,
    sockets_that_linger_in_a_link_that_is_not_filled_hold_no_server_up_on_an_old_kernel:
        "linger-caller-early";
    sockets_that_linger_in_an_open_link_hold_no_server_up,
    sockets_that_linger_in_an_open_link_hold_no_server_up_on_an_old_kernel: "linger-caller-late";
    sockets_that_linger_in_an_offered_link_hold_no_client_up,
    sockets_that_linger_in_an_offered_link_hold_no_client_up_on_an_old_kernel: "linger-server-early";
    sockets_that_linger_in_an_open_link_hold_no_client_up,
    sockets_that_linger_in_an_open_link_hold_no_client_up_on_an_old_kernel: "linger-server-late";
}

/// A memory control group, with version 1's or version 2's names.
struct Cgroup(std::path::PathBuf);

impl Cgroup {
    fn new(bytes: u64) -> Self {
        let root = std::path::Path::new("/sys/fs/cgroup");
        let name = format!("partywall-{}", std::process::id());
        let (dir, limit) = match root.join("memory").is_dir() {
            true => (root.join("memory").join(name), "memory.limit_in_bytes"),
            false => (root.join(name), "memory.max"),
        };
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join(limit), bytes.to_string()).unwrap();
        Self(dir)
    }

    fn take(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// The most that its processes have had, in bytes.
    fn most(&self) -> u64 {
        let read = |file: &str| std::fs::read_to_string(self.0.join(file));
        let text = read("memory.max_usage_in_bytes").or_else(|_| read("memory.peak")).unwrap();
        text.trim().parse().unwrap()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its processes have ended; the kernel may take a moment to see that.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn links_that_others_ask_for_cost_the_coordinator_no_memory() {
    let _alone = alone();
    let mut town = Town::new(false, &[]);
    let small = Cgroup::new(24 << 20);
    small.take(town.coordinator.pid());
    let mut attacker = town.attacker(&["--mode", "memory"]);
    attacker.ready();
    for _ in 0..5 {
        town.measure();
    }
    let links = done(&mut attacker);
    println!("{links} links; the coordinator has had {} KiB at most", small.most() >> 10);
    assert!(links >= 500, "{links} links only");
    drop(attacker);
    town.coordinator.end_input();
    town.coordinator.succeed();
}

/// Whether a program of this mode, which the attacker starts, believes its environment.
fn believes(mode: u32) -> bool {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let town = Town::new(false, &[]);
    let program = town.dir.path().join("program");
    std::fs::copy(env!("CARGO_BIN_EXE_st-client"), &program).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
    let mut client = std::process::Command::new(program);
    client.args(["--mode", "once"]).uid(ATTACKER).gid(ATTACKER);
    client.env("PARTYWALL_SOCKET", town.dir.path().join("run/c.sock"));
    client.env("PARTYWALL_COORDINATOR_UID", COORDINATOR.to_string());
    let output = client.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() != said.contains("/run/partywall/coordinator.sock"), "{said}");
    output.status.success()
}

#[test]
fn a_set_user_id_program_does_not_believe_its_environment() {
    let _alone = alone();
    assert!(believes(0o755), "nothing is shown");
    assert!(!believes(0o4755));
}
