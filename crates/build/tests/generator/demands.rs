//! What `partywall/security.proto` says: in stubs of all kinds, and what is wrong with it.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};

use partywall_build::{Config, Demand, Evidence, FileDescriptorSet, configure, demands};
use prost::Message as _;

use super::{Files, texts};

const BILLING: &str = r#"syntax = "proto3";
package shop.v1;
import "partywall/security.proto";
service Billing {
  option (partywall.security) = { seal: REQUIRED sign: OFF };
  rpc Show(Text) returns (Text);
  rpc Charge(Text) returns (Text) {
    option (partywall.method_security) = { seal: OFF sign: REQUIRED evidence: OBSERVED };
  }
  rpc Watch(Text) returns (stream Text) { option (partywall.method_security).evidence = STARTED; }
}
service Other {
  rpc Free(Text) returns (Text);
  rpc Up(stream Text) returns (Text) { option (partywall.method_security) = { sign: REQUIRED evidence: IMAGE }; }
}
service Quiet {
  rpc Free(Text) returns (Text);
  rpc Up(stream Text) returns (Text);
}
message Text { string text = 1; }
"#;

fn billing() -> Files {
    Files::of(&[("proto/billing.proto", BILLING)])
}

fn made(files: &Files, builder: partywall_build::Builder) -> BTreeMap<String, String> {
    let out = files.out("out");
    let builder = builder.out_dir(&out);
    let (proto, include) = (files.path("proto/billing.proto"), files.path("proto"));
    builder.compile_protos(&[proto], &[include]).expect("stubs");
    texts(&out)
}

/// The part of stubs that is the module of this name.
fn module<'a>(stubs: &'a str, name: &str) -> &'a str {
    let start = stubs.find(&format!("pub mod {name} {{")).expect(name);
    let len = stubs[start..].find("\n}").expect("an end");
    &stubs[start..start + len]
}

fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

#[test]
fn methods_have_the_stricter_demand_of_theirs_and_the_services() {
    let files = billing();
    let made = made(&files, configure().include_file("all.rs"));
    assert!(made.keys().eq(["all.rs", "shop.v1.rs"]), "{:?}", made.keys());
    assert!(!made["all.rs"].contains("partywall"), "{}", made["all.rs"]);
    let stubs = &made["shop.v1.rs"];
    for (method, demand) in [
        ("Billing/Show", ".sealed()"),
        ("Billing/Charge", ".sealed().signed().observed()"),
        ("Billing/Watch", ".sealed().started()"),
        ("Other/Up", ".signed().image()"),
    ] {
        let text: String = stubs.split_whitespace().collect();
        let wanted = format!("Demand::of(\"shop.v1.{method}\",){demand};");
        let wanted = [wanted.clone(), wanted.replace(",)", ")")];
        assert!(wanted.iter().any(|wanted| text.contains(wanted)), "{method}: {stubs}");
    }
    let client = module(stubs, "billing_client");
    assert_eq!(count(client, ".demanding(&DEMAND)"), 3, "{client}");
    let server = module(stubs, "billing_server");
    assert_eq!(count(server, "request.demand(&DEMAND)?.decode()?"), 2, "{server}");
    assert_eq!(count(server, "partywall::stubs::refused(&DEMAND, &req)"), 1, "{server}");
    let [client, server] = ["other_client", "other_server"].map(|name| module(stubs, name));
    assert_eq!((count(client, "DEMAND:"), count(server, "DEMAND:")), (1, 1), "{client}{server}");
    #[cfg(feature = "blocking")]
    {
        let client = module(stubs, "billing_blocking");
        assert_eq!(count(client, "self.inner.demanding(&DEMAND, &METHOD, "), 2, "{client}");
    }
}

#[test]
fn stubs_without_a_demand_are_as_they_were() {
    let with = made(&billing(), configure());
    let free = BILLING.split("service Quiet").last().unwrap();
    let free = format!("syntax = \"proto3\"; package shop.v1; service Quiet{free}");
    let without = made(&Files::of(&[("proto/billing.proto", &free)]), configure());
    for name in ["quiet_client", "quiet_server"] {
        let [with, without] = [&with, &without].map(|made| module(&made["shop.v1.rs"], name));
        assert_eq!(with, without);
    }
}

