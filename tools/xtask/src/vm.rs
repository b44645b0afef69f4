//! `cargo xtask vm-test`: tests of programs in one address space, where protection keys exist.
//!
//! Few machines that run tests have protection keys, so the tests run a second time in an emulated
//! one: Debian's kernels before and from Linux 6.12 on, and an initial file system with `vm-init`, the
//! test binaries and the programs that the tests load. Some tests that need no keys run there as well, for
//! the sake of these kernels and of control groups of version 2. What the machine and this program say to
//! each other is in `tools/vm`.
//!
//! To add a program, put one more [`Job`] into [`jobs`]: its output is kept, and files that it
//! leaves are in `target/vm/left`.

mod build;
mod image;
mod kernel;
mod machine;
mod report;

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use partywall_vm::manifest::Program;
use partywall_vm::{INSIDE, LEFT, LEFT_VARIABLE};

use crate::built::TestBinary;
use crate::ran::RanList;
use crate::workspace::Workspace;

/// Where the programs that the tests load are, in the machine.
const PROGRAMS: &str = "/programs";

/// When a test binary is killed. Emulation is slow, and others may keep the host busy.
const TESTS_LIMIT: Duration = Duration::from_secs(840);

/// When the machine is killed.
const MACHINE_LIMIT: Duration = Duration::from_secs(900);

/// The same with the promised number of trials.
const FULL_LIMIT: Duration = Duration::from_secs(7200);

/// What `partywall up` says of calls between domains with protection keys: from Linux 6.12 on, and before.
const UP_SAYS: &[&str] = &["gate  protection-keys", "gate  shared-signal-stacks"];

/// Tests of the host that run in the machine: the name of the binary, which of them run each time (with
/// `--full` all do; every interoperability case takes minutes there), and those that never do: they need
/// what the machine has not, or hold for times that emulation cannot keep.
const TESTS_OF_HOST: &[(&str, &[&str], &[&str])] = &[
    (
        "partywall_system_tests::processes",
        &[
            "a_domain_that_is_killed_fails_its_callers_and_nobody_else",
            "blocking_clients_call_another_domain_through_the_gate",
            "ends_and_list_agree_on_the_security_between_domains",
            "requests_longer_than_a_record_ring_the_bell",
            "stubs_call_another_domain_through_the_gate",
            "a_coordinator_needs_no_root",
        ],
        &[
            // Times.
            "deadline_in_a_domain_is_reported_in_time_and_ends_no_service",
            "deadline_of_a_blocking_client_in_a_domain_is_in_time",
            "handlers_that_wait_are_seldom_gone_in_for",
            "the_limit_of_visits_is_what_the_environment_says",
        ],
    ),
    (
        "partywall_cli::up",
        &[],
        &[
            // Cargo.
            "up_runs_the_word_count",
            "the_quick_start_works",
            "a_signal_ends_a_build",
            "output_that_cannot_be_written",
            // A C compiler.
            "a_program_in_c_is_a_domain_as_well",
            "what_cannot_be_a_domain_is_refused",
            // Docker Compose and systemd.
            "docker_compose_accepts_the_examples",
            "the_units_are_ones_that_systemd_takes",
        ],
    ),
    (
        "partywall_stubs_tests::stubs",
        &[
            "blocking_channels_send_and_take_parcels",
            "long_messages_come_in_parcels_and_short_ones_do_not",
            "many_long_messages_at_once_all_arrive",
            "one_lease_goes_back_and_forth_and_is_mapped_once",
        ],
        &[],
    ),
    (
        "partywall_system_tests::root",
        // Control groups of version 2 alone, which the host need not have.
        &[
            "containers_of_both_drivers_of_docker_are_known",
            "groups_that_a_user_can_write_prove_no_container",
            "process_that_changes_its_container_before_proof_is_refused",
            "processes_in_groups_of_an_engine_are_in_its_container",
        ],
        &[
            // Programs of util-linux.
            "root_of_",
            "root_with_",
            "others::",
            // And of iproute2.
            "hosts::",
            // Cargo.
            "functions::",
            // Times.
            "attacks::",
            "many::",
        ],
    ),
    (
        "partywall_attacks::shared_memory",
        // What asks most of the kernel: seals, holes, descriptors, mappings, leases.
        &[
            "row_22_a_header_that_disagrees_opens_no_link",
            "row_24_",
            "row_25_a_lease_of_an_old_generation_is_refused",
        ],
        &[
            // Times.
            "row_26_",
            "row_28_",
            // A network, and files that are not in memory.
            "row_25_what_is_not_as_said_ends_",
            "row_25_what_is_no_parcel_ends_",
        ],
    ),
    (
        "partywall_functions::keys",
        // Before Linux 6.12 each says that there are none.
        &[
            "a_dispatcher_says_what_is_in_force",
            "row_1_",
            "row_10_",
            "row_11_",
            "row_52_",
            "row_54_",
            "the_kernel_writes_no_random_bytes_where_the_function_cannot",
        ],
        &[],
    ),
];

/// A program that the machine runs, and what its output has to be.
struct Job {
    program: Program,
    judge: Judge,
}

