//! Stubs are those of tonic-prost-build but for a client's type, the bodies of its unary methods, the arms of
//! a server's, and its table. These name the same methods as tonic's.

use std::collections::{BTreeMap, BTreeSet};

use quote::ToTokens as _;
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{Arm, Block, ExprCall, ImplItem, Item, ItemImpl, ItemMod, LitStr, Pat};

use super::{Files, texts};

const ODD: &str = r#"syntax = "proto3";
package odd.v1;
import "google/protobuf/empty.proto";
import "google/protobuf/wrappers.proto";
import "bare.proto";

// The first service.
service First {
  // A method.
  rpc Plain(Name) returns (Reply);
  rpc Type(Name) returns (Reply);
  rpc Self(Name) returns (Reply);
  rpc Old(Name) returns (Reply) { option deprecated = true; }
  rpc Up(stream Name) returns (Reply);
  rpc Down(Name) returns (stream Reply);
  rpc Both(stream Name) returns (stream Reply);
  rpc Nothing(google.protobuf.Empty) returns (google.protobuf.Empty);
  rpc Wrapped(google.protobuf.StringValue) returns (google.protobuf.Int64Value);
  rpc Elsewhere(Bare) returns (Bare);
}
service second {
  rpc into_inner(Name) returns (Reply.Inner);
}
// No method of it is unary.
service Streams {
  rpc Up(stream Name) returns (Reply);
}
message Name {
  string name = 1;
  bytes data = 2;
  Name next = 3;
  map<string, int32> counts = 4;
}
message Reply {
  message Inner { Kind kind = 1; }
  oneof text { string long = 1; string short = 2; }
}
enum Kind { SOME = 0; }
"#;

/// Without a package.
const BARE: &str = r#"syntax = "proto3";
message Bare { string name = 1; }
service Lone { rpc Plain(Bare) returns (Bare); }
"#;

/// What both generators make of the files, with these settings: ours, tonic's.
macro_rules! made {
    (|$builder:ident| $settings:expr) => {{
        let files = Files::of(&[("proto/odd.proto", ODD), ("proto/bare.proto", BARE)]);
        let (ours, tonics, fds) = (files.out("ours"), files.out("tonics"), files.path("odd.bin"));
        let builder = {
            let $builder = partywall_build::configure();
            $settings
        };
        let builder = builder.out_dir(&ours).file_descriptor_set_path(&fds);
        builder.compile_protos(&[files.path("proto/odd.proto")], &[files.path("proto")]).unwrap();
        let builder = {
            let $builder = tonic_prost_build::configure();
            $settings
        };
        let builder = builder.out_dir(&tonics).file_descriptor_set_path(fds).skip_protoc_run();
        builder.compile_protos::<&str>(&[], &[]).unwrap();
        (texts(&ours), texts(&tonics))
    }};
}

/// With a setting that has an effect, stubs are tonic's but where they are changed.
macro_rules! alike {
    ($($name:ident: |$builder:ident| $settings:expr;)*) => {$(
        #[test]
        fn $name() {
            let (ours, tonics) = made!(|$builder| $settings);
            assert_ne!(ours, made!(|builder| builder).0, "the setting has no effect");
            assert_alike(&ours, &tonics);
        }
    )*};
}

