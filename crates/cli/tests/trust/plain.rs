//! Links that `seal = "required"` would refuse, as `partywall policy check` lists them.

use partywall_abi::control::{LinkMessage, RegistryMessage};
use partywall_abi::name::ServiceName;
use partywall_testkit::{Conversation, Host, Older};

use super::Place;

const POLICY: &str = "[service.test]\nregister = ['anyone']\n[service.test.call]\nanyone = ['*']\n\
                      [service.rates.call]\nanyone = ['*']\n[names]\nrates = 'http://127.0.0.1:1'\n";

#[test]
fn policy_check_lists_open_links_that_cannot_be_sealed() {
    let host = Host::with(POLICY);
    let older = Older::beside(&host.socket);
    let server = host.process();
    let test = ServiceName::new("test").unwrap();
    let register = RegistryMessage::Register { request: 1, name: test.clone(), places: 9 };
    server.say(&register.into()).unwrap();
    server.next().unwrap();
    let connect =
        |name: &ServiceName| LinkMessage::Connect { request: 2, name: name.clone() }.into();
    let callers = [host.process(), Conversation::open(&older.socket).unwrap()];
    let links = callers
        .each_ref()
        .map(|caller| partywall_testkit::open(caller, &server, &connect(&test)).expect("a link"));
    callers[0].say(&connect(&ServiceName::new("rates").unwrap())).unwrap();
    callers[0].next().unwrap();
    let place = Place::new();
    place.write("policy.toml", POLICY);
    let socket = host.socket.to_str().unwrap();
    let said = place.good(&["policy", "check", "policy.toml", "--socket", socket]);
    let squeezed: Vec<_> =
        said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let (own, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
    let old = links[1].0;
    let expected = [
        "policy.toml: good; it speaks of 2 names".to_owned(),
        "routes of this policy that `seal = \"required\"` would refuse: 1".into(),
        "NAME CALLER SEAL WHY".into(),
        "rates anyone off http://127.0.0.1:1 under [names] speaks no TLS".into(),
        "remedy for an address: serve at https:// and write that, or serve the name here".into(),
        "open links that `seal = \"required\"` would refuse: 2".into(),
        "LINK CALLER NAME SEAL WHY".into(),
        format!(
            "{old} (uid {uid}) test off its caller (pid {own}) is of a release that cannot seal; remedy: \
             build anew"
        ),
        format!("{} (uid {uid}) rates off http://127.0.0.1:1 speaks no TLS", old + 1),
        "open links that are plain, and would be made again, sealed: 1".into(),
    ];
    assert_eq!(squeezed, expected, "{said}");
}

/// What is asked is whether the file is good.
#[test]
fn policy_check_without_its_coordinator_says_so_and_is_good() {
    let place = Place::new();
    place.write("policy.toml", POLICY);
    let said = place.good(&["policy", "check", "policy.toml", "--socket", "gone.sock"]);
    assert!(said.contains("note: open links are not known: no coordinator at gone.sock"), "{said}");
    place.write("policy.toml", "[servce.a]\n");
    place.bad(
        &["policy", "check", "policy.toml", "--socket", "gone.sock"],
        &["unknown key `servce`"],
    );
}
