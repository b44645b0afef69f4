//! Stock libraries: go-spiffe, and PyPI's `spiffe`.

use std::process::Command;

use crate::programs::{Running, go, python, run};
use crate::rig::{Rig, principal};

/// A server and a client of go-spiffe, each known by its program, with mutual TLS between them; with the next
/// SVIDs as well.
#[test]
fn go_spiffe_has_mutual_tls_with_svids_from_here() {
    let ((server, is_server), (client, is_client)) = (go("server"), go("client"));
    let rig = Rig::new(&format!(
        "[authority]\nlife_seconds = 12\n{}{is_server}{}{is_client}",
        principal("shop"),
        principal("till"),
    ));
    let [shop, till] =
        ["shop", "till"].map(|name| format!("spiffe://partywall.local/service/{name}"));
    let mut served = Running::start(Command::new(server).arg(&rig.socket).arg(&till));
    let listens = served.line();
    let at = listens.strip_prefix("listening at ").unwrap_or_else(|| panic!("{listens}"));
    let call = |who: &str| run(Command::new(&client).arg(&rig.socket).args([at, who]));
    let said = call(&shop);
    let said: Vec<_> = said.lines().collect();
    let hello = format!("hello {till} from {shop}");
    let expected = [
        &format!("fetched {till}"),
        "bundle of partywall.local: 1",
        "jwt: Unimplemented",
        &hello,
        "renewed",
        &hello,
    ];
    assert_eq!(said, expected);
    let refused = Command::new(&client).arg(&rig.socket).args([at, &till]).output().unwrap();
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("unexpected ID"), "{why}");
}

#[test]
fn go_spiffe_is_denied_where_it_is_no_principal() {
    let (client, _) = go("client");
    let rig = Rig::new("");
    let denied =
        Command::new(client).arg(&rig.socket).args(["-", "spiffe://x/y"]).output().unwrap();
    let why = String::from_utf8_lossy(&denied.stderr).into_owned();
    assert!(!denied.status.success() && why.contains("PermissionDenied"), "{why}");
}

const FETCHES: &str = r#"
import sys, threading
from spiffe import SpiffeId, TrustDomain, WorkloadApiClient, X509Source
path = "unix:" + sys.argv[1]
client = WorkloadApiClient(path)
try:
    print(client.fetch_x509_svid(timeout=20).spiffe_id)
except Exception as error:
    print(error)
    sys.exit()
bundles = client.fetch_x509_bundles(timeout=20)
domain = TrustDomain("partywall.local")
print(len(bundles.get_bundle_for_trust_domain(domain).x509_authorities))
try:
    client.fetch_jwt_svid({"audience"}, timeout=20)
except Exception as error:
    print(error)
renewed = threading.Event()
with X509Source(client, timeout_in_seconds=20) as source:
    source.subscribe_for_updates(renewed.set)
    first = source.get_x509_context().default_svid
    print(renewed.wait(20))
    second = source.get_x509_context().default_svid
    print(first.spiffe_id == second.spiffe_id)
    print(first.leaf.serial_number != second.leaf.serial_number)
"#;

#[test]
fn pythons_spiffe_has_its_svid_and_the_next_one() {
    let packages = python();
    let rig = Rig::new(&format!("{}[authority]\nlife_seconds = 12\n", principal("me")));
    let says = || {
        let mut python = Command::new("python3");
        run(python.args(["-c", FETCHES]).arg(&rig.socket).env("PYTHONPATH", &packages))
    };
    let said = says();
    let said: Vec<_> = said.lines().collect();
    assert_eq!(said.len(), 6, "{said:?}");
    assert_eq!(said[..2], ["spiffe://partywall.local/service/me", "1"]);
    assert!(said[2].contains("there are no JWT-SVIDs here"), "{said:?}");
    assert_eq!(said[3..], ["True", "True", "True"]);
    rig.reload("");
    let denied = says();
    assert!(denied.contains("no principal of the policy"), "{denied}");
}