alike! {
    stubs_with_arcs_are_tonics: |builder| builder.use_arc_self(true);
    stubs_with_bodies_of_their_own_are_tonics: |builder| builder.generate_default_stubs(true);
    clients_alone_are_tonics: |builder| builder.build_server(false);
    servers_alone_are_tonics: |builder| builder.build_client(false);
    messages_alone_are_tonics: |builder| builder.build_client(false).build_server(false);
    stubs_without_connect_are_tonics: |builder| builder.build_transport(false);
    stubs_with_types_from_elsewhere_are_tonics: |builder| {
        builder.extern_path(".odd.v1.Name", "::elsewhere::Name").extern_path(".Bare", "crate::Bare")
    };
    stubs_at_another_path_are_tonics: |builder| builder.proto_path("crate::messages");
    stubs_included_by_a_file_are_tonics: |builder| builder.include_file("all.rs");
    stubs_without_comments_are_tonics: |builder| {
        builder.disable_comments(["odd.v1.First", "odd.v1.First.Plain"])
    };
    well_known_types_that_are_compiled_are_tonics: |builder| builder.compile_well_known_types(true);
    extended_types_are_tonics: |builder| builder.with_extended_rust_types(true);
    boxed_fields_are_tonics: |builder| builder.boxed("odd.v1.Reply.text.long");
    ordered_maps_are_tonics: |builder| builder.btree_map(".odd.v1.Name");
    fields_of_shared_bytes_are_tonics: |builder| builder.bytes(".");
    messages_without_debug_are_tonics: |builder| builder.skip_debug(["."]);
    attributes_of_messages_are_tonics: |builder| {
        let builder = builder.message_attribute("Name", "#[message]").enum_attribute("Kind", "#[kind]");
        builder.type_attribute("Reply.text", "#[text]").field_attribute("Name.name", "#[name]")
    };
    attributes_of_stubs_are_tonics: |builder| {
        let builder = builder.client_mod_attribute("odd.v1", "#[client_mod]");
        let builder = builder.client_attribute("odd.v1.First", "#[client]");
        let builder = builder.server_mod_attribute("odd.v1", "#[server_mod]");
        let builder = builder.server_attribute("odd.v1.First", "#[server]");
        builder.trait_attribute("First", "#[service]")
    };
}

#[test]
fn stubs_of_methods_of_all_kinds_are_tonics() {
    let (ours, tonics) = made!(|builder| builder);
    let found = assert_alike(&ours, &tonics);
    let methods =
        ["plain", "r#type", "self_", "old", "nothing", "wrapped", "elsewhere", "into_inner"];
    let methods: BTreeSet<_> = methods.into_iter().chain(["Lone"]).collect();
    assert_eq!(found.clients.len(), methods.len(), "{found:#?}");
    assert_eq!(found.entries.len(), methods.len(), "{found:#?}");
    let keyword = ["odd.v1.First", "Type", "/odd.v1.First/Type"].map(String::from);
    assert_eq!(found.clients["first_client::r#type"], keyword.into());
    let bare = ["Lone", "Plain", "/Lone/Plain"].map(String::from);
    assert_eq!(found.clients["lone_client::plain"], bare.into());
    let lower = ["odd.v1.second", "into_inner", "/odd.v1.second/into_inner"].map(String::from);
    assert_eq!(found.clients["second_client::into_inner"], lower.into());
}

#[cfg(feature = "blocking")]
#[test]
fn blocking_clients_have_attributes_but_what_is_derived() {
    let (ours, _) = made!(|builder| {
        let builder = builder.client_mod_attribute("odd.v1", "#[client_mod]");
        builder.client_attribute("First", "#[client]").client_attribute("First", "#[derive(Hash)]")
    });
    let file = syn::parse_file(&ours["odd.v1.rs"]).expect("Rust");
    let texts = |attributes: &[syn::Attribute]| -> Vec<_> {
        attributes.iter().map(|attribute| attribute.to_token_stream().to_string()).collect()
    };
    let is_blocking = |item: &&Item| matches!(item, Item::Mod(m) if m.ident == "first_blocking");
    let Some(Item::Mod(module)) = file.items.iter().find(is_blocking) else { panic!("no client") };
    assert!(texts(&module.attrs).contains(&"# [client_mod]".to_owned()));
    let (_, items) = module.content.as_ref().expect("a body");
    let of_type = |item: &Item| match item {
        Item::Struct(client) => Some(texts(&client.attrs)),
        _ => None,
    };
    let attributes = items.iter().find_map(of_type).expect("a type");
    let (comments, others): (Vec<_>, Vec<_>) =
        attributes.into_iter().partition(|text| text.contains("doc"));
    assert_eq!(comments, ["# [doc = \" The first service.\"]"]);
    assert_eq!(others, ["# [client]", "# [derive (Debug)]"]);
}

#[test]
fn names_of_packages_are_in_paths_whether_asked_for_or_not() {
    let (ours, tonics) = made!(|builder| builder.emit_package(false));
    assert_alike(&ours, &tonics);
}

#[test]
fn stubs_with_another_codec_are_tonics_own() {
    let (ours, tonics) = made!(|builder| builder.codec_path("crate::Codec"));
    let stubs = &ours["odd.v1.rs"];
    assert!(stubs.contains("crate::Codec::default()") && !stubs.contains("partywall"), "{stubs}");
    assert_eq!(ours, tonics);
}

