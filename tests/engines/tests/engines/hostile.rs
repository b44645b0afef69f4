//! Hostile containers: those that pose as others, as operators, or as the coordinator.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use partywall_testkit::Host;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::engine::{
    Caller, END, Engine, IMAGE, OWN, Project, USER, built, finished, libraries, partywall,
    processes_with, said, service,
};
use crate::shop;

/// What comes of the attempts to leave the control groups, with all rights that an engine gives to root.
const JOINED: &str = "make EROFS, mount EPERM, namespace EPERM, remount EPERM, write EROFS";

/// Kills the coordinator and starts it again, as its command line says.
fn restart_coordinator(project: &Project<'_>) {
    let pid = project.coordinator();
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    let words: Vec<&str> = line.trim_end_matches('\0').split('\0').collect();
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$@\" < /dev/null > /dev/null 2>&1 &", "sh"]).args(words);
    assert!(shell.env_remove("PARTYWALL_FD").status().unwrap().success());
    let begin = Instant::now();
    while !Command::new(partywall())
        .args(["links", "--socket"])
        .arg(project.socket())
        .output()
        .is_ok_and(|out| out.status.success())
    {
        assert!(begin.elapsed() < Duration::from_secs(10), "no coordinator");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_ne!(project.coordinator(), pid);
}

