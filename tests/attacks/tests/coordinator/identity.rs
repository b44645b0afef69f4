//! Row 30: processes that are not what they say, names that are not theirs.

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;

use partywall_abi::control::{LinkMessage, Message, RegistryMessage};
use partywall_attacks::{Town, name};
use partywall_shm::{memory, socket};

use super::{OPEN, PERMISSION_DENIED, PROGRAMS, closed, connect, principal, refused, stripped};

fn registers(request: u32, to: &str) -> Message {
    Message::Registry(RegistryMessage::Register { request, name: name(to), places: 9 })
}

/// This process is denied, and the audit log says so.
fn denied(town: &Town, what: &str, text: &str) {
    let line = || {
        let lines = town.events("denied").into_iter();
        lines.rev().find(|line| line["what"] == what && line["text"] == text)
    };
    town.until("a line of the audit log", || line().is_some());
    let line = line().unwrap();
    assert_eq!(line["pid"], std::process::id(), "{line}");
    assert!(line["principals"].as_array().unwrap().is_empty(), "{line}");
}

#[test]
fn row_30_a_process_that_nobody_knows_is_denied() {
    let town = Town::new(*PROGRAMS, &closed());
    let _service = town.service(&[]);
    let mut witness = town.witness();
    let hostile = town.hostile();
    let this = {
        let (pid, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
        format!("process {pid} (uid {uid}, known as no principal)")
    };
    let watch = RegistryMessage::Watch { request: 5, name: name("test") };
    for (message, what, begin) in [
        (connect(1, "test"), "connect", format!("lets {this} call nothing at `test`; remedy: ")),
        (registers(2, "test"), "register", format!("does not let {this} serve `test`; remedy: ")),
        (
            connect(3, "nobody"),
            "connect",
            format!("lets {this} call nothing at `nobody`; remedy: "),
        ),
        (
            registers(4, "nobody"),
            "register",
            format!("does not let {this} serve `nobody`; remedy: "),
        ),
        (watch.into(), "watch", format!("lets {this} call nothing at `test`; remedy: ")),
    ] {
        hostile.say(&message).unwrap();
        let (code, text) = refused(&hostile);
        assert_eq!(code, PERMISSION_DENIED, "{text}");
        let denies = format!("the policy {begin}");
        assert!(text.starts_with(&denies), "{text} does not begin with {denies}");
        denied(&town, what, &text);
    }
    assert_eq!(witness.asked("call 100"), "ok");
    assert!(town.events("registered").len() == 1 && town.events("introduced").len() == 1);
}

/// Names that no library lets through, written into a good packet.
#[test]
fn row_30_a_name_that_is_none_ends_the_connection() {
    let town = Town::new(*PROGRAMS, &closed());
    let _service = town.service(&[]);
    let mut witness = town.witness();
    let packet = registers(1, "test").encode();
    let at = packet.windows(4).position(|word| word == b"test").unwrap();
    for forged in
        [b"te\0t", b"te/t", b"te t", b"TEST", b".est", b"te\xfft", b"te\nt", b"\xe2\x80\xae."]
    {
        let hostile = town.hostile();
        let mut packet = packet.clone();
        packet[at..at + 4].copy_from_slice(forged);
        socket::send(hostile.as_fd(), &packet, &[]).unwrap();
        assert!(hostile.next_or_end().unwrap().is_none(), "{forged:?}");
    }
    assert_eq!(witness.asked("call 100"), "ok");
    assert_eq!(town.events("registered").len(), 1);
}

/// A name whose owner has died is nobody's: who may not serve it gets it no more than before, and who calls
/// it is told that nobody serves it.
#[test]
fn row_30_a_dead_owners_name_is_nobodys() {
    let town = Town::new(*PROGRAMS, &closed());
    let mut service = town.service(&[]);
    let mut caller = town.caller(&[]);
    let squatter = town.hostile();
    let squats = |request| {
        squatter.say(&registers(request, "test")).unwrap();
        let (code, text) = refused(&squatter);
        assert_eq!(code, PERMISSION_DENIED, "{text}");
    };
    squats(1);
    assert_eq!(caller.asked("open"), "open");
    for round in 0..3 {
        service.kill();
        squats(10 + round);
        let said = caller.asked("open");
        assert!(said.starts_with("Unavailable: nobody serves `test` on this host"), "{said}");
        squats(20 + round);
        service = town.service(&[]);
        squats(30 + round);
        assert_eq!(caller.asked("open"), "open");
        assert_eq!(caller.asked("call 100"), "ok");
    }
}

/// A trusted program connects and ends. A hostile process has the same socket, and starts another one that
/// gets the same number, which answers: the credentials of its packets are those of who connected.
#[test]
fn row_30_a_number_used_again_is_not_the_process_that_had_it() {
    let heir = stripped(env!("CARGO_BIN_EXE_at-heir"));
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // The same program with a byte more is another one.
    let program = [&std::fs::read(heir).unwrap()[..], &[0]].concat();
    std::fs::write(at("trusted"), program).unwrap();
    std::fs::set_permissions(at("trusted"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let policy = format!("harden = false\n{}", principal("trusted", &at("trusted")));
    std::fs::write(at("policy"), policy).unwrap();
    let said = std::process::Command::new("unshare")
        .args([
            "--user",
            "--map-root-user",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            heir,
        ])
        .args(["heir", "--socket"])
        .arg(at("c.sock"))
        .arg("--policy")
        .arg(at("policy"))
        .arg("--trusted")
        .arg(at("trusted"))
        .output()
        .unwrap();
    let (out, why) =
        (String::from_utf8(said.stdout).unwrap(), String::from_utf8_lossy(&said.stderr));
    let lines: Vec<&str> = out.lines().collect();
    let [trusted, other, heir] = lines[..] else { panic!("{lines:?} {why}") };
    assert_eq!((trusted, other), ("[\"trusted\"]", "[]"));
    // The kernel tells the coordinator that its process has ended; the answer is not read.
    assert_eq!(heir, "closed");
}

/// Each end may find less than the coordinator says, and none may find more.
#[test]
fn row_30_an_end_raises_nothing_that_protects_its_link() {
    let town = Town::new(*PROGRAMS, OPEN);
    let _service = town.service(&[]);
    let mut witness = town.witness();
    let hostile = town.hostile();
    hostile.say(&connect(1, "test")).unwrap();
    let (terms, own, servers, _end) = hostile.linked().unwrap();
    let outbox = memory::adopt(own.as_fd(), terms.geometry).unwrap();
    memory::fill_own(&outbox).unwrap();
    memory::begin(&outbox, terms.geometry);
    let inbox = memory::accept(servers.as_fd(), terms.geometry).unwrap();
    memory::fill_peers(&inbox).unwrap();
    let (link, security) = (terms.link, partywall::Security::HIGHEST);
    assert_ne!(terms.security, security);
    hostile.say(&LinkMessage::Adopted { link, security }.into()).unwrap();
    let introduced = || town.events("introduced").into_iter().find(|line| line["link"] == link);
    town.until("the link is open", || introduced().is_some());
    let line = introduced().unwrap();
    let levels = ["isolation", "confidentiality", "evidence"].map(|field| &line["security"][field]);
    let found = &terms.security;
    let found = [found.isolation.word(), found.confidentiality.word(), found.evidence.word()];
    assert_eq!(levels, found);
    assert_eq!(found[2], "observed");
    assert_eq!(witness.asked("call 100"), "ok");
}
