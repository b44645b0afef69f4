//! Processes in containers: in control groups as engines make them, and in other namespaces.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;

use partywall_coordinator::{Coordinator, Listen, Options, Policy};
use partywall_testkit::{Host, Process, alone};

/// A user without any rights.
const USER: u32 = 2001;

const PROGRAM: &str = env!("CARGO_BIN_EXE_st-contained");

/// Control groups as an engine makes them, in each hierarchy that is mounted; removed with the value.
pub(super) struct Groups {
    /// Of each hierarchy where it is mounted, and whether it is one that only an engine's name tells.
    hierarchies: Vec<Hierarchy>,
    parent: String,
    made: Vec<PathBuf>,
}

struct Hierarchy {
    mount: PathBuf,
    is_version_2: bool,
    /// Whether a process is told by this one's path if no container is known: systemd's, or version 2.
    is_first: bool,
}

impl Groups {
    pub(super) fn new() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let hierarchy = |line: &str| {
            let (place, kind) = line.split_once(" - ")?;
            let place: Vec<&str> = place.split(' ').collect();
            let is_version_2 = kind.starts_with("cgroup2 ");
            let is_first = is_version_2 || kind.contains("name=systemd");
            let is_one = is_version_2 || kind.starts_with("cgroup ");
            let mount = place[4].into();
            (is_one && place[3] == "/").then_some(Hierarchy { mount, is_version_2, is_first })
        };
        let hierarchies: Vec<_> = mounts.lines().filter_map(hierarchy).collect();
        assert!(!hierarchies.is_empty(), "needs control groups that root can write");
        // The emulated machine is the one where version 2 is alone, whatever the host has.
        let is_alone = matches!(&hierarchies[..], [one] if one.is_version_2);
        assert!(is_alone || std::env::var_os("PARTYWALL_VM").is_none(), "version 2 is not alone");
        let parent = format!("partywall-test-{}", std::process::id());
        Self { hierarchies, parent, made: Vec::new() }
    }

    /// A policy that knows them.
    fn policy(&self) -> String {
        format!(
            "[engine.test]\ngroups = ['/{}/{{id}}']\n[principal.inside]\ncontainer = '{}'\n",
            self.parent,
            &id('a')[..12]
        )
    }

    pub(super) fn parent(&self) -> &str {
        &self.parent
    }

    /// Puts a process into this group of a hierarchy, below the parent.
    fn put(&mut self, pid: u32, hierarchy: usize, group: &str) {
        self.put_at(pid, hierarchy, &format!("{}/{group}", self.parent));
    }

    /// The same, with the whole path of the group.
    fn put_at(&mut self, pid: u32, hierarchy: usize, group: &str) {
        let at = self.make(hierarchy, group);
        fs::write(at.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// Makes a group where it is missing.
    fn make(&mut self, hierarchy: usize, group: &str) -> PathBuf {
        let mut at = self.hierarchies[hierarchy].mount.clone();
        for part in group.split('/') {
            let above = at.clone();
            at.push(part);
            if at.is_dir() {
                continue;
            }
            fs::create_dir(&at).unwrap();
            self.made.push(at.clone());
            // Of version 1 a group has no processors and no memory of its own at first.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if above.join("cpuset.mem_exclusive").exists() {
                    fs::write(at.join(file), fs::read(above.join(file)).unwrap()).unwrap();
                }
            }
        }
        at
    }

    /// In each hierarchy, with the whole path of the group.
    fn put_at_everywhere(&mut self, pid: u32, group: &str) {
        for hierarchy in 0..self.hierarchies.len() {
            self.put_at(pid, hierarchy, group);
        }
    }

    /// Gives a user this group in each hierarchy, as a service manager delegates one, or another one below.
    fn give(&mut self, uid: u32, group: &str) {
        for hierarchy in 0..self.hierarchies.len() {
            let at = self.make(hierarchy, group);
            for file in [at.join("cgroup.procs"), at] {
                std::os::unix::fs::chown(file, Some(uid), Some(uid)).unwrap();
            }
        }
    }

    /// Has a user put a process into this group, with no rights but its own: the first error, or none.
    fn put_by(&self, uid: u32, pid: u32, group: &str) -> String {
        let files = self.hierarchies.iter().map(|of| of.mount.join(group).join("cgroup.procs"));
        let mut shell = Command::new("sh");
        shell.args(["-ec", "pid=$1; shift; for file; do echo $pid > $file; done", "sh"]);
        let out = shell.arg(pid.to_string()).args(files).uid(uid).gid(uid).output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.success(), said.is_empty(), "{said}");
        said
    }

    pub(super) fn put_everywhere(&mut self, pid: u32, group: &str) {
        for hierarchy in 0..self.hierarchies.len() {
            self.put(pid, hierarchy, group);
        }
    }

    /// One by whose path nobody is told, if there is one.
    fn another(&self) -> Option<usize> {
        self.hierarchies.iter().position(|hierarchy| !hierarchy.is_first)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for group in self.made.iter().rev() {
            let _ = fs::remove_dir(group);
        }
    }
}