/// Root in a container, with the same image and mount as a caller, is itself in each of its ways: by its
/// control groups, which it cannot leave, whichever coordinator asks.
#[test]
fn a_container_that_poses_as_another_is_itself() {
    let engine = Engine::start();
    let [store, web, _] = shop(0);
    let rogue = service("rogue", 0, "idle", "x-partywall:");
    let project = Project::new(&engine, "poses", &[store, web, rogue]);
    project.up(&[]);
    let mut web = project.caller("web", "store");
    assert_eq!(web.call(100), "turned false false");
    let is_itself = |rogue: &mut Caller| {
        let denied = rogue.call(100);
        assert!(denied.starts_with("failed PermissionDenied"), "{denied}");
        assert!(denied.contains("(uid 0, known as rogue)"), "{denied}");
    };
    let mut rogue = project.caller("rogue", "store");
    is_itself(&mut rogue);
    assert_eq!(rogue.say("join"), JOINED);
    is_itself(&mut rogue);
    // As the user of the caller as well.
    let id = project.id("rogue");
    let exec = ["exec", "--interactive", "--user", "1002", &id, "/bin/et-end", "ask", "store"];
    let denied = Caller::start(&mut engine.docker(&exec)).call(100);
    assert!(denied.starts_with("failed PermissionDenied"), "{denied}");

    restart_coordinator(&project);
    let begin = Instant::now();
    let link = loop {
        let links = project.links();
        let open =
            |link: &&Value| link["open"] == true && link["caller"]["container"] != Value::Null;
        if let Some(link) = links.iter().find(open) {
            break link.clone();
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "{links:?}");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(link["caller"]["container"], project.id("web"));
    assert_eq!(link["server"]["container"], project.id("store"));
    assert_eq!(web.call(100), "turned false false");
    is_itself(&mut rogue);
    // What the caller leaves is nobody's.
    drop(web);
    project.docker(&["kill"], "web");
    is_itself(&mut rogue);
    is_itself(&mut project.caller("rogue", "store"));
}

/// The number of a caller's process that has ended goes to one of another container, while the coordinator
/// cannot look. What has that number then is taken for what it is.
#[test]
fn a_process_number_used_again_in_another_container_is_not_the_caller() {
    let engine = Engine::start();
    let [store, web, _] = shop(0);
    let rogue = service("rogue", 0, "idle", "x-partywall:");
    let project = Project::new(&engine, "number", &[store, web, rogue]);
    project.up(&[]);
    let mut web = project.caller("web", "store");
    assert_eq!(web.call(100), "turned false false");
    let mut rogue = project.caller("rogue", "store");
    let space = |pid: u64| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let [of_web, of_rogue] = ["web", "rogue"].map(|service| space(project.pid(service)));
    let callers = processes_with("/bin/et-end ask store").into_iter();
    let callers = callers.map(|(pid, _)| pid.as_raw_nonzero().get() as u64);
    let [number] = callers.filter(|pid| space(*pid) == of_web).collect::<Vec<_>>()[..] else {
        panic!("one caller is in that container")
    };

    let stopped = Pid::from_raw(project.coordinator() as i32).unwrap();
    kill_process(stopped, Signal::STOP).unwrap();
    kill_process(Pid::from_raw(number as i32).unwrap(), Signal::KILL).unwrap();
    let begin = Instant::now();
    while space(number) != of_rogue {
        assert!(begin.elapsed() < Duration::from_secs(20), "nobody has the number {number}");
        fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).unwrap();
        assert_eq!(rogue.say("start"), "started");
    }
    rogue.put("child 100");
    std::thread::sleep(Duration::from_millis(100));
    kill_process(stopped, Signal::CONT).unwrap();
    let denied = rogue.line();
    assert_eq!(space(number), of_rogue);
    assert!(denied.starts_with("failed PermissionDenied"), "{denied}");
    assert!(denied.contains("(uid 0, known as rogue)"), "{denied}");
    let begin = Instant::now();
    while project.links().iter().any(|link| link["open"] == true) {
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", project.links());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Root in a container gives no orders, and what it takes it takes from its container's share.
#[test]
fn root_in_a_container_is_no_operator_and_has_its_own_share() {
    let engine = Engine::start();
    let contained = built("partywall-system-tests", "st-contained");
    let mut files = libraries(Path::new(END));
    files.extend(libraries(&contained));
    files.push((contained, "/bin/st-contained".into()));
    let image = "partywall-test:contained";
    engine.build(image, OWN, Path::new(END), &files);
    let [store, web, _] = shop(0);
    let rogue = service("rogue", 0, "idle", "x-partywall:").replace(IMAGE, image);
    let project = Project::new(&engine, "orders", &[store, web, rogue]);
    project.up(&[]);
    let mut web = project.caller("web", "store");
    assert_eq!(web.call(100), "turned false false");
    let id = project.id("rogue");
    let socket = "/run/partywall/coordinator.sock";
    let exec = ["exec", "--interactive", &id, "/bin/st-contained", "--socket", socket];
    let mut rogue = Caller::start(&mut engine.docker(&exec));
    assert_eq!(rogue.line(), "ready");
    assert_eq!(rogue.say("connect"), "challenged");
    assert_eq!(rogue.say("prove"), "rogue");
    for (order, what) in [
        ("list", "list links"),
        ("reload", "reload the policy"),
        ("gate store", "open and close gates"),
    ] {
        let refused = rogue.say(order);
        let why = format!(
            "only root and user 0 may {what}; your process is taken for one of a container"
        );
        assert!(refused.starts_with(&why), "{order}: {refused}");
    }
    let operators = project.run_dir().join("operators.sock");
    assert!(operators.exists());
    let elsewhere = rogue.say(&format!("at {}", operators.display()));
    assert!(elsewhere.contains("No such file"), "{elsewhere}");
    assert_eq!(rogue.say(&format!("at {socket}")), "left");

    // Of root outside it takes nothing, however much it asks for.
    let crowd = rogue.say("crowd 2000");
    let count: usize = crowd.strip_prefix("crowd ").unwrap().parse().unwrap();
    assert!((16..2000).contains(&count), "the attack has {count} connections");
    let host: Vec<_> = (0..=count)
        .map(|_| partywall_testkit::Conversation::open(&project.socket()).unwrap())
        .collect();
    assert!(!project.links().is_empty());
    assert_eq!(project.caller("web", "store").call(100), "turned false false");
    assert_eq!(web.call(100), "turned false false");
    drop(host);
}

/// The directory of the socket belongs to a user that no container has, so it cannot be written where
/// somebody has it mounted to be written, either.
#[test]
fn a_writable_mount_puts_no_coordinator_before_remapped_containers() {
    let engine = Engine::start_remapped();
    let services = [
        service("store", 1001, "serve, store", "x-partywall:"),
        service("web", 1002, "idle", "x-partywall:"),
    ];
    let project = Project::new(&engine, "writable", &services);
    let policy = project.write(
        "policy.toml",
        "[principal.stores]\nuid = 301001\n[principal.webs]\nuid = 301002\n[service.store]\n\
         register = ['stores']\n[service.store.call]\nwebs = ['*']\n",
    );
    project.up(&["--policy", policy.to_str().unwrap()]);
    let mut web = project.caller("web", "store");
    assert_eq!(web.call(100), "turned false false");
    let before = entries(&project.run_dir());
    let mount = format!("{}:/evil", project.run_dir().display());
    // Root there, the user that is called as the coordinator's is, and one more.
    for (user, socket) in [
        ("0", "/evil/socket/coordinator.sock"),
        ("0", "/evil/socket"),
        ("0", "/evil/operators.sock"),
        ("65534", "/evil/socket/coordinator.sock"),
        ("1002", "/evil/socket/coordinator.sock"),
    ] {
        let run = ["run", "--rm", "--network=none", "--user", user, "--volume", &mount, IMAGE];
        let attack = said(engine.docker(&run).args(["/bin/et-end", "replace", socket]));
        println!("{user} {socket}: {attack}");
        assert_eq!(attack.lines().count(), 10, "{attack}");
        let fails = |line: &str| line.ends_with(" EACCES") || line.ends_with(" EPERM");
        assert!(attack.lines().all(fails), "{user} {socket}: {attack}");
        assert_eq!(entries(&project.run_dir()), before);
    }
    assert_eq!(web.call(100), "turned false false");
    assert_eq!(project.caller("web", "store").call(100), "turned false false");
}

/// What is in a directory and below: the number of each file, its user and its mode.
fn entries(dir: &Path) -> Vec<(std::path::PathBuf, u64, u32, u32)> {
    use std::os::unix::fs::MetadataExt;
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let (path, is) = (entry.path(), entry.metadata().unwrap());
        if is.is_dir() {
            all.extend(entries(&path));
        }
        all.push((path, is.ino(), is.uid(), is.mode()));
    }
    all.sort();
    all
}

/// By `partywall compose`; by hand they are known by their user, and by no container.
#[test]
fn containers_of_a_rootless_engine_are_known_by_their_user() {
    let engine = Engine::start_rootless();
    let project = Project::new(&engine, "rootless", &shop(0));
    let (code, why) = finished(project.order(&["up", "-d"]).arg(project.file()));
    let refused = "the engine is rootless: its user can write the control groups of its containers";
    assert!(code == Some(1) && why.contains(refused), "{why}");
    project.assert_nothing_left();

    // The one that has the container's id may call everything, its user but one method.
    let dir = tempfile::tempdir().unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(dir.path(), mode).unwrap();
    let socket = dir.path().join("coordinator.sock");
    let mount = format!("{}:/run/partywall:ro", dir.path().display());
    let create = ["create", "--network=none", "--volume", &mount, IMAGE, "/bin/et-end", "idle"];
    let id = said(&mut engine.docker(&create)).trim().to_owned();
    let policy = format!(
        "[engine.docker]\n[engine.podman]\n[principal.inside]\ncontainer = '{id}'\n[principal.users]\n\
         uid = {USER}\n[principal.stores]\nuid = 1004\n[service.store]\nregister = ['stores']\n\
         [service.store.call]\ninside = ['*']\n"
    );
    said(&mut engine.docker(&["start", &id]));
    let ask = || {
        let exec = ["exec", "--interactive", "--env", "PARTYWALL_COORDINATOR_UID=65534"];
        let mut exec = engine.docker(&exec);
        exec.args(["--env", "PARTYWALL_SOCKET=/run/partywall/coordinator.sock", &id]);
        Caller::start(exec.args(["/bin/et-end", "ask", "store"]))
    };
    let serve = |socket: &Path| {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(END);
        command.args(["serve", "store"]).env("PARTYWALL_SOCKET", socket).uid(1004).gid(1004);
        command.spawn().unwrap()
    };
    {
        let host = Host::at(&socket, &policy);
        let mut server = serve(&socket);
        let denied = ask().call(100);
        assert!(denied.starts_with("failed PermissionDenied"), "{denied}");
        assert!(denied.contains(&format!("(uid {USER}, known as users)")), "{denied}");
        server.kill().unwrap();
        server.wait().unwrap();
        drop(host);
    }
    let policy = format!("{policy}users = ['*']\n");
    let _host = Host::at(&socket, &policy);
    let mut server = serve(&socket);
    let mut asks = ask();
    asks.call_until(100, "turned false false");
    let listed = said(Command::new(partywall()).args(["links", "--json", "--socket"]).arg(&socket));
    let link: Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
    assert_eq!(link["caller"]["uid"], USER);
    assert_eq!(link["caller"]["container"], Value::Null);
    assert_eq!(link["caller"]["principals"], serde_json::json!(["users"]));
    drop(asks);
    server.kill().unwrap();
    server.wait().unwrap();
}
