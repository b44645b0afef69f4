//! The keys that Compose has for services.

use std::time::Duration;

use rustix::process::Signal;

use super::*;
use crate::compose::Restart;

/// A service with these lines beside its `x-partywall`; they begin on line 3.
fn with(keys: &str) -> String {
    let keys = keys.lines().map(|line| format!("    {line}\n")).collect::<String>();
    format!("services:\n  a:\n{keys}    x-partywall: {{program: /bin/true, args: [x]}}\n")
}

fn manners(keys: &str) -> Manners {
    good(&with(keys)).services.remove(0).manners
}

#[test]
fn protecting_keys_are_refused() {
    let some = [
        "cap_drop: [ALL]",
        "read_only: true",
        "security_opt: [no-new-privileges]",
        "mem_limit: 64m",
        "cpus: 0.5",
        "pids_limit: 10",
        "network_mode: none",
        "ulimits: {nofile: 10}",
        "userns_mode: host",
        "scale: 2",
        "profiles: [debug]",
    ];
    let all = crate::compose::keys::REFUSED.map(|key| format!("{key}: [x]"));
    for key in some.iter().map(|key| (*key).to_owned()).chain(all) {
        let error = error(&with(&key));
        let name = key.split(':').next().unwrap();
        let place = format!("compose.yaml:3: services.a.{name}: ");
        assert!(error.starts_with(&place), "{error}");
        assert!(error.contains("remove the key") && error.contains("container"), "{error}");
    }
    let limits = error(&with("deploy: {resources: {limits: {cpus: '1'}}}"));
    assert!(limits.starts_with("compose.yaml:3: services.a.deploy.resources.limits: "), "{limits}");
    let replicas = error(&with("deploy: {replicas: 3}"));
    assert!(replicas.contains("deploy.replicas: `up` runs each service once"), "{replicas}");
    // What asks for nothing is no reason to refuse.
    for key in ["cap_drop: []", "read_only: false", "mem_limit:", "network_mode: host", "scale: 1"]
    {
        assert!(good(&with(key)).notes.is_empty(), "{key}");
    }
}

#[test]
fn a_user_is_refused_unless_it_is_the_one_who_runs_up() {
    let own = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    manners(&format!("user: '{own}'"));
    manners(&format!("user: '{own}:{group}'"));
    let name = if own == 0 { "nobody" } else { "root" };
    for other in [name.to_owned(), (own + 1).to_string(), format!("{own}:{}", group + 1)] {
        let error = error(&with(&format!("user: '{other}'")));
        assert!(
            error.starts_with(&format!("compose.yaml:3: services.a.user: `{other}`: ")),
            "{error}"
        );
        assert!(error.contains(&format!("has number {own}")), "{error}");
    }
}

#[test]
fn container_keys_have_a_note() {
    let keys = "image: x\nbuild: .\ncommand: [x]\nports: ['80:80']\nhealthcheck: {test: x}\n\
                entrypoint: /x\nvolumes: [a:/a]\nprivileged: true\nx-own: 1";
    let notes = good(&with(keys)).notes;
    assert_eq!(
        notes,
        ["compose.yaml:6: services.a: `ports`, `healthcheck`, `entrypoint`, `volumes`, \
          `privileged`: for containers, and not used: the service runs as a process of this host"]
    );
    let bare = "services:\n  a:\n    command: [x]\n    x-partywall: {program: /bin/true}\n";
    assert!(good(bare).notes[0].contains("`command`"), "nothing has its arguments");
}

#[test]
fn how_a_service_runs_and_ends_is_read() {
    let m = manners(
        "stop_signal: SIGUSR1\nstop_grace_period: 1m30s\nrestart: on-failure:3\nworking_dir: /",
    );
    assert_eq!((m.stop_signal, m.grace), (Signal::USR1, Some(Duration::from_secs(90))));
    assert_eq!(m.restart, Restart::OnFailure(Some(3)));
    assert!(m.working_dir.is_some_and(|dir| dir.value.is_dir()));
    let m = manners("image: x");
    assert_eq!((m.stop_signal, m.grace, m.restart), (Signal::TERM, None, Restart::Unsaid));
    assert_eq!(manners("stop_signal: '15'\nrestart: 'no'").restart, Restart::No);
    assert_eq!(manners("restart: unless-stopped").restart, Restart::Always);
    for (key, part) in [
        ("stop_signal: SIGFOO", "no signal to stop by"),
        ("stop_grace_period: 10", "such as `10s`"),
        ("restart: sometimes", "`unless-stopped`"),
        ("restart: on-failure:x", "on-failure:TIMES"),
        ("working_dir: /no/such/place", "is no directory of this host"),
    ] {
        let error = error(&with(key));
        assert!(
            error.starts_with("compose.yaml:3: services.a.") && error.contains(part),
            "{error}"
        );
    }
}

#[test]
fn mistyped_keys_are_errors_and_say_what_was_meant() {
    for (key, near) in [
        ("cap_dorp: [ALL]", "cap_drop"),
        ("workin_dir: /", "working_dir"),
        ("x-partywal: {package: p}", "x-partywall"),
        ("xpartywall: {package: p}", "x-partywall"),
    ] {
        let error = error(&with(key));
        assert!(error.starts_with("compose.yaml:3: services.a."), "{error}");
        assert!(error.contains(&format!("did you mean `{near}`?")), "{error}");
    }
    let alone = error("services:\n  a:\n    x-partywal: {package: p}\n");
    assert!(alone.contains("did you mean `x-partywall`?"), "{alone}");
    let file = error("service:\n  a:\n    x-partywall: {package: p}\n");
    assert!(file.starts_with("compose.yaml:1: service: "), "{file}");
    assert!(file.contains("did you mean `services`?"), "{file}");
    let above = error("x-partywall: {package: p}\nservices: {}\n");
    assert!(above.contains("this stands in a service; move it there"), "{above}");
}