pub(super) fn id(letter: char) -> String {
    letter.to_string().repeat(64)
}

/// A process that has done nothing yet.
pub(super) fn start(by: &[&str], socket: &Path) -> Process {
    let mut process = Process::begin(&[by, &[PROGRAM]].concat(), socket, &[], &[], None);
    process.ready();
    process
}

/// What it answers.
pub(super) fn said(process: &mut Process, order: &str) -> String {
    process.say(order);
    process.line()
}

/// What the policy calls it when it has proven who it is.
pub(super) fn admitted(process: &mut Process) -> String {
    assert_eq!(said(process, "connect"), "challenged");
    said(process, "prove")
}

#[test]
fn processes_in_groups_of_an_engine_are_in_its_container() {
    let _alone = alone();
    let mut groups = Groups::new();
    let host = Host::with(&groups.policy());
    let mut outside = start(&[], &host.socket);
    assert_eq!(
        (admitted(&mut outside), said(&mut outside, "list")),
        (String::new(), "listed".into())
    );
    for (group, principals) in [(id('a'), "inside"), (id('a') + "/below", "inside"), (id('b'), "")]
    {
        let mut inside = start(&[], &host.socket);
        groups.put_everywhere(inside.pid(), &group);
        assert_eq!(admitted(&mut inside), principals, "{group}");
        let refused = said(&mut inside, "list");
        assert!(refused.contains(&format!("container {} of test", &group[..12])), "{refused}");
    }
    let mut elsewhere = start(&[], &host.socket);
    groups.put_everywhere(elsewhere.pid(), &format!("x/{}", id('a')));
    assert_eq!(admitted(&mut elsewhere), "", "deeper than the engine's groups");
    assert_eq!(said(&mut elsewhere, "list"), "listed");
    // With version 1, in all but one.
    if let Some(other) = groups.another() {
        let mut torn = start(&[], &host.socket);
        groups.put_everywhere(torn.pid(), &id('a'));
        groups.put(torn.pid(), other, &id('b'));
        assert_eq!(admitted(&mut torn), "");
        let refused = said(&mut torn, "list");
        assert!(refused.contains("its control groups disagree"), "{refused}");
    }
}