/// What the output of a program has to be.
enum Judge {
    /// That of libtest, with at least one test and none that failed; its tests' names start with
    /// this.
    Tests(String),
    /// It succeeds, and one of these is in one of its lines.
    Says(&'static [&'static str]),
}

/// What the tests in the machine came to.
pub(crate) struct Outcome {
    /// The tests that ran there, their names behind `vm::`.
    pub(crate) ran: RanList,
    /// One line that sums them up.
    pub(crate) note: String,
    /// What went wrong, with the output that shows it.
    pub(crate) faults: Vec<String>,
}

impl Outcome {
    /// Fails with everything that went wrong.
    ///
    /// # Errors
    /// When something did.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(self.faults.is_empty(), "in the emulated machine:\n{}", self.faults.join("\n"));
        Ok(())
    }
}

/// Builds what the machine needs, runs it and says what the tests came to.
///
/// # Errors
/// When something cannot be built or the emulator does not start; failed tests are in the outcome.
pub(crate) fn run(workspace: &Workspace, full: bool) -> Result<Outcome> {
    let begin = Instant::now();
    let dir = workspace.target.join("vm");
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let kernels = kernel::fetch(&dir)?;
    let built = build::all(workspace, &dir)?;
    let jobs = jobs(&built, full)?;
    image::write(&dir.join(machine::IMAGE), workspace, &built, &jobs)?;
    println!("vm: {} programs, built in {}", jobs.len(), seconds(begin));
    let mut all = Outcome { ran: RanList::default(), note: String::new(), faults: Vec::new() };
    for kernel in &kernels {
        let start = Instant::now();
        let limit = if full { FULL_LIMIT } else { MACHINE_LIMIT };
        let run = machine::run(&dir, kernel, limit)?;
        let left = kernel.name.replace(' ', "-");
        report::save_files(&dir.join("left").join(left), run.transcript.files())?;
        let outcome = report::judge(&jobs, &run);
        all.ran.extend(outcome.ran.entries().iter().cloned());
        all.faults.extend(outcome.faults.iter().map(|fault| format!("{}: {fault}", kernel.name)));
        let note = format!("{}: {}, {} in the machine", kernel.name, outcome.note, seconds(start));
        println!("vm: {note}");
        all.note = [all.note, note].join(if all.ran.entries().is_empty() { "" } else { "; " });
    }
    all.note = all.note.trim_start_matches("; ").to_owned();
    println!("vm: {} in all", seconds(begin));
    Ok(all)
}

fn jobs(built: &build::Built, full: bool) -> Result<Vec<Job>> {
    let trials = if full { "full" } else { "quick" };
    let limit = if full { FULL_LIMIT } else { TESTS_LIMIT };
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let job = |binary: &TestBinary, path: String, arguments: Vec<String>| Job {
        program: Program {
            name: binary.prefix.clone(),
            path,
            limit,
            arguments,
            variables: vec![
                variable("PARTYWALL_TRIALS", trials),
                variable("PATH", "/bin"),
                variable(INSIDE, "1"),
                variable(LEFT_VARIABLE, LEFT),
                variable(build::PROGRAMS_VARIABLE, PROGRAMS),
                variable("PARTYWALL_DOMAIN_PROGRAMS", "/bin"),
            ],
            leaves: match binary.prefix.as_str() {
                build::UNIT_TESTS => vec![report::MACHINE.to_owned()],
                "partywall_domain::domain" => vec!["isolation-levels.txt".to_owned()],
                _ => Vec::new(),
            },
        },
        judge: Judge::Tests(format!("vm::{}", binary.prefix)),
    };
    let partywall = built.of_host.iter().find(|program| program.path.ends_with("partywall"));
    let partywall = &partywall.context("cargo built no partywall")?.path;
    let up = Job {
        program: Program {
            name: "partywall-up".into(),
            path: partywall.to_string_lossy().into_owned(),
            limit: TESTS_LIMIT,
            arguments: ["up", image::COMPOSE].map(Into::into).into(),
            variables: vec![variable("PATH", "/bin"), variable("XDG_RUNTIME_DIR", "/run")],
            leaves: Vec::new(),
        },
        judge: Judge::Says(UP_SAYS),
    };
    let of_domain =
        built.tests.iter().map(|binary| job(binary, format!("/bin/{}", binary.file()), Vec::new()));
    let of_host = built.tests_of_host.iter().filter_map(|binary| {
        let (_, each_time, skipped) =
            TESTS_OF_HOST.iter().find(|(name, ..)| *name == binary.prefix)?;
        if !full && each_time.is_empty() {
            return None;
        }
        let wanted = each_time.iter().copied().filter(|_| !full);
        let skipped = skipped.iter().flat_map(|name| ["--skip", name]);
        let arguments = wanted.chain(skipped);
        let path = binary.path.to_string_lossy().into_owned();
        Some(job(binary, path, arguments.map(String::from).collect()))
    });
    // Those of domains last, for after them Linux 6.1 takes ten times as long (docs/roadmap.md).
    Ok([up].into_iter().chain(of_host).chain(of_domain).collect())
}

fn seconds(since: Instant) -> String {
    format!("{:.1} s", since.elapsed().as_secs_f64())
}
