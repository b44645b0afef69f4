//! Settings are those of tonic-prost-build: each has its name and its types.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use partywall_build::{Builder, FileDescriptorSet, configure};
use quote::ToTokens as _;
use syn::parse::{Parse, ParseStream};
use syn::{ImplItem, Item, Signature, Visibility};

use super::Files;

const NAME: &str = r#"syntax = "proto3";
package texts;
message Name { string name = 1; Kind kind = 2; }
enum Kind { SOME = 0; }
service Greeter { rpc SayHello(Name) returns (Name); }
"#;

/// The source of the release of tonic-prost-build that this one is built on.
fn tonics() -> syn::File {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--offline", "--format-version", "1"]);
    cargo.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let package = packages.iter().find(|package| package["name"] == "tonic-prost-build");
    let manifest = package.expect("a dependency")["manifest_path"].as_str().expect("a path");
    parse(PathBuf::from(manifest).with_file_name("src/lib.rs"))
}

fn parse(path: PathBuf) -> syn::File {
    let text = std::fs::read_to_string(path).expect("source");
    syn::parse_file(&text).expect("Rust")
}

/// A setting as the macros `handed_on` and `attributes` take it.
struct HandedOn(Signature);

impl Parse for HandedOn {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        input.call(syn::Attribute::parse_outer)?;
        let (ident, generics) = (input.parse::<syn::Ident>()?, input.parse::<syn::Generics>()?);
        let content;
        syn::parenthesized!(content in input);
        let arguments = content.parse_terminated(syn::PatType::parse, syn::Token![,])?;
        let arguments = arguments.iter();
        Ok(Self(syn::parse_quote!(fn #ident #generics (mut self, #(#arguments),*) -> Self)))
    }
}

struct Settings(Vec<HandedOn>);

impl Parse for Settings {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let settings = input.parse_terminated(HandedOn::parse, syn::Token![;])?;
        Ok(Self(settings.into_iter().collect()))
    }
}

/// Public functions of a crate and of its `Builder`: each with its types, without its path.
fn functions(file: &syn::File) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut add = |owner: &str, signature: &Signature| {
        let text = signature.to_token_stream().to_string();
        // Neither who changes an argument matters, nor where a type comes from, nor a last comma.
        let parts = ["mut ", "prost_types :: ", "prost_build :: "];
        let text = parts.iter().fold(text, |text, part| text.replace(part, ""));
        found.insert(format!("{owner}{}", signature.ident), text.replace(" ,)", ")"));
    };
    for item in &file.items {
        match item {
            Item::Fn(function) if matches!(function.vis, Visibility::Public(_)) => {
                add("", &function.sig);
            }
            Item::Impl(own) if own.trait_.is_none() => {
                let is_builder = own.self_ty.to_token_stream().to_string() == "Builder";
                for item in own.items.iter().filter(|_| is_builder) {
                    match item {
                        ImplItem::Fn(function) if matches!(function.vis, Visibility::Public(_)) => {
                            add("Builder::", &function.sig);
                        }
                        ImplItem::Macro(settings) => {
                            let settings = syn::parse2::<Settings>(settings.mac.tokens.clone());
                            for HandedOn(signature) in settings.expect("settings").0 {
                                add("Builder::", &signature);
                            }
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    found
}

#[test]
fn functions_and_settings_are_those_of_tonic_prost_build() {
    let theirs = functions(&tonics());
    let ours = functions(&parse(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")));
    assert!(theirs.len() > 30 && theirs.contains_key("Builder::codec_path"), "{theirs:#?}");
    assert_eq!(ours, theirs);
}

#[test]
fn names_beside_the_builder_are_those_of_tonic_prost_build() {
    // They are of the same types.
    let config: partywall_build::Config = tonic_prost_build::Config::new();
    drop(config);
    let fds: partywall_build::FileDescriptorSet = tonic_prost_build::FileDescriptorSet::default();
    assert!(fds.file.is_empty());
    let attributes: partywall_build::TonicAttributes =
        tonic_prost_build::TonicAttributes::default();
    drop(attributes);
    let method = partywall_build::manual::Method::builder().name("greet").route_name("Greet");
    let method: tonic_prost_build::manual::Method = method
        .input_type("crate::Name")
        .output_type("crate::Reply")
        .codec_path("crate::Codec")
        .build();
    assert_eq!(partywall_build::TonicMethod::name(&method), "greet");
}

#[test]
fn settings_that_are_no_rust_are_told_with_a_remedy() {
    let files = Files::of(&[("proto/name.proto", NAME)]);
    let said = |builder: Builder| {
        let builder = builder.out_dir(files.out("out"));
        builder.compile_protos(&[files.path("proto/name.proto")], &[files.path("proto")])
    };
    let told = |setting: &str, text: &str, wanted: &str, such: &str, builder: Builder| {
        let said = said(builder).expect_err("no Rust");
        assert_eq!(said.kind(), ErrorKind::InvalidInput);
        let said = said.to_string();
        let begin = format!("`{setting}` has been set to `{text}`, which is no {wanted} of Rust (");
        let end = format!("); remedy: set it to one, such as `{such}`");
        assert!(said.starts_with(&begin) && said.ends_with(&end), "{said}");
    };
    macro_rules! attributes {
        ($($name:ident)*) => {$(
            for text in ["derive(Eq)", "#[derive(Eq)", "#[doc = 1] struct", "#![allow(dead_code)]"] {
                let builder = configure().$name("texts.Name", text);
                told(stringify!($name), text, "attribute", "#[derive(Eq)]", builder);
            }
            for text in ["", "/// Text.", "#[doc = \"one\"] #[doc = \"other\"]", "// Nothing."] {
                said(configure().$name("texts.Name", text)).expect(text);
            }
        )*};
    }
    attributes!(field_attribute message_attribute enum_attribute type_attribute);
    attributes!(server_mod_attribute server_attribute trait_attribute);
    attributes!(client_mod_attribute client_attribute);
    for text in ["a path", "super::", "1"] {
        told("proto_path", text, "path", "super", configure().proto_path(text));
        told("codec_path", text, "path", "crate::Codec", configure().codec_path(text));
        let builder = configure().extern_path(".texts", text);
        told("extern_path", text, "path", "::texts", builder);
    }
    // The first one is told, whatever else is set.
    let builder = configure().server_attribute(".", "derive").codec_path("1").proto_path("super");
    told("server_attribute", "derive", "attribute", "#[derive(Eq)]", builder);
    for text in ["", "super", "crate::texts", "::texts"] {
        said(configure().proto_path(text)).expect(text);
    }
    for text in ["::texts", "crate::texts", "super::texts"] {
        said(configure().extern_path(".texts.Name", text)).expect(text);
    }
    for text in ["crate::Codec", "::codec::Codec", "Codec::<u8>"] {
        said(configure().codec_path(text)).expect(text);
    }
    let builder = configure().out_dir(files.out("out")).codec_path("1");
    builder.compile_fds(FileDescriptorSet::default()).expect_err("no Rust");
}