/// The groups that Docker makes by its drivers `cgroupfs` and `systemd`, and what only looks like them.
#[test]
fn containers_of_both_drivers_of_docker_are_known() {
    let _alone = alone();
    let mut groups = Groups::new();
    let [a, b] = ['a', 'b'].map(id);
    let inside = format!("[engine.docker]\n[principal.inside]\ncontainer = '{a}'\n");
    let host = Host::with(&inside);
    let [of_a, of_b] = [&a, &b].map(|id| Some(format!("container {} of docker", &id[..12])));
    for (group, principal, container) in [
        (format!("docker/{a}"), "inside", &of_a),
        (format!("docker/{b}"), "", &of_b),
        (format!("system.slice/docker-{a}.scope"), "inside", &of_a),
        (format!("system.slice/docker-{b}.scope"), "", &of_b),
        // A container can make groups below its own, and call them what it likes.
        (format!("docker/{a}/below/it"), "inside", &of_a),
        (format!("docker/{b}/docker/{a}"), "", &of_b),
        (format!("docker/{b}/{a}"), "", &of_b),
        (format!("system.slice/docker-{a}.scope/init"), "inside", &of_a),
        (format!("system.slice/docker-{b}.scope/system.slice/docker-{a}.scope"), "", &of_b),
        // These are not where the engine makes its groups, or not what it calls them.
        (format!("partywall-test/docker/{a}"), "", &None),
        (format!("partywall-test/system.slice/docker-{a}.scope"), "", &None),
        (format!("system.slice/partywall-test.slice/docker-{a}.scope"), "", &None),
        (format!("docker/partywall-test/{a}"), "", &None),
        (format!("docker/{}", &a[1..]), "", &None),
        (format!("docker/{a}a"), "", &None),
        (format!("docker-{a}.scope"), "", &None),
        (format!("system.slice/docker-{a}.service"), "", &None),
        (a.clone(), "", &None),
    ] {
        let mut process = start(&[], &host.socket);
        groups.put_at_everywhere(process.pid(), &group);
        assert_eq!(admitted(&mut process), principal, "{group}");
        let said = said(&mut process, "list");
        match container {
            Some(container) => assert!(said.contains(container.as_str()), "{group}: {said}"),
            None => assert_eq!(said, "listed", "{group}"),
        }
    }
}

/// The groups that kubelet and a runtime make by their drivers, and what only looks like them.
#[test]
fn processes_in_groups_of_kubelet_are_in_their_pod() {
    let _alone = alone();
    let mut groups = Groups::new();
    let (a, b) = (id('a'), id('b'));
    let [pod, other] =
        ["0f0e0d0c", "1f0e0d0c"].map(|at| format!("{at}-1a2b-3c4d-5e6f-001122334455"));
    let under = pod.replace('-', "_");
    let policy = format!(
        "[engine.kubernetes]\n[principal.of_pod]\npod = '{pod}'\n[principal.in_it]\npod = '{pod}'\n\
         container = '{a}'\n"
    );
    let host = Host::with(&policy);
    let both = "in_it,of_pod";
    let slices = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable";
    for (group, principals, of) in [
        (format!("kubepods/pod{pod}/{a}"), both, Some((&a, &pod))),
        (format!("kubepods/burstable/pod{pod}/{b}"), "of_pod", Some((&b, &pod))),
        (format!("kubepods/besteffort/pod{other}/{a}"), "", Some((&a, &other))),
        (format!("{slices}-pod{under}.slice/cri-containerd-{a}.scope"), both, Some((&a, &pod))),
        (format!("{slices}-pod{under}.slice/crio-{b}.scope"), "of_pod", Some((&b, &pod))),
        // A container can make groups below its own, and call them what it likes.
        (format!("kubepods/pod{other}/{b}/kubepods/pod{pod}/{a}"), "", Some((&b, &other))),
        // These are not where kubelet makes its groups, or not what it calls them.
        (format!("partywall-test/kubepods/pod{pod}/{a}"), "", None),
        (format!("kubepods/pod{pod}"), "", None),
        (format!("kubepods/burstable/pod{pod}x/{a}"), "", None),
        (format!("kubepods/burstable/pod{}/{a}", &pod[1..]), "", None),
        (format!("{slices}-pod{pod}{under}.slice/crio-{a}.scope"), "", None),
    ] {
        let mut process = start(&[], &host.socket);
        groups.put_at_everywhere(process.pid(), &group);
        assert_eq!(admitted(&mut process), principals, "{group}");
        let said = said(&mut process, "list");
        match of {
            Some((id, pod)) => {
                let container = format!("container {} of kubernetes, in pod {pod}", &id[..12]);
                assert!(said.contains(&container), "{group}: {said}");
            }
            None => assert_eq!(said, "listed", "{group}"),
        }
    }
}