#[test]
fn stubs_of_descriptors_are_those_of_files() {
    let files = Files::of(&[("proto/odd.proto", ODD), ("proto/bare.proto", BARE)]);
    let (out, fds) = (files.out("out"), files.path("odd.bin"));
    let (builder, again) = (partywall_build::configure(), files.out("again"));
    let builder = builder.out_dir(&out).file_descriptor_set_path(&fds);
    builder.compile_protos(&[files.path("proto/odd.proto")], &[files.path("proto")]).unwrap();
    let fds = prost::Message::decode(&*std::fs::read(fds).unwrap()).unwrap();
    partywall_build::configure().out_dir(&again).compile_fds(fds).unwrap();
    assert_eq!(texts(&out), texts(&again));
}

#[test]
fn generator_alone_generates_the_same_services() {
    let files = Files::of(&[("proto/odd.proto", ODD), ("proto/bare.proto", BARE)]);
    let (out, fds) = (files.out("out"), files.path("odd.bin"));
    let builder = partywall_build::configure().use_arc_self(true);
    let mut config = partywall_build::Config::new();
    config.out_dir(files.out("alone")).file_descriptor_set_path(&fds).skip_protoc_run();
    config.type_attribute(".", "#[allow(clippy::all)]");
    config.service_generator(builder.clone().service_generator());
    let builder = builder.out_dir(&out).file_descriptor_set_path(fds);
    builder.compile_protos(&[files.path("proto/odd.proto")], &[files.path("proto")]).unwrap();
    config.compile_protos(&[""; 0], &[""; 0]).unwrap();
    assert_eq!(texts(&files.path("alone")), texts(&out));
}

/// The unary methods in stubs.
#[derive(Debug, Default, PartialEq)]
struct Found {
    /// Of clients: the texts by which each names its method.
    clients: BTreeMap<String, BTreeSet<String>>,
    /// What servers call for each path.
    entries: BTreeMap<String, String>,
}

/// Fails where our stubs are not tonic's, but for what is changed; says which unary methods both have.
fn assert_alike(ours: &BTreeMap<String, String>, tonics: &BTreeMap<String, String>) -> Found {
    assert!(ours.keys().eq(tonics.keys()), "{:?} and {:?}", ours.keys(), tonics.keys());
    let (mut our_methods, mut tonics_methods) = (Found::default(), Found::default());
    for (name, text) in ours {
        let mut our_file = syn::parse_file(text).expect("Rust");
        let mut tonics_file = syn::parse_file(&tonics[name]).expect("Rust");
        take_changes(&mut our_file.items, &mut our_methods);
        take_originals(&mut tonics_file.items, &mut tonics_methods);
        let [our_text, tonics_text] = [our_file, tonics_file].map(|f| prettyplease::unparse(&f));
        assert_eq!(our_text, tonics_text, "{name}");
    }
    assert_eq!(our_methods, tonics_methods);
    our_methods
}

/// Takes out what is changed in our stubs.
fn take_changes(items: &mut Vec<Item>, found: &mut Found) {
    items
        .retain(|item| !matches!(item, Item::Mod(m) if m.ident.to_string().ends_with("_blocking")));
    for module in modules(items) {
        visit_mut::visit_item_mod_mut(&mut TonicsClient, module);
        take_bodies(module, "self . inner . call", found);
        let Some((_, items)) = &mut module.content else { continue };
        let (mut paths, mut called) = (Vec::new(), Vec::new());
        items.retain(|item| match item {
            Item::Impl(own) if implements(own, "Generated") => {
                let mut strings = Strings::default();
                strings.visit_item_impl(own);
                paths = strings.0;
                called = Calls::of(|calls| calls.visit_item_impl(own));
                false
            }
            _ => true,
        });
        assert_eq!(paths.len(), called.len(), "{paths:?}, {called:?}");
        for block in bodies(items, "call") {
            let text = block.stmts[0].to_token_stream().to_string();
            if text == "partywall :: stubs :: offer (& req , self) ;" {
                block.stmts.remove(0);
            }
            let mut arms = Arms("stubs :: ordinary", BTreeMap::new());
            arms.visit_block_mut(block);
            assert_eq!(arms.1.len(), paths.len(), "{:?}", arms.1);
            for (path, body) in arms.1 {
                let number = paths.iter().position(|known| *known == path).expect(&path);
                let own = format!("ordinary (self . clone () , {number}usize , encodings , req)");
                assert!(body.contains(&own), "{path}: {body}");
                found.entries.insert(path, called[number].clone());
            }
        }
    }
}

