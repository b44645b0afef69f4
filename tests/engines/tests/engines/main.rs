//! Services in containers of real engines, by `partywall compose`. `cargo xtask test engines` runs this.

mod browser;
mod camera;
mod engine;
mod hostile;
mod images;
mod origins;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use engine::{
    Caller, Engine, IMAGE, Project, built, facts, finished, processes_with, said, service,
};
use partywall_testkit::Held;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A server and who may call it, and one who may not.
fn shop(descriptors: u32) -> [String; 3] {
    let calls = format!("x-partywall: {{calls: [store/*], descriptors: {descriptors}}}");
    [
        service("store", 1001, "serve, store", "x-partywall:"),
        service("web", 1002, "idle", &calls),
        service("stranger", 1002, "idle", "x-partywall: {}"),
    ]
}

/// The number, the order and the facts of a process of a bench's sample that is in a container.
fn contained(dir: &str, role: &str) -> Option<(String, BTreeMap<String, String>)> {
    let is_it = |line: &str| line.contains(dir) && line.contains(&format!("\"role\":\"{role}\""));
    let (pid, line) = processes_with(" child ").into_iter().find(|(_, line)| is_it(line))?;
    let facts = facts(pid.as_raw_nonzero().get() as u64);
    line.contains("\"place\":\"two-containers\"").then_some((line, facts))
}

#[test]
fn benches_have_their_sides_in_containers_and_leave_nothing() {
    let bench = built("partywall-bench", "partywall-bench");
    let engine = Engine::start();
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().to_str().unwrap();
    let file = dir.path().join("run.json");
    let order = |sample| {
        let order = ["calls", "--quick", "--repeats", "1", "--max", "32", "--sample-ms", sample];
        let mut order = engine.with(&bench, &order);
        order.env("TMPDIR", here).arg("--json").arg(&file);
        order
    };
    let only = "partywall-native,partywall-raw,tonic-tcp";
    let (code, text) = finished(order("5").args(["--only", only]));
    assert_eq!(code, Some(0), "{text}");
    let run: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let rows = run["rows"].as_array().unwrap();
    for contender in only.split(',') {
        let of = |row: &&Value| row["contender"] == contender && row["place"] == "two-containers";
        let of: Vec<_> = rows.iter().filter(of).collect();
        assert!(!of.is_empty(), "{contender}: {}", run["run"]);
        for row in of {
            let is_right = row["errors"] == 0 && row["p50_ns"].as_f64() > Some(0.0);
            assert!(is_right && row["cpu_ns"].as_f64() > Some(0.0), "{row}");
        }
    }
    fs::remove_file(&file).unwrap();

    // Where they are, while they are there.
    let mut bench = order("3000").args(["--only", "partywall-raw"]).spawn().unwrap();
    let begin = Instant::now();
    let both = loop {
        let both = ["Server", "Client"].map(|role| contained(here, role));
        if let [Some(server), Some(client)] = both {
            break [server, client];
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "no sample has both in containers");
        std::thread::sleep(Duration::from_millis(20));
    };
    let host = facts(u64::from(std::process::id()));
    for ((line, facts), uid) in both.iter().zip([64_001, 64_002]) {
        for kind in ["ns pid", "ns mnt", "ns net", "ns ipc"] {
            assert_ne!(facts[kind], host[kind], "{kind} of {line}");
        }
        assert_eq!(facts["Seccomp"], "2", "{line}");
        assert_eq!(facts["CapEff"], "0000000000000000", "{line}");
        assert!(facts["Uid"].starts_with(&uid.to_string()), "{}", facts["Uid"]);
    }
    assert_ne!(both[0].1["ns pid"], both[1].1["ns pid"], "each in a container of its own");
    kill_process(Pid::from_child(&bench), Signal::INT).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(130));
    assert_eq!(engine.left(), [""; 0]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "files are left");
    assert!(processes_with(here).is_empty(), "processes are left");
}