/// The groups of a rootless engine: its user can make them, and put there what it likes.
#[test]
fn groups_that_a_user_can_write_prove_no_container() {
    let _alone = alone();
    let mut groups = Groups::new();
    let a = id('a');
    let policy = format!(
        "[engine.docker]\n[engine.podman]\n[principal.inside]\ncontainer = '{a}'\n\
         [principal.users]\nuid = {USER}\n"
    );
    let host = Host::with(&policy);
    let own = format!("user.slice/user-{USER}.slice/user@{USER}.service");
    let its = ["docker", "system.slice", "user.slice", "libpod_parent", "machine.slice"];
    for (parent, group) in its.iter().zip([
        a.clone(),
        format!("docker-{a}.scope"),
        format!("libpod-{a}.scope"),
        format!("libpod-{a}"),
        format!("libpod-{a}.scope"),
    ]) {
        let group = format!("{own}/{parent}/{group}");
        groups.give(USER, &own);
        groups.give(USER, &group);
        let mut process = Process::begin(&[PROGRAM], &host.socket, &[], &[], Some(USER));
        process.ready();
        groups.put_at_everywhere(process.pid(), &own);
        assert_eq!(groups.put_by(USER, process.pid(), &group), "", "{group}");
        assert_eq!(admitted(&mut process), "users", "{group}");
    }
    // Into those of a rootful engine it gets nobody, and into those of a container nothing of its own.
    for group in [format!("docker/{a}"), format!("system.slice/docker-{a}.scope")] {
        let mut process = Process::begin(&[PROGRAM], &host.socket, &[], &[], Some(USER));
        process.ready();
        groups.put_at_everywhere(process.pid(), &own);
        for hierarchy in 0..groups.hierarchies.len() {
            groups.make(hierarchy, &group);
        }
        let refused = groups.put_by(USER, process.pid(), &group);
        assert!(refused.contains("Permission denied"), "{group}: {refused}");
        assert_eq!(admitted(&mut process), "users", "{group}");
    }
}

#[test]
fn container_is_known_from_the_reload_on_that_names_its_engine() {
    let _alone = alone();
    let mut groups = Groups::new();
    let dir = tempfile::tempdir().unwrap();
    let (file, socket) = (dir.path().join("policy.toml"), dir.path().join("coordinator.sock"));
    fs::write(&file, "").unwrap();
    let options = Options {
        listen: Listen::At(socket.clone()),
        policy_file: Some(file.clone()),
        ..Options::default()
    };
    let coordinator = Coordinator::start_with(Policy::default(), options).unwrap();
    let mut known = |principals: &str, listed: bool| {
        let mut inside = start(&[], &socket);
        groups.put_everywhere(inside.pid(), &id('a'));
        assert_eq!(admitted(&mut inside), principals);
        assert_eq!(said(&mut inside, "list") == "listed", listed);
    };
    let reload = |policy: &str| {
        fs::write(&file, policy).unwrap();
        let (done, wait) = channel();
        coordinator.reload(move |read| done.send(read.map_err(|e| e.to_string())).unwrap());
        wait.recv().unwrap().unwrap();
    };
    let policy = Groups::new().policy();
    known("", true);
    reload(&policy);
    known("inside", false);
    reload("");
    known("", true);
}

#[test]
fn process_that_changes_its_container_before_proof_is_refused() {
    let _alone = alone();
    let mut groups = Groups::new();
    let host = Host::with(&groups.policy());
    let mut moved = start(&[], &host.socket);
    groups.put_everywhere(moved.pid(), &id('a'));
    assert_eq!(said(&mut moved, "connect"), "challenged");
    let other = groups.another().unwrap_or(0);
    groups.put(moved.pid(), other, &id('b'));
    assert_eq!(said(&mut moved, "prove"), "the process changed while it proved itself");
}

