//! Functions that are built, and sources that are not.

mod bombs;
mod crates;
mod objects;
mod sandbox;
mod tricks;

use std::path::Path;
use std::sync::LazyLock;

use partywall_functions::builder::{BuildError, Builder, Built, Toolchain};
use partywall_functions::sandbox::Limits;
use partywall_functions::source::File;

static BUILDER: LazyLock<Builder> = LazyLock::new(|| {
    let toolchain = Toolchain::of(Path::new("rustc")).unwrap();
    let sandbox = vec![env!("CARGO_BIN_EXE_functions-sandbox").to_owned()];
    Builder::new(toolchain, sandbox, Limits::default())
});

fn build(text: &str) -> Result<Built, BuildError> {
    BUILDER.build(&[File { path: "main.rs".into(), text: text.into() }])
}

const WORDS: &str = "//! Counts words.\n\
    use alloc::collections::BTreeMap;\n\
    pub fn handle(request: Request<'_>) -> Reply {\n\
    let mut words = BTreeMap::new();\n\
    for word in request.text()?.split(' ') { *words.entry(word).or_insert(0u32) += 1; }\n\
    log!(\"{} words\", words.len());\n\
    Ok(format!(\"{words:?}\").into_bytes()) }";

#[test]
fn a_function_is_built_and_its_image_checked() {
    let built = build(WORDS).unwrap();
    println!(
        "{} bytes of code, {} of constants, {} bindings, {} tries",
        built.image.code.len(),
        built.image.constants.len(),
        built.image.bindings.len(),
        built.tries
    );
    assert!(built.image.data.is_empty() && built.image.zeros == 0);
}

#[test]
fn a_function_that_tells_the_time_is_small() {
    let built = build(
        "pub fn handle(_: Request<'_>) -> Reply {\n\
         Ok(partywall_fn::clock::monotonic().as_nanos().to_le_bytes().to_vec()) }",
    );
    let image = built.unwrap().image;
    println!("{} bytes of code, {} of constants", image.code.len(), image.constants.len());
    assert!(image.compact && image.code.len() < 3584, "there is room on its page for more");
}

/// The compiler's words come back with the author's lines.
#[test]
fn errors_of_the_compiler_have_the_authors_places_alone() {
    let text = "pub fn handle(request: Request<'_>) -> Reply {\n    let x: u32 = \"a\";\n    Ok(vec![])\n}\n";
    let Err(BuildError::Compiler(said)) = build(text) else { panic!("built") };
    assert!(said.contains("error[E0308]: mismatched types\n --> main.rs:2:18"), "{said}");
    assert!(!said.contains("/build") && !said.contains("toolchain"), "{said}");
    assert!(matches!(build("pub fn other() {}"), Err(BuildError::NoHandle)));
    let text = "pub fn handle(request: u32) -> Reply { Ok(vec![]) }";
    let Err(BuildError::Compiler(said)) = build(text) else { panic!("built") };
    assert!(said.contains("expected `u32`, found `Request<'_>`"), "{said}");
}

/// What is tried first and is not there is named with what there is.
#[test]
fn output_and_a_handle_of_another_kind_have_a_remedy() {
    let called = "it is called as `pub fn handle(request: Request<'_>) -> Reply`";
    let log = "a function has no standard output; `log!` writes a line of its log";
    for (text, remedy) in [
        ("pub fn handle(_: Request<'_>) -> String { String::new() }", called),
        ("pub async fn handle(_: Request<'_>) -> Reply { Ok(vec![]) }", called),
        ("pub fn handle() -> Reply { Ok(vec![]) }", called),
        ("pub fn handle(_: Request<'_>) -> Reply { println!(\"x\"); Ok(vec![]) }", log),
        ("pub fn handle(r: Request<'_>) -> Reply { dbg!(r); Ok(vec![]) }", log),
    ] {
        let Err(BuildError::Compiler(said)) = build(text) else { panic!("built") };
        assert!(said.ends_with(remedy), "{said}");
    }
    let text = "pub fn handle(_: Request<'_>) -> Reply { nothing!(); Ok(vec![]) }";
    let Err(BuildError::Compiler(said)) = build(text) else { panic!("built") };
    assert!(!said.contains("log!") && !said.contains("called as"), "{said}");
}

/// What the lexer lets through, the compiler refuses.
#[test]
fn the_compiler_refuses_unsafe_code() {
    for text in [
        "#[allow(unsafe_code)] pub fn handle(_: Request<'_>) -> Reply { Ok(vec![]) }",
        "use std::fs; pub fn handle(_: Request<'_>) -> Reply { Ok(vec![]) }",
        "mod gone; pub fn handle(_: Request<'_>) -> Reply { Ok(vec![]) }",
    ] {
        assert!(matches!(build(text), Err(BuildError::Compiler(_))), "{text}");
    }
}

#[test]
fn modules_of_a_small_tree_are_found() {
    let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
    let files = [
        file(
            "main.rs",
            "mod shapes;\npub fn handle(_: Request<'_>) -> Reply { Ok(shapes::circle::name()) }",
        ),
        file("shapes.rs", "pub mod circle;"),
        file(
            "shapes/circle.rs",
            "pub fn name() -> Vec<u8> { crate::shapes::circle::NAME.to_vec() }\nconst NAME: &[u8] = b\"circle\";",
        ),
    ];
    BUILDER.build(&files).unwrap();
    assert!(matches!(BUILDER.build(&files[1..]), Err(BuildError::NoRoot)));
    let digest = BUILDER.digest(&files);
    let mut turned = files.clone();
    turned.reverse();
    assert_eq!(BUILDER.digest(&turned), digest);
    turned[0].text.push(' ');
    assert_ne!(BUILDER.digest(&turned), digest);
}