#[test]
fn a_call_between_containers_passes_and_both_are_known() {
    let engine = Engine::start();
    let project = Project::new(&engine, "call", &shop(0));
    project.up(&[]);
    let mut web = project.caller("web", "store");
    assert_eq!(web.call(100), "turned false false");
    assert_eq!(web.call(1 << 20), "turned false false");

    let links = project.links();
    let open: Vec<&Value> = links.iter().filter(|link| link["open"] == true).collect();
    let [link] = open[..] else { panic!("one link: {links:?}") };
    for (end, service, uid) in [("caller", "web", 1002), ("server", "store", 1001)] {
        let end = &link[end];
        assert_eq!(end["container"], project.id(service), "{end}");
        assert_eq!(end["principals"], serde_json::json!([service]), "{end}");
        assert_eq!(end["uid"], uid, "{end}");
    }

    // The same image, user and mount are not enough.
    let denied = project.caller("stranger", "store").call(100);
    assert!(denied.starts_with("failed PermissionDenied"), "{denied}");
}

#[test]
fn containers_share_no_namespace_and_have_no_right_more() {
    let engine = Engine::start();
    let project = Project::new(&engine, "apart", &shop(4));
    project.up(&[]);
    let host = facts(std::process::id().into());
    let [store, web] = ["store", "web"].map(|service| facts(project.pid(service)));
    let private = ["ns ipc", "ns mnt", "ns net", "ns pid", "ns uts"];
    for namespace in private {
        let of = [&host, &store, &web].map(|facts| &facts[namespace]);
        assert!(of[0] != of[1] && of[0] != of[2] && of[1] != of[2], "{namespace}: {of:?}");
    }
    for end in [&store, &web] {
        assert_eq!((end["Seccomp"].as_str(), end["CapEff"].as_str()), ("2", "0000000000000000"));
        // Docker's default for a bounding set, of which its users have nothing.
        assert_eq!(end["CapBnd"], "00000000a80425fb");
        for mount in ["mount /", "mount /run/partywall"] {
            assert!(end[mount].split(',').any(|option| option == "ro"), "{mount}: {}", end[mount]);
        }
    }
    assert!(store["Uid"] != web["Uid"]);
    let mut caller = project.caller("web", "store");
    assert_eq!(caller.call(100), "turned false false");
    let of_project = project.inspect("store");
    assert_eq!(of_project["HostConfig"]["SecurityOpt"], Value::Null, "the default profile");
    assert_eq!(of_project["HostConfig"]["CapAdd"], Value::Null);
    assert_eq!(of_project["HostConfig"]["IpcMode"], "private");
}

#[test]
fn parcels_cross_between_containers_where_the_file_says_so() {
    let engine = Engine::start();
    let [store, web, _] = shop(4);
    let plain = service("plain", 1003, "idle", "x-partywall: {calls: [store/*]}");
    let project = Project::new(&engine, "parcels", &[store, web, plain]);
    project.up(&[]);
    let mut web = project.caller("web", "store");
    // A link's socket for descriptors comes after the link, and the coordinator is asked for longer memory.
    for bytes in [4 << 20, 300_000, 32 << 20] {
        web.call_until(bytes, "turned true true");
    }
    assert_eq!(web.call(1000), "turned false false", "too short for one");
    let mut plain = project.caller("plain", "store");
    for _ in 0..20 {
        assert_eq!(plain.call(4 << 20), "turned false false", "no descriptor may cross");
    }
}

#[test]
fn a_program_on_the_host_calls_a_container_by_a_policy_file() {
    let engine = Engine::start();
    let services = [service("store", 1001, "serve, store", "x-partywall:")];
    let project = Project::new(&engine, "host", &services);
    let policy = project.write(
        "policy.toml",
        "[principal.desk]\nuid = 1004\n[service.store]\nregister = ['store']\n[service.store.call]\n\
         desk = ['frames.v1.Frames/Turn']\n",
    );
    project.up(&["--policy", policy.to_str().unwrap()]);
    let ask = |uid: u32| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_et-end"));
        command.args(["ask", "store"]).env("PARTYWALL_SOCKET", project.socket());
        Caller::start(command.uid(uid).gid(uid)).call(5000)
    };
    assert_eq!(ask(1004), "turned false false");
    let refused = ask(1005);
    assert!(refused.starts_with("failed PermissionDenied"), "{refused}");
    let link = &project.links()[0];
    assert_eq!(
        (&link["caller"]["container"], &link["caller"]["uid"]),
        (&Value::Null, &1004.into())
    );
    assert_eq!(link["server"]["container"], project.id("store"));
}

