//! Both ends of each kind of link, and the coordinator's list, say the same of what protects it.

use partywall::Security;
use partywall_abi::control::{ListMessage, Message};
use partywall_testkit::{Conversation, Host, OPEN, Process, alone};

use super::{CLIENT, SERVER};

/// What a client in the mode `security` prints of both ends of its links, and what the list says of them,
/// which is all the same.
pub(super) fn said_by_all(host: &Host, client: &mut Process) -> String {
    let mut said = Vec::new();
    for end in ["task caller", "task service", "blocking caller", "blocking service"] {
        let line = client.line();
        let levels = line.strip_prefix(end).unwrap_or_else(|| panic!("{end}: {line}"));
        said.push(levels.trim().to_owned());
    }
    let links = listed(host);
    assert_eq!(links.len(), 2, "{links:?}");
    said.extend(links.iter().map(ToString::to_string));
    assert!(said.iter().all(|levels| *levels == said[0]), "{said:?}");
    said.swap_remove(0)
}

/// What the list says of each link. It is asked for by hand: the library's socket would be closed
/// at some time
/// later, and other tests count descriptors.
fn listed(host: &Host) -> Vec<Security> {
    let operator = Conversation::open(&host.socket).unwrap();
    operator.say(&ListMessage::List { request: 1 }.into()).unwrap();
    let mut listed = Vec::new();
    loop {
        match operator.next().unwrap().0 {
            Message::List(ListMessage::Row { row, .. }) => listed.push(row.security),
            Message::List(ListMessage::Listed { .. }) => return listed,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn ends_and_list_agree_on_the_security_between_processes() {
    let _alone = alone();
    let host = Host::with(&format!("harden = true\n{OPEN}"));
    let _server = host.start(SERVER, &[]);
    host.until_served();
    let mut client = host.start(CLIENT, &["--mode", "security"]);
    assert_eq!(said_by_all(&host, &mut client), "process, host, observed");
    client.succeed();
}
