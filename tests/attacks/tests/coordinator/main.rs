//! Rows 30 to 32, 34 and 35: attacks on the coordinator. Each test is named after its row.

mod clock;
mod floods;
mod identity;
mod policy;
mod restarts;

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use partywall_abi::control::{LinkMessage, Message, SessionMessage};
use partywall_attacks::{Programs, Town, name};
use partywall_testkit::Conversation;

static PROGRAMS: LazyLock<Programs> = LazyLock::new(|| Programs {
    coordinator: env!("CARGO_BIN_EXE_at-coordinator"),
    service: stripped(env!("CARGO_BIN_EXE_at-service")),
    caller: stripped(env!("CARGO_BIN_EXE_at-caller")),
});

/// A program without what debuggers want: those that a coordinator measures are read as a whole, at the
/// lowest priority, while other tests have the processors.
fn stripped(program: &str) -> &'static str {
    let name = Path::new(program).file_name().unwrap().to_str().unwrap();
    // Who builds may be another user; each has one directory, which the next run uses again.
    let own = format!("attacks-of-user-{}", rustix::process::geteuid().as_raw());
    let dir = std::env::temp_dir().join(own);
    std::fs::create_dir_all(&dir).unwrap();
    let to = dir.join(format!("{name}-stripped"));
    let fresh = to.with_extension(std::process::id().to_string());
    let strip = Command::new("strip").arg("-o").arg(&fresh).arg(program).status();
    assert!(strip.expect("strip, of binutils").success());
    std::fs::rename(&fresh, &to).unwrap();
    to.to_str().unwrap().to_owned().leak()
}

/// Anyone serves and calls `test` and `bad`.
const OPEN: &str = "[service.test]\nregister = ['anyone']\n[service.test.call]\nanyone = ['*']\n\
                    [service.bad]\nregister = ['anyone']\n[service.bad.call]\nanyone = ['*']\n";

const PERMISSION_DENIED: u8 = 7;
const RESOURCE_EXHAUSTED: u8 = 8;
const UNAVAILABLE: u8 = 14;

/// A principal that is told by its program.
fn principal(name: &str, program: &Path) -> String {
    let digest = partywall_coordinator::identity::digest(&std::fs::read(program).unwrap());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("[principal.{name}]\nprogram = 'sha256:{hex}'\nevidence = 'observed'\n")
}

/// `test` is served by `at-service` and called by `at-caller`, and by nobody else.
fn closed() -> String {
    let service = principal("service", Path::new(PROGRAMS.service));
    let caller = principal("caller", Path::new(PROGRAMS.caller));
    format!(
        "{service}{caller}[service.test]\nregister = ['service']\n[service.test.call]\ncaller = ['*']\n"
    )
}

fn connect(request: u32, to: &str) -> Message {
    Message::Link(LinkMessage::Connect { request, name: name(to) })
}

/// What is refused next, and why.
fn refused(by: &Conversation) -> (u8, String) {
    loop {
        match by.next().unwrap().0 {
            Message::Session(SessionMessage::Refused { code, text, .. }) => return (code, text),
            Message::End(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Told why, and closed.
fn turned_away(by: &Conversation) -> String {
    let (code, text) = refused(by);
    assert_eq!(code, UNAVAILABLE, "{text}");
    assert!(by.next_or_end().unwrap().is_none());
    text
}

/// Waits until a caller that is told to has a channel.
fn until_open(town: &Town, caller: &mut partywall_attacks::Victim) {
    town.until("a channel", || caller.asked("open") == "open");
}