#[test]
fn methods_with_another_codec_have_their_demands() {
    let files = billing();
    let made = made(&files, configure().codec_path("crate::Codec"));
    let stubs = &made["shop.v1.rs"];
    let client = module(stubs, "billing_client");
    assert_eq!(count(client, ".demanding(&DEMAND)"), 3, "{client}");
    assert!(client.contains("partywall::stubs::Grpc<T>"), "{client}");
    let server = module(stubs, "billing_server");
    assert_eq!(count(server, "partywall::stubs::refused(&DEMAND, &req)"), 3, "{server}");
    let quiet = module(stubs, "quiet_client");
    assert!(!quiet.contains("partywall"), "{quiet}");
    assert!(!stubs.contains("_blocking"), "{stubs}");
}

#[test]
fn demands_of_descriptors_count_and_lost_ones_are_refused() {
    let files = billing();
    let fds = files.path("billing.bin");
    let stubs = made(&files, configure().file_descriptor_set_path(&fds));
    let again = files.out("again");
    let builder = configure().out_dir(&again).file_descriptor_set_path(&fds).skip_protoc_run();
    builder.clone().compile_protos::<&str>(&[], &[]).expect("stubs");
    assert_eq!(texts(&again), stubs);
    builder.compile_with_config::<&str>(Config::new(), &[], &[]).expect("stubs");
    assert_eq!(texts(&again), stubs);

    let lost = |said: Error| {
        assert_eq!(said.kind(), ErrorKind::InvalidInput);
        let said = said.to_string();
        let words =
            ["partywall/security.proto", "drops its options", "; remedy: compile the files"];
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    };
    let decoded = FileDescriptorSet::decode(&*std::fs::read(&fds).unwrap()).unwrap();
    lost(configure().out_dir(&again).compile_fds(decoded).expect_err("lost options"));
    let mut config = Config::new();
    config.skip_protoc_run().file_descriptor_set_path(&fds);
    let builder = configure().out_dir(&again);
    lost(builder.compile_with_config::<&str>(config, &[], &[]).expect_err("lost options"));

    // The definitions of the options are missing.
    let mut whole = FileDescriptorSet::decode(&*std::fs::read(&fds).unwrap()).unwrap();
    whole.file.retain(|file| file.package() == "shop.v1");
    std::fs::write(&fds, whole.encode_to_vec()).unwrap();
    let builder = configure().out_dir(&again).file_descriptor_set_path(&fds).skip_protoc_run();
    let said = builder.compile_protos::<&str>(&[], &[]).expect_err("no import").to_string();
    assert!(said.contains("; remedy: write them with their imports"), "{said}");
}

/// What is said of the file with this in place of the option of the service, at line 5.
fn said_of(option: &str) -> String {
    let text =
        BILLING.replace("option (partywall.security) = { seal: REQUIRED sign: OFF };", option);
    let files = Files::of(&[("proto/billing.proto", &text)]);
    let (proto, include) = (files.path("proto/billing.proto"), files.path("proto"));
    let builder = configure().out_dir(files.out("out"));
    let said = builder.compile_protos(&[&proto], &[&include]).expect_err(option);
    assert_eq!(said.kind(), ErrorKind::InvalidInput, "{said}");
    said.to_string().replace(&proto.display().to_string(), "{}")
}

