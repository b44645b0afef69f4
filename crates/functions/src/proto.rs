//! The messages of a function's `.proto` files, as a module of it.
//!
//! A tree of sources may have `.proto` files, which import each other by their paths in it, and Google's own.
//! Where there are some, the function has a module `pb.rs` with a module for each package; `mod pb;` puts it to
//! use. The files are another's: what nests too deeply for a parser was refused before ([`crate::source`]), and
//! what is made of them goes through the same check as what authors write.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::catch_unwind;

use prost_build::{Config, Module};
use protox::Compiler;
use protox::file::{ChainFileResolver, File as Proto, FileResolver, GoogleFileResolver};

use crate::source::File;

/// The module of messages.
pub const MODULE: &str = "pb.rs";

/// Why `.proto` files are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtoError {
    /// The file would be there twice.
    #[error("`{MODULE}` is made of the .proto files; give the file of that name another one")]
    Module,
    /// The compiler of `.proto` files, with the place.
    #[error("{0}")]
    Compiler(String),
    /// They are protobuf, but no messages come of them.
    #[error("the messages of the .proto files cannot be written in Rust: {0}")]
    Generator(String),
}

struct Tree(BTreeMap<String, String>);

impl FileResolver for Tree {
    fn open_file(&self, name: &str) -> Result<Proto, protox::Error> {
        let text = self.0.get(name).ok_or_else(|| protox::Error::file_not_found(name))?;
        Proto::from_source(name, text)
    }
}

/// The module of the messages of all `.proto` files, if there are some.
///
/// # Errors
/// [`ProtoError`].
pub fn module(files: &[File]) -> Result<Option<File>, ProtoError> {
    let protos: BTreeMap<_, _> = files
        .iter()
        .filter(|file| file.path.ends_with(".proto"))
        .map(|file| (file.path.clone(), file.text.clone()))
        .collect();
    if protos.is_empty() {
        return Ok(None);
    }
    if files.iter().any(|file| file.path == MODULE) {
        return Err(ProtoError::Module);
    }
    // What these crates take for granted of protoc's output may not hold.
    let text = catch_unwind(|| text(&protos)).map_err(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or(panic.downcast_ref::<&str>().copied());
        ProtoError::Generator(said.unwrap_or("they are too unlike others").into())
    })?;
    Ok(Some(File { path: MODULE.into(), text: text? }))
}

fn text(protos: &BTreeMap<String, String>) -> Result<String, ProtoError> {
    let mut resolver = ChainFileResolver::new();
    resolver.add(Tree(protos.clone()));
    resolver.add(GoogleFileResolver::new());
    let mut compiler = Compiler::with_file_resolver(resolver);
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(protos.keys()).map_err(|why| ProtoError::Compiler(format!("{why:?}")))?;
    let package = |package: &str| Module::from_protobuf_package_name(package);
    let descriptors = compiler.file_descriptor_set().file.into_iter();
    let mut config = Config::new();
    config.btree_map(["."]).compile_well_known_types().disable_comments(["."]);
    let modules = config
        .generate(descriptors.map(|file| (package(file.package()), file)).collect())
        .map_err(|why| ProtoError::Generator(why.to_string()))?;
    let mut tree = Packages::default();
    for (module, text) in modules {
        let inner =
            module.parts().fold(&mut tree, |at, part| at.inner.entry(part.into()).or_default());
        inner.text += &text;
    }
    let mut all = String::new();
    tree.write(&mut all);
    Ok(all)
}

/// A package's messages, and the packages in it.
#[derive(Default)]
struct Packages {
    text: String,
    inner: BTreeMap<String, Packages>,
}

impl Packages {
    fn write(&self, all: &mut String) {
        all.push_str(&self.text);
        for (name, package) in &self.inner {
            let _infallible = writeln!(all, "\npub mod {name} {{");
            package.write(all);
            all.push_str("}\n");
        }
    }
}