#[test]
fn root_of_other_namespaces_is_no_operator() {
    let _alone = alone();
    assert!(rustix::process::geteuid().is_root(), "needs root, to be what it is not");
    let host = Host::with("");
    let mut outside = start(&["unshare", "--mount"], &host.socket);
    assert_eq!(admitted(&mut outside), "");
    assert_eq!(said(&mut outside, "list"), "listed");
    for (flags, kind) in [
        (&["--pid", "--fork", "--kill-child", "--mount-proc"][..], "PID"),
        (&["--user", "--map-root-user"], "user"),
        (&["--cgroup"], "control group"),
    ] {
        let mut inside = start(&[&["unshare"], flags].concat(), &host.socket);
        assert_eq!(admitted(&mut inside), "");
        let refused = said(&mut inside, "list");
        let how = format!("it is in another {kind} namespace than the coordinator");
        assert!(refused.contains(&how), "{kind}: {refused}");
    }
}

/// Before it has proven who it is, too.
#[test]
fn root_of_other_namespaces_leaves_root_its_connections() {
    let _alone = alone();
    assert!(rustix::process::geteuid().is_root(), "needs root, to be what it is not");
    let host = Host::with("");
    let namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let mut inside = start(&namespace, &host.socket);
    let crowd = said(&mut inside, "crowd 2000");
    let count: usize = crowd.strip_prefix("crowd ").unwrap().parse().unwrap();
    assert!((16..2000).contains(&count), "the attack has {count} connections");
    host.process();
}

/// It shares with the coordinator's host all that would tell that it is contained.
#[test]
fn root_with_the_common_socket_alone_gives_no_orders() {
    let _alone = alone();
    assert!(rustix::process::geteuid().is_root(), "needs root, to be what it is not");
    let dir = tempfile::tempdir().unwrap();
    let (shared, kept) = (dir.path().join("shared"), dir.path().join("kept"));
    [&shared, &kept].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let (common, operators) = (shared.join("coordinator.sock"), kept.join("operators.sock"));
    let file = dir.path().join("policy.toml");
    fs::write(&file, "").unwrap();
    let options = Options {
        listen: Listen::At(common.clone()),
        operators: Some(operators.clone()),
        policy_file: Some(file),
        ..Options::default()
    };
    let _coordinator = Coordinator::start_with(Policy::default(), options).unwrap();
    let hides = format!("mount -t tmpfs none {} && exec \"$@\"", kept.display());
    let contained = ["unshare", "--mount", "sh", "-c", hides.as_str(), "sh"];
    let mut inside = start(&contained, &common);
    let mut outside = start(&[], &common);
    for process in [&mut inside, &mut outside] {
        assert_eq!(admitted(process), "");
        for (order, what) in [("list", "list links"), ("reload", "reload the policy")] {
            let refused = said(process, order);
            let why = format!("whoever may {what} does so at the operators' socket");
            assert!(refused.contains(&why), "{order}: {refused}");
            assert!(refused.contains(&format!("--socket {}", operators.display())), "{refused}");
        }
    }
    let elsewhere = format!("at {}", operators.display());
    assert!(said(&mut inside, &elsewhere).contains("No such file"));
    assert_eq!(said(&mut outside, &elsewhere), "left");
    assert_eq!(admitted(&mut outside), "");
    assert_eq!(
        (said(&mut outside, "list"), said(&mut outside, "reload")),
        ("listed".into(), "reloaded".into())
    );
    // Commands find it by the common one.
    assert_eq!(partywall::operator::links(Some(&common)).unwrap(), []);
    partywall::operator::reload_policy(Some(&common)).unwrap();
    // Where it has come into a container after all, that is one more reason to refuse.
    let namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let mut leaked = start(&namespace, &operators);
    assert_eq!(admitted(&mut leaked), "");
    let refused = said(&mut leaked, "list");
    assert!(refused.contains("it is in another PID namespace"), "{refused}");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&operators).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}