/// No link is open soon, and the coordinator has no descriptor of one.
fn assert_no_link(project: &Project<'_>) {
    let begin = Instant::now();
    while project.links().iter().any(|link| link["open"] == true) {
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", project.links());
        std::thread::sleep(Duration::from_millis(10));
    }
    let held = Held::by(project.coordinator());
    assert_eq!(held.descriptors_of("partywall-outbox"), 0, "{held:?}");
}

/// Nothing is left at the coordinator but one link, whose memory is that of the start.
fn assert_one_link(project: &Project<'_>, before: &Held) {
    before.wait_for(project.coordinator());
    let links = project.links();
    let open: Vec<&Value> = links.iter().filter(|link| link["open"] == true).collect();
    assert_eq!(open.len(), 1, "{links:?}");
}

#[test]
fn a_server_out_of_memory_and_a_restarted_engine_leave_nothing() {
    let engine = Engine::start();
    let [store, web, stranger] = shop(4);
    let project = Project::new(&engine, "memory", &[store + "    mem_limit: 64m\n", web, stranger]);
    project.up(&[]);
    let mut web = project.caller("web", "store");
    web.call_until(1 << 20, "turned true true");
    let before = project.held();
    let dead = web.say("eat");
    assert!(dead.starts_with("failed Unavailable"), "{dead}");
    let begin = Instant::now();
    while project.inspect("store")["State"]["Running"] == true {
        assert!(begin.elapsed() < Duration::from_secs(10), "{}", project.inspect("store"));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(project.inspect("store")["State"]["OOMKilled"], true);
    project.docker(&["start"], "store");
    web.call_until(1 << 20, "turned true true");
    assert_one_link(&project, &before);

    // Its containers end with it.
    let [store, caller] = ["store", "web"].map(|service| project.pid(service));
    drop(web);
    engine.stop();
    for pid in [store, caller] {
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "{pid}");
    }
    assert_no_link(&project);
    engine.start_again();
    for service in ["store", "web"] {
        project.docker(&["start"], service);
    }
    let mut web = project.caller("web", "store");
    web.call_until(1 << 20, "turned true true");
    assert_one_link(&project, &before);
}

#[test]
fn a_server_that_is_killed_and_restarted_leaves_nothing() {
    let engine = Engine::start();
    let project = Project::new(&engine, "again", &shop(4));
    project.up(&[]);
    let mut web = project.caller("web", "store");
    web.call_until(1 << 20, "turned true true");
    let before = project.held();
    assert!(before.descriptors_of("partywall-outbox") > 0, "{before:?}");
    for round in 0..3 {
        project.docker(&["kill"], "store");
        let dead = web.call(100);
        assert!(dead.starts_with("failed Unavailable"), "{round}: {dead}");
        project.docker(&["start"], "store");
        web.call_until(1 << 20, "turned true true");
        project.docker(&["restart", "--time", "0"], "store");
        web.call_until(1 << 20, "turned true true");
        assert_one_link(&project, &before);
    }
    drop(web);
    project.docker(&["kill"], "store");
    assert_no_link(&project);
}

/// What comes of the attempts to replace the socket.
const REPLACED: &str = "unlink EROFS\nrename EROFS\nbind EROFS\ncreate EROFS\nsymlink EROFS\nchmod EROFS\n\
                        chown EROFS\nmount EPERM\nremount EPERM\nunmount EPERM\n";

