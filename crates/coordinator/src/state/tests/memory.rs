//! Memory for parcels counts against the account of whoever says that it has it.

use partywall_abi::control::MemoryMessage;

use super::instances::told;
use super::*;

const MIB: u64 = 1 << 20;

fn small() -> State {
    let mut policy = POLICY.to_owned();
    policy += "[quota]\nparcel_bytes = 4194304\n[principal.web.quota]\nparcel_bytes = 1048576\n";
    under(&policy)
}

/// Wants so many bytes: what it is given, or why it is not.
fn want(s: &mut State, conn: Conn, bytes: u64) -> Result<u64, String> {
    match &ask(s, conn, MemoryMessage::Want { request: 7, bytes }.into())[..] {
        [
            Effect::Send {
                to,
                message: Message::Memory(MemoryMessage::Given { request: 7, bytes }),
            },
        ] => {
            assert_eq!(*to, conn);
            Ok(*bytes)
        }
        [
            Effect::Send {
                to,
                message: Message::Session(SessionMessage::Refused { request: 7, code, text }),
            },
        ] => {
            assert_eq!((*to, *code), (conn, RESOURCE_EXHAUSTED));
            Err(text.clone())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_account_has_so_much_memory_for_parcels() {
    let mut s = small();
    let (one, two, other) = (open(&mut s, 1), open(&mut s, 1), open(&mut s, 3));
    assert_eq!(want(&mut s, one, 3 * MIB), Ok(3 * MIB));
    assert_eq!(want(&mut s, two, MIB), Ok(MIB));
    let refused = want(&mut s, two, MIB + 1).unwrap_err();
    let text = "user 1 has 4194304 bytes of parcels, and may have 4194304: a process of it that has 1048576 asks for \
                1048577 in all; remedy: drop parcels, or raise `parcel_bytes` under [quota] in the policy";
    assert_eq!(refused, text);
    assert_eq!(want(&mut s, other, 4 * MIB), Ok(4 * MIB), "another user's");
    // What it had it has still; less always goes, and is the other process's from then on.
    assert_eq!((s.parcel_bytes(one), s.parcel_bytes(two)), (3 * MIB, MIB));
    assert_eq!(ask(&mut s, one, MemoryMessage::Want { request: 0, bytes: MIB }.into()), []);
    assert_eq!(want(&mut s, two, 3 * MIB), Ok(3 * MIB));
    s.closed(two, Instant::now());
    assert_eq!(want(&mut s, one, 4 * MIB), Ok(4 * MIB));
    // As many as there are numbers, also beside what another process has.
    let three = open(&mut s, 1);
    assert_eq!(want(&mut s, three, 0), Ok(0));
    for (conn, bytes) in [(one, u64::MAX), (three, u64::MAX), (three, u64::MAX - 4 * MIB + 1)] {
        let refused = want(&mut s, conn, bytes).unwrap_err();
        assert!(refused.contains("user 1 has 4194304"), "{refused}");
    }
    s.closed(three, Instant::now());
    s.closed(one, Instant::now());
    s.closed(other, Instant::now());
    assert_eq!(s.quotas.used()[Resource::ParcelBytes as usize], 0);
}

#[test]
fn a_principals_memory_is_its_own_quotas() {
    let mut s = small();
    let web = open(&mut s, 2);
    // Too much at once: what there is says how much may be.
    let refused = want(&mut s, web, MIB + 1).unwrap_err();
    assert!(
        refused.starts_with("principal `web` has 0 bytes of parcels, and may have 1048576: "),
        "{refused}"
    );
    assert!(refused.ends_with("under [principal.web.quota] in the policy"), "{refused}");
    assert_eq!(want(&mut s, web, MIB), Ok(MIB));
    assert!(want(&mut s, web, MIB + 1).is_err());
}

#[test]
fn an_account_leaves_others_a_share_of_the_memory() {
    let mut s = under(&(POLICY.to_owned() + "[quota]\nparcel_bytes = 9223372036854775807\n"));
    let (one, other) = (open(&mut s, 1), open(&mut s, 3));
    let refused = want(&mut s, one, 1 << 50).unwrap_err();
    assert!(
        refused.contains("its share of what the others leave: a process of it that has 0 "),
        "{refused}"
    );
    assert!(!refused.contains("raise `parcel_bytes`"), "it would not help: {refused}");
    let whole = (0..50).map(|bit| 1 << bit).take_while(|n| want(&mut s, one, *n).is_ok()).count();
    assert!(whole > 20, "{whole}");
    assert!(want(&mut s, other, 1 << (whole - 3)).is_ok());
}

#[test]
fn memory_that_is_said_to_operators_is_not_charged_twice() {
    let mut s = small();
    s.separate_operators("/operators".into());
    let facts = facts(9);
    let usage = s.account(&facts);
    let operator = s.opened_at(Socket::Operators, facts, usage, SPOKEN);
    s.take_effects();
    assert_eq!(want(&mut s, operator, 9 * MIB), Ok(9 * MIB));
    assert_eq!(s.parcel_bytes(operator), 0);
}

#[test]
fn an_instance_is_listed_with_its_processs_memory() {
    let mut s = small();
    let (server, operator) = (open(&mut s, 1), open(&mut s, 9));
    register(&mut s, server);
    want(&mut s, server, 5).unwrap();
    assert_eq!(told(&mut s, operator).0[0].parcel_bytes, 5);
    let capabilities = Capabilities::OWN.without(Capabilities::MEMORY);
    let facts = facts(9);
    let usage = s.account(&facts);
    let older = s.opened(facts, usage, Spoken { capabilities, ..SPOKEN });
    s.take_effects();
    assert_eq!(told(&mut s, older).0[0].parcel_bytes, 0);
}

#[test]
fn memory_is_given_by_the_coordinator_alone() {
    let mut s = small();
    let conn = open(&mut s, 1);
    let effects = ask(&mut s, conn, MemoryMessage::Given { request: 7, bytes: 1 }.into());
    assert!(matches!(effects[..], [Effect::Close { .. }]), "{effects:?}");
}

/// A reload makes a process another account's, which has less.
#[test]
fn what_a_process_has_is_no_reason_to_keep_it_from_having_less() {
    let mut s = small();
    let one = open(&mut s, 1);
    assert_eq!(want(&mut s, one, 3 * MIB), Ok(3 * MIB));
    let policy = POLICY.to_owned() + "[principal.server.quota]\nparcel_bytes = 1048576\n";
    s.reload(Policy::parse("p", &policy).unwrap(), None, Instant::now());
    s.take_effects();
    assert!(want(&mut s, one, 3 * MIB + 1).unwrap_err().contains("principal `server`"));
    assert_eq!(s.parcel_bytes(one), 3 * MIB, "it keeps what it has");
    // It is given back for nothing, and when it asks for something.
    assert_eq!(ask(&mut s, one, MemoryMessage::Want { request: 0, bytes: 2 * MIB }.into()), []);
    assert_eq!(s.parcel_bytes(one), 2 * MIB);
    assert_eq!(want(&mut s, one, 2 * MIB), Ok(2 * MIB));
    assert!(want(&mut s, one, 2 * MIB + 1).is_err());
    assert_eq!(want(&mut s, one, MIB), Ok(MIB));
    assert!(want(&mut s, one, MIB + 1).is_err(), "it is the new account's");
    s.closed(one, Instant::now());
    assert_eq!(s.quotas.used()[Resource::ParcelBytes as usize], 0);
}

/// A reload makes a process another account's, while it has half of what there is.
#[test]
fn memory_that_becomes_another_accounts_need_not_fit_twice() {
    let unlimited = "\nparcel_bytes = 9223372036854775807\n";
    let policy = POLICY.to_owned() + "[quota]" + unlimited;
    let mut s = under(&policy);
    let one = open(&mut s, 1);
    let machine = rustix::system::sysinfo();
    let share = machine.totalram as u64 * u64::from(machine.mem_unit) / 4;
    assert_eq!(want(&mut s, one, share - MIB), Ok(share - MIB));
    let before = Arc::clone(&s.connections[&one].standing.usage);
    let policy = policy + "[principal.server.quota]" + unlimited;
    s.reload(Policy::parse("p", &policy).unwrap(), None, Instant::now());
    s.take_effects();
    assert_eq!(want(&mut s, one, share), Ok(share));
    assert_eq!((s.parcel_bytes(one), before.used(Resource::ParcelBytes)), (share, 0));
    assert_eq!(s.quotas.used()[Resource::ParcelBytes as usize], share as usize);
}
