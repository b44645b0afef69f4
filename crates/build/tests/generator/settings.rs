//! Settings are those of tonic-prost-build: each has its name and its types.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use quote::ToTokens as _;
use syn::parse::{Parse, ParseStream};
use syn::{ImplItem, Item, Signature, Visibility};

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

/// A setting as the macro `handed_on` takes it.
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