#[test]
fn the_socket_cannot_be_replaced_from_a_container() {
    let engine = Engine::start();
    let [store, web, _] = shop(0);
    let root = service("rogue", 0, "idle", "x-partywall: {calls: [store/*]}");
    // A directory that two services share, and that one of them has filled.
    let shared = tempfile::tempdir().unwrap();
    fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let volume = |of: String| format!("{of}    volumes: ['{}:/shared']\n", shared.path().display());
    let other = volume(service("other", 1003, "listen, /shared/c.sock", ""));
    let project = Project::new(&engine, "rogue", &[store, volume(web), root, other]);
    project.up(&[]);
    let id = project.id("rogue");
    // With all rights that an engine gives to root.
    let attack = ["exec", &id, "/bin/et-end", "replace", "/run/partywall/coordinator.sock"];
    let outcome = said(&mut engine.docker(&attack));
    assert_eq!(outcome, REPLACED);
    // It is nobody's operator, whatever its uid, and a caller like any other.
    let mut rogue = project.caller("rogue", "store");
    assert_eq!(rogue.call(100), "turned false false");
    let serve = ["20", "docker", "exec", &id, "/bin/et-end", "serve", "store"];
    let (code, refused) = finished(&mut engine.with("timeout", &serve));
    assert!(code == Some(1) && refused.contains("serve `store`; remedy"), "{refused}");
    // What another container has put where both see it is no coordinator.
    let begin = Instant::now();
    while !shared.path().join("c.sock").exists() {
        assert!(begin.elapsed() < Duration::from_secs(10), "nobody listens");
        std::thread::sleep(Duration::from_millis(10));
    }
    let id = project.id("web");
    let elsewhere = ["exec", "-i", "--env", "PARTYWALL_SOCKET=/shared/c.sock", &id, "/bin/et-end"];
    let refused = Caller::start(engine.docker(&elsewhere).args(["ask", "store"])).call(100);
    assert!(refused.starts_with("failed") && refused.contains("user 1003"), "{refused}");
    let entries: Vec<_> =
        fs::read_dir(project.run_dir().join("socket")).unwrap().flatten().collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert_eq!(project.caller("web", "store").call(100), "turned false false");
}

/// Whom such a container trusts is the user that no user of it is; who leads it there is the mount.
#[test]
fn containers_with_remapped_users_are_known_by_their_users() {
    let engine = Engine::start_remapped();
    let services = [
        service("store", 1001, "serve, store", "x-partywall:"),
        service("web", 1002, "idle", "x-partywall:"),
        service("rogue", 0, "idle", "x-partywall:"),
    ];
    let project = Project::new(&engine, "remapped", &services);
    let (code, why) = finished(project.order(&["up", "-d"]).arg(project.file()));
    assert!(code == Some(1) && why.contains("userns-remap"), "{why}");
    project.assert_nothing_left();

    let policy = project.write(
        "policy.toml",
        "[principal.stores]\nuid = 301001\n[principal.webs]\nuid = 301002\n[service.store]\n\
         register = ['stores']\n[service.store.call]\nwebs = { methods = ['*'], descriptors = 4 }\n",
    );
    project.up(&["--policy", policy.to_str().unwrap()]);
    let mut web = project.caller("web", "store");
    web.call_until(1 << 20, "turned true true");
    let links = project.links();
    let link = links.iter().find(|link| link["open"] == true).unwrap();
    assert_eq!(
        (&link["caller"]["uid"], &link["server"]["uid"]),
        (&301_002.into(), &301_001.into())
    );
    assert_eq!(link["caller"]["container"], Value::Null, "its number proves nothing");

    let refused = project.caller("rogue", "store").call(100);
    assert!(refused.starts_with("failed PermissionDenied"), "{refused}");
    let id = project.id("rogue");
    let attack = ["exec", &id, "/bin/et-end", "replace", "/run/partywall/coordinator.sock"];
    assert_eq!(said(&mut engine.docker(&attack)), REPLACED);
    // Without the variable nobody is trusted, not even by root.
    for service in ["web", "rogue"] {
        let id = project.id(service);
        let exec =
            ["exec", "--interactive", "--env", "PARTYWALL_COORDINATOR_UID=0", &id, "/bin/et-end"];
        let refused = Caller::start(engine.docker(&exec).args(["ask", "store"])).call(100);
        assert!(refused.contains("65534"), "{refused}");
    }
}

