//! Services whose .proto files demand something of the links to them.

use std::fs;

use partywall::{Evidence, Seal, Sign};
use partywall_system_tests::domain_programs;

use super::domains::Run;

const PROTO: &str = "syntax = \"proto3\";\npackage shop.v1;\nimport \"partywall/security.proto\";\n\
                     service Billing {\n  option (partywall.security) = { OPTION };\n  \
                     rpc Show(Text) returns (Text);\n  rpc Charge(Text) returns (Text);\n}\n\
                     message Text {}\n";

/// A run whose service `test` has a file with this option, and whose caller has these keys beside its own.
fn run(option: &str, keys: &str) -> Run {
    let [server, client] = domain_programs().each_ref().map(|p| p.to_str().unwrap());
    let run = Run::of(&format!(
        "services:\n  test:\n    x-partywall: {{program: {server}, proto: [proto/shop.proto]}}\n  web:\n    \
         depends_on: [test]\n    x-partywall: {{program: {client}, args: [--mode, flood], \
         calls: [test/*]{keys}}}\n"
    ));
    fs::create_dir(run.dir.path().join("proto")).unwrap();
    fs::write(run.dir.path().join("proto/shop.proto"), PROTO.replace("OPTION", option)).unwrap();
    run
}

#[test]
fn up_seals_links_to_a_service_whose_file_demands_it() {
    let run = run("seal: REQUIRED evidence: STARTED", "");
    let up = run.begin();
    let security = up.links()[0].security;
    assert_eq!((security.seal, security.evidence), (Seal::Sealed, Evidence::Started));
    let said = up.said();
    let note = "note: links to `test` have seal `sealed`, evidence `started`, or there are none: ";
    assert!(said.contains(note), "{said}");
    let by = "services.test.x-partywall.proto demands it for shop.v1.Billing/Charge and 1 more\n";
    assert!(said.contains(by), "{said}");
}

#[test]
fn up_leaves_links_plain_where_no_file_demands_more() {
    let run = run("seal: OFF", "");
    let up = run.begin();
    assert_eq!(up.links()[0].security.seal, Seal::Off);
    assert!(!up.said().contains("note: links to"), "{}", up.said());
}

#[test]
fn up_has_messages_signed_where_a_file_demands_it() {
    let run = run("sign: REQUIRED", "");
    let up = run.begin();
    let security = up.links()[0].security;
    assert_eq!((security.seal, security.sign), (Seal::Sealed, Sign::Signed));
    assert!(up.said().contains("note: links to `test` have sign `signed`, or"), "{}", up.said());
}

#[test]
fn demands_that_up_cannot_meet_name_the_place() {
    for (option, keys, words) in [
        (
            "seal: REQUIRED",
            ", descriptors: 2",
            &[
                "compose.yaml:3: services.test.x-partywall.proto: `test` demands sealed links",
                "remedy: remove `descriptors` from service `web`",
            ][..],
        ),
        (
            "seal: REQUIERD",
            "",
            &["x-partywall.proto: ", "proto/shop.proto:5:", "; remedy: write `option"],
        ),
        ("seal: REQUIRED", ", proto_path: [.]", &["`proto_path` is where imports of `proto`"]),
        (
            "seal: REQUIRED",
            ", proto: []",
            &["services.web.x-partywall.proto: no path in this list"],
        ),
        ("seal: REQUIRED", ", proto: [none.proto]", &["there is no file", "none.proto"]),
    ] {
        let run = run(option, keys);
        let (code, _, complained) = run.end();
        assert_eq!(code, Some(1), "{complained}");
        assert!(words.iter().all(|word| complained.contains(word)), "{words:?}: {complained}");
    }
}
