//! A program that is started with a signature beside it.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use partywall_coordinator::launch::{self, Service};
use partywall_coordinator::signatures::{Signatures, beside, digest_of};
use partywall_coordinator::{Coordinator, Policy};
use partywall_testkit::Conversation;
use partywall_trust::{Program, SigningKey};

/// A directory with a program that is signed as `web`, and the key's public half.
fn signed(dir: &Path) -> Service {
    let (program, key) = (dir.join("web"), SigningKey::generate());
    fs::copy("/bin/true", &program).unwrap();
    let said = Program::new("web", vec![], SystemTime::now(), Duration::from_secs(600));
    let digest = digest_of(&program).unwrap();
    fs::write(beside(&program), said.sign("web", digest, &key)).unwrap();
    fs::write(dir.join("builder.pub"), key.public().to_pem()).unwrap();
    Service {
        name: "web".into(),
        program,
        args: Vec::new(),
        environment: Vec::new(),
        directory: "/".into(),
        signatures: None,
    }
}

#[test]
fn a_signed_program_is_known_to_its_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let mut service = signed(dir.path());
    let policy = dir.path().join("policy.toml");
    let text = format!(
        "[signatures]\nkeys = ['{}/builder.pub']\n[principal.signed]\nsigned = true\n",
        dir.path().display()
    );
    fs::write(&policy, text).unwrap();
    let coordinator = Coordinator::start(None, Policy::load(&policy).unwrap()).unwrap();
    let principals = |service: &Service| {
        // The program that is known runs already: this one.
        let prepared = launch::prepare(service).unwrap();
        let pid = rustix::process::getpid();
        let flags = rustix::process::PidfdFlags::empty();
        let pidfd = rustix::process::pidfd_open(pid, flags).unwrap();
        let pid = pid.as_raw_nonzero().get() as u32;
        prepared.known.started(&coordinator, pid, pidfd, None);
        let mut started = Conversation::from(prepared.socket);
        started.prove().unwrap();
        started.you().principals.clone()
    };
    assert_eq!(principals(&service), ["signed"]);
    service.name = "db".into();
    assert_eq!(principals(&service), [""; 0], "it is signed for another name");
    service.name = "web".into();
    fs::write(&service.program, "another program").unwrap();
    assert_eq!(principals(&service), [""; 0]);
}

#[test]
fn a_program_that_has_to_be_signed_is_not_started_without() {
    let dir = tempfile::tempdir().unwrap();
    let mut service = signed(dir.path());
    let trusted = Signatures::load(&[dir.path().join("builder.pub")], None).unwrap();
    service.signatures = Some(trusted.into());
    assert!(launch::prepare(&service).is_ok());
    let refused = |service: &Service| launch::prepare(service).unwrap_err().to_string();
    fs::write(&service.program, "another program").unwrap();
    let said = refused(&service);
    assert!(said.starts_with("service `web`: checking the signature of /"), "{said}");
    assert!(said.contains("web: altered: ") && said.contains("; remedy: restore"), "{said}");
    fs::remove_file(beside(&service.program)).unwrap();
    let said = refused(&service);
    assert!(said.contains("web: unsigned: ") && said.contains("partywall sign"), "{said}");
}