/// Podman answers as Docker does, and has groups of its own form.
#[test]
fn containers_of_podman_call_and_are_known() {
    let engine = Engine::start_podman();
    // Its own limits are more than a machine may have.
    let limits = "ulimits: {nofile: {soft: 1024, hard: 4096}, nproc: {soft: 4096, hard: 4096}}";
    let alone = |of: String| format!("{of}    network_mode: none\n    {limits}\n");
    let project = Project::new(&engine, "podman", &shop(4).map(alone));
    project.up(&[]);
    let mut web = project.caller("web", "store");
    web.call_until(1 << 20, "turned true true");
    for service in ["store", "web"] {
        let facts = facts(project.pid(service));
        assert_eq!(
            (facts["Seccomp"].as_str(), facts["CapEff"].as_str()),
            ("2", "0000000000000000")
        );
    }
    let links = project.links();
    let link = links.iter().find(|link| link["open"] == true).unwrap();
    assert_eq!(link["caller"]["container"], project.id("web"));
    assert_eq!(link["server"]["container"], project.id("store"));
    for (end, service) in [("caller", "web"), ("server", "store")] {
        let image = link[end]["image"].as_str().unwrap();
        let digits = image.strip_prefix("sha256:").unwrap();
        let inspected = project.inspect(service);
        assert!(inspected["Image"].as_str().unwrap().ends_with(digits), "{inspected}");
        assert_eq!(link[end]["compose"], format!("{}/{service}", project.name));
    }
    let denied = project.caller("stranger", "store").call(100);
    assert!(denied.starts_with("failed PermissionDenied"), "{denied}");
    project.docker(&["kill"], "store");
    let dead = web.call(100);
    assert!(dead.starts_with("failed Unavailable"), "{dead}");
    project.docker(&["start"], "store");
    web.call_until(1 << 20, "turned true true");
    drop(web);
    said(&mut project.order(&["down"]));
    project.assert_nothing_left();
}

#[test]
fn ctrl_c_leaves_nothing_of_a_run_in_containers() {
    let engine = Engine::start();
    let project = Project::new(&engine, "stopped", &shop(0));
    let log = project.write("log", "");
    let open = || fs::OpenOptions::new().append(true).open(&log).unwrap();
    let mut up = project.order(&["up"]);
    let mut up = up.arg(project.file()).stdout(open()).stderr(open()).spawn().unwrap();
    let begin = Instant::now();
    // Whoever may call is there, and so is who is called.
    let mut caller = loop {
        let running = ["ps", "--quiet", "--filter", "status=running"];
        if said(&mut engine.docker(&running)).lines().count() == 3 {
            break project.caller("web", "store");
        }
        assert!(up.try_wait().unwrap().is_none() && begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(50));
    };
    caller.call_until(100, "turned false false");
    // A second run of the same project changes nothing.
    let (_, second) = finished(project.order(&["up", "-d"]).arg(project.file()));
    assert!(second.contains("is up ("), "{second}");
    assert_eq!(caller.call(100), "turned false false");
    let listed = said(&mut project.order(&["ps"]));
    assert!(listed.contains("store") && listed.contains("web"), "{listed}");
    kill_process(Pid::from_child(&up), Signal::INT).unwrap();
    let code = up.wait().unwrap().code();
    assert_eq!(code, Some(130), "{}", fs::read_to_string(&log).unwrap());
    drop(caller);
    project.assert_nothing_left();
}