#[test]
fn misspelt_demands_are_errors_with_their_place_and_a_remedy() {
    for (option, words) in [
        ("option (partywall.security) = { seal: REQUIERD };", "option '(partywall.security)'"),
        ("option (partywall.security) = { seel: REQUIRED };", "option '(partywall.security)'"),
        ("option (partywall.security).seal = ALWAYS;", "ALWAYS"),
        ("option (partywall.security).evidence = REQUIRED;", "REQUIRED"),
        ("option (partywall.securty) = { seal: REQUIRED };", "partywall.securty"),
        ("option (partywall.method_security) = { seal: REQUIRED };", "method_security"),
    ] {
        let said = said_of(option);
        assert!(said.starts_with("{}:5:") && said.contains(words), "{option}: {said}");
        let remedy = "; remedy: write `option (partywall.security) = { .. };` in a service, ";
        assert!(said.contains(remedy), "{option}: {said}");
    }
    let number = said_of("option (partywall.security) = { seal: 3 };");
    assert!(number.starts_with("`shop.v1.Billing`: option `(partywall.security)`"), "{number}");
}

#[test]
fn import_of_a_directory_does_not_count() {
    let weaker = "syntax = \"proto3\"; package partywall;";
    let files =
        Files::of(&[("proto/billing.proto", BILLING), ("proto/partywall/security.proto", weaker)]);
    let stubs = made(&files, configure());
    assert!(stubs["shop.v1.rs"].contains(".sealed()"));
}

#[test]
fn a_demand_of_another_release_is_refused_in_descriptors() {
    let files = Files::of(&[]);
    partywall_build::write_imports(files.path("proto")).expect("a file");
    let import = files.path("proto/partywall/security.proto");
    let newer = std::fs::read_to_string(&import).unwrap();
    let newer = newer.replace("    REQUIRED = 2;", "    REQUIRED = 2;\n    ALWAYS = 3;");
    let newer = newer.replace("Need sign = 2;", "Need sign = 2;\n  Need hide = 4;");
    std::fs::write(&import, newer).unwrap();
    for (option, words) in [("seal: ALWAYS", "`seal: "), ("hide: REQUIRED", "`hide: ")] {
        let text = BILLING.replace("seal: REQUIRED sign: OFF", option);
        std::fs::write(files.path("proto/billing.proto"), text).unwrap();
        let mut compiler = protox::Compiler::new([files.path("proto")]).unwrap();
        compiler.include_imports(true).open_file(files.path("proto/billing.proto")).unwrap();
        let fds = files.path("billing.bin");
        std::fs::write(&fds, compiler.encode_file_descriptor_set()).unwrap();
        let builder = configure().out_dir(files.out("out")).file_descriptor_set_path(&fds);
        let said = builder.skip_protoc_run().compile_protos::<&str>(&[], &[]);
        let said = said.expect_err(option).to_string();
        assert!(said.starts_with("`shop.v1.Billing`: option `(partywall.security)`"), "{said}");
        assert!(said.contains(words) && said.contains("; remedy: "), "{said}");
    }
}

#[test]
fn demands_are_told_by_the_paths_of_methods() {
    let text = "syntax = \"proto3\";\npackage more;\nimport \"billing.proto\";\nservice More {\n\
                rpc Free(shop.v1.Text) returns (shop.v1.Text);\n}\n";
    let files = Files::of(&[("proto/billing.proto", BILLING), ("proto/more.proto", text)]);
    let (billing, include) = (files.path("proto/billing.proto"), files.path("proto"));
    let told = demands(&[&billing], &[&include]).expect("demands");
    let told: Vec<_> = told.into_iter().collect();
    let of = |seal, sign, evidence| {
        let mut demand = Demand::default();
        (demand.seal, demand.sign, demand.evidence) = (seal, sign, evidence);
        demand
    };
    let wanted = [
        ("/shop.v1.Billing/Charge", of(true, true, Evidence::Observed)),
        ("/shop.v1.Billing/Show", of(true, false, Evidence::Any)),
        ("/shop.v1.Billing/Watch", of(true, false, Evidence::Started)),
        ("/shop.v1.Other/Up", of(false, true, Evidence::Image)),
    ];
    assert_eq!(told, wanted.map(|(path, demand)| (path.to_owned(), demand)));
    // Those of what it imports are not its own.
    let more = files.path("proto/more.proto");
    assert!(demands(&[&more], &[&include]).expect("demands").is_empty());
    assert_eq!(demands(&[&more, &billing], &[&include]).expect("demands").len(), 4);
}
