//! Rows 21 to 29: attacks over the memory of a link. Each test is named after its row.

mod attachments;
mod bounds;
#[cfg(feature = "failpoints")]
mod deaths;
mod descriptors;
mod killed;
mod known;
mod messages;
mod numbers;
mod races;
mod wakes;

use std::time::Duration;

use partywall_attacks::{Hand, Programs, Town, Victim, register};
use partywall_testkit::{Conversation, Held};

const PROGRAMS: Programs = Programs {
    coordinator: env!("CARGO_BIN_EXE_at-coordinator"),
    service: env!("CARGO_BIN_EXE_at-service"),
    caller: env!("CARGO_BIN_EXE_at-caller"),
};

/// Anyone serves and calls `test` and `bad`.
const OPEN: &str = "[service.test]\nregister = ['anyone']\n[service.test.call]\nanyone = ['*']\n\
                    [service.bad]\nregister = ['anyone']\n[service.bad.call]\nanyone = ['*']\n";

/// The same, and descriptors may cross.
const PARCELS: &str = "[service.test]\nregister = ['anyone']\n\
                       [service.test.call.anyone]\nmethods = ['*']\ndescriptors = 1\n\
                       [service.bad]\nregister = ['anyone']\n\
                       [service.bad.call.anyone]\nmethods = ['*']\ndescriptors = 1\n";

/// The same with attachments of all kinds.
const LEASES: &str = "[service.test]\nregister = ['anyone']\n\
                      [service.test.call.anyone]\nmethods = ['*']\ndescriptors = 4\nleases = true\n\
                      [service.bad]\nregister = ['anyone']\n\
                      [service.bad.call.anyone]\nmethods = ['*']\ndescriptors = 4\nleases = true\n";

/// A good call of a method that nobody has, in one record.
fn nobodys() -> Vec<u8> {
    partywall_attacks::call_head("/x.Y/Z", b"")
}

/// UNIMPLEMENTED.
const NOBODYS: u8 = 12;

/// A service that is attacked, somebody whom it serves, and who attacks: this process.
struct Attacked {
    town: Town,
    service: Victim,
    witness: Victim,
    hostile: Conversation,
    held: Held,
}

impl Attacked {
    fn new(policy: &str, service: &[&str]) -> Self {
        let town = Town::new(PROGRAMS, policy);
        let service = town.service(service);
        let (witness, hostile) = (town.witness(), town.hostile());
        // What belongs to the witness's link comes to the service before it is told of the next one.
        drop(Hand::calling(&hostile, "test").unwrap());
        let mut held = Held::by(service.pid());
        loop {
            std::thread::sleep(Duration::from_millis(20));
            match std::mem::replace(&mut held, Held::by(service.pid())) {
                before if before == held => break,
                _ => {}
            }
        }
        let hostile = town.hostile();
        Self { town, service, witness, hostile, held }
    }

    fn link(&self) -> Hand {
        Hand::calling(&self.hostile, "test").unwrap()
    }

    /// The service has ended the link for this reason, blames this process, and goes on as before.
    fn ends(&mut self, hand: Hand, why: &str) {
        let log = self.ends_somehow(hand);
        assert_eq!(log, why);
    }

    /// The same; the reason.
    fn ends_somehow(&mut self, hand: Hand) -> String {
        hand.until_ended();
        let log = logged(&self.service, hand.link);
        self.town.blamed(hand.link, None);
        drop(hand);
        self.serves();
        log
    }

    /// The service has let this link be, and goes on as before.
    fn stays(&mut self, hand: Hand) {
        assert!(!hand.is_ended().unwrap(), "{:?}", self.service.logged());
        drop(hand);
        self.serves();
    }

    fn serves(&mut self) {
        assert_eq!(self.witness.asked("call 1000"), "ok");
        self.held.wait_for(self.service.pid());
    }
}

/// Why a victim has ended a link; it blames its peer.
fn logged(victim: &Victim, link: u64) -> String {
    let begin = format!("link closed link={link} blame=Peer why=");
    let line = victim.logs(&[&begin]);
    line.split_once(&begin).unwrap().1.to_owned()
}

/// Arguments of each kind of caller.
const CALLERS: [&[&str]; 4] = [&[], &["--native"], &["--blocking"], &["--blocking", "--native"]];

/// Has a caller open a link to a service of this process's.
fn opens(town: &Town, hostile: &Conversation, arguments: &[&str]) -> (Victim, Hand) {
    register(hostile, "bad").unwrap();
    let mut caller = town.caller(&[arguments, &["--name", "bad"]].concat());
    caller.say("open");
    let hand = Hand::serving(hostile).unwrap();
    assert_eq!(caller.line(), "open");
    (caller, hand)
}

/// Has each kind of caller call a service of this process's, whose answer `attack` makes, and looks that the
/// call ends for this reason with the blame where it belongs. The same process still calls others then.
fn callers_end(policy: &str, mut attack: impl FnMut(&Conversation, &mut Hand), why: &str) {
    let town = Town::new(PROGRAMS, policy);
    let _service = town.service(&[]);
    for arguments in CALLERS {
        let hostile = town.hostile();
        let (mut caller, mut hand) = opens(&town, &hostile, arguments);
        // One that may be granted parcels says in its next call that it takes some.
        while policy != OPEN && !hand.takes_parcels {
            caller.say("call 500");
            hand.answer().unwrap();
            assert_eq!(caller.line(), "ok");
        }
        caller.say("call 500");
        hand.asked().unwrap();
        attack(&hostile, &mut hand);
        let link = hand.link;
        assert_eq!(caller.line(), format!("Unavailable: link {link}: {why}"), "{arguments:?}");
        assert_eq!(logged(&caller, link), why, "{arguments:?}");
        hand.until_ended();
        town.blamed(link, None);
    }
    town.witness();
}