#[test]
fn a_start_that_fails_leaves_nothing_of_a_run_in_containers() {
    let engine = Engine::start();
    // The last one cannot be made; then the last one cannot be started.
    let missing =
        service("absent", 1003, "idle", "x-partywall:").replace(IMAGE, "partywall-test:none");
    let broken =
        service("absent", 1003, "idle", "x-partywall:").replace("/bin/et-end", "/bin/none");
    for (name, last) in [("missing", missing), ("broken", broken)] {
        let [store, web, _] = shop(0);
        let project =
            Project::new(&engine, name, &[store, web, last + "    depends_on: [store, web]\n"]);
        for detached in [&["up"][..], &["up", "-d"]] {
            let (code, text) = finished(project.order(detached).arg(project.file()));
            assert_eq!(code, Some(1), "{name}: {text}");
            project.assert_nothing_left();
        }
        // What Compose refuses it says once, and a good file can be started then.
        let good = fs::read_to_string(project.file()).unwrap();
        fs::write(project.file(), good.replace("    depends_on:", "    depend_on:")).unwrap();
        let (code, text) = finished(project.order(&["up"]).arg(project.file()));
        assert_eq!(code, Some(1), "{name}: {text}");
        assert_eq!(text.matches("depend_on").count(), 1, "{text}");
        project.assert_nothing_left();
        // Nothing was touched before a mistake in the files was found.
        fs::write(
            project.file(),
            "services:\n  a:\n    image: x\n    x-partywall: {calls: [b/*]}\n",
        )
        .unwrap();
        let (_, text) = finished(project.order(&["up"]).arg(project.file()));
        assert!(text.contains("compose.yaml:4:"), "{text}");
        project.assert_nothing_left();
    }
}

#[test]
fn a_context_that_leads_elsewhere_starts_nothing() {
    let engine = Engine::start();
    let project = Project::new(&engine, "context", &shop(0));
    // A socket of this host that is not /run/docker.sock, and an engine of another host.
    let own = format!("host={}", engine.host());
    for (name, to) in [("own", own.as_str()), ("away", "host=tcp://127.0.0.1:9")] {
        said(&mut engine.docker(&["context", "create", name, "--docker", to]));
        let mut up = project.order(&["up", "-d"]);
        let (code, text) =
            finished(up.arg(project.file()).env_remove("DOCKER_HOST").env("DOCKER_CONTEXT", name));
        assert_eq!(code, Some(1), "{text}");
        assert!(
            text.contains("docker's context leads to ") && text.contains("set DOCKER_HOST"),
            "{text}"
        );
        project.assert_nothing_left();
    }
    // DOCKER_HOST goes first for Docker, and so here.
    let mut up = project.order(&["up", "-d"]);
    let (code, text) = finished(up.arg(project.file()).env("DOCKER_CONTEXT", "away"));
    assert_eq!(code, Some(0), "{text}");
    assert!(project.order(&["down"]).status().unwrap().success());
    project.assert_nothing_left();
}

#[test]
fn a_run_in_the_background_goes_on_until_down() {
    let engine = Engine::start();
    let project = Project::new(&engine, "background", &shop(0));
    // On top of the file, and named by its own.
    let more = project.write(
        "more.yaml",
        "services:\n  stranger:\n    hostname: elsewhere\n    x-partywall: {calls: [store/frames.v1.Frames/Turn]}\n",
    );
    project.up(&["-f", more.to_str().unwrap()]);
    assert_eq!(project.caller("stranger", "store").call(100), "turned false false");
    assert_eq!(project.inspect("stranger")["Config"]["Hostname"], "elsewhere");
    let logs = said(&mut project.order(&["logs", "--service", "store"]));
    assert!(logs.contains("store"), "{logs}");
    // The coordinator's death is no end, and `down` needs it for nothing.
    let coordinator = Pid::from_raw(project.coordinator() as i32).unwrap();
    kill_process(coordinator, Signal::KILL).unwrap();
    said(&mut project.order(&["down"]));
    project.assert_nothing_left();
    let (_, again) = finished(&mut project.order(&["down"]));
    assert!(again.contains("is not up"), "{again}");
}