/// Takes out what we change in tonic's stubs.
fn take_originals(items: &mut [Item], found: &mut Found) {
    for module in modules(items) {
        take_bodies(module, "self . inner . unary", found);
        let Some((_, items)) = &mut module.content else { continue };
        for block in bodies(items, "call") {
            let mut arms = Arms("grpc . unary", BTreeMap::new());
            arms.visit_block_mut(block);
            for (path, body) in arms.1 {
                let body = syn::parse_str(&body).expect("an expression");
                let called = Calls::of(|calls| calls.visit_expr(&body));
                assert_eq!(called.len(), 1, "{path}");
                found.entries.insert(path, called[0].clone());
            }
        }
    }
}

/// Empties the functions that call so, and keeps the texts in them.
fn take_bodies(module: &mut ItemMod, how: &str, found: &mut Found) {
    let name = module.ident.clone();
    let Some((_, items)) = &mut module.content else { return };
    for item in items {
        let Item::Impl(own) = item else { continue };
        for item in &mut own.items {
            let ImplItem::Fn(function) = item else { continue };
            if function.block.to_token_stream().to_string().contains(how) {
                let mut strings = Strings::default();
                strings.visit_block(&function.block);
                let strings = strings.0.into_iter().collect();
                found.clients.insert(format!("{name}::{}", function.sig.ident), strings);
                function.block.stmts.clear();
            }
        }
    }
}

fn modules(items: &mut [Item]) -> impl Iterator<Item = &mut ItemMod> {
    items.iter_mut().filter_map(|item| match item {
        Item::Mod(module) => Some(module),
        _ => None,
    })
}

fn implements(own: &ItemImpl, name: &str) -> bool {
    let path = own.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
    path.is_some_and(|segment| segment.ident == name)
}

/// The bodies of functions of that name, where `Service` is implemented.
fn bodies<'a>(items: &'a mut [Item], name: &'a str) -> impl Iterator<Item = &'a mut Block> {
    let services = items.iter_mut().filter_map(|item| match item {
        Item::Impl(own) if implements(own, "Service") => Some(own),
        _ => None,
    });
    services.flat_map(|own| &mut own.items).filter_map(move |item| match item {
        ImplItem::Fn(function) if function.sig.ident == name => Some(&mut function.block),
        _ => None,
    })
}

/// Puts tonic's client where ours is.
struct TonicsClient;

impl VisitMut for TonicsClient {
    fn visit_path_mut(&mut self, path: &mut syn::Path) {
        let text = path.to_token_stream().to_string();
        if text.starts_with("partywall :: stubs :: Grpc") {
            let text = text.replacen("partywall :: stubs :: Grpc", "tonic :: client :: Grpc", 1);
            *path = syn::parse_str(&text).expect("a path");
        }
        visit_mut::visit_path_mut(self, path);
    }
}

/// Collects texts.
#[derive(Default)]
struct Strings(Vec<String>);

impl<'ast> Visit<'ast> for Strings {
    fn visit_lit_str(&mut self, text: &'ast LitStr) {
        self.0.push(text.value());
    }
}

/// Collects calls of a service: of `<T as First>::plain(&inner, request)` all but the request.
struct Calls(Vec<String>);

impl Calls {
    fn of(visit: impl FnOnce(&mut Self)) -> Vec<String> {
        let mut calls = Self(Vec::new());
        visit(&mut calls);
        calls.0
    }
}

impl<'ast> Visit<'ast> for Calls {
    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if matches!(&*call.func, syn::Expr::Path(path) if path.qself.is_some()) {
            let (function, own) = (call.func.to_token_stream(), call.args[0].to_token_stream());
            self.0.push(format!("{function} ({own})"));
        }
        visit::visit_expr_call(self, call);
    }
}

/// Empties the arms for paths in a match whose bodies have this text, and keeps them.
struct Arms(&'static str, BTreeMap<String, String>);

impl VisitMut for Arms {
    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        let body = arm.body.to_token_stream().to_string();
        if let Pat::Lit(path) = &arm.pat
            && let syn::Lit::Str(path) = &path.lit
            && body.contains(self.0)
        {
            self.1.insert(path.value(), body);
            arm.body = syn::parse_quote!({});
        }
    }
}
