//! The messages of a function's `.proto` files, as a module of it.
//!
//! ```text
//! builder --.proto files--> sandbox: protox, prost-build --pb.rs--> builder: the check of its tokens
//! ```
//!
//! A tree of sources may have `.proto` files, which import each other by their paths in it, and Google's own.
//! Where there are some, the function has a module `pb.rs` with a module for each package; `mod pb;` puts it
//! to use. The files are another's, and there are some of few bytes that keep the generator for ever or take
//! all of its stack. So it works in the sandbox, in the process that starts compilers there; what it makes is
//! checked as what authors write is.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::thread;

use prost_build::{Config, Module};
use protox::Compiler;
use protox::file::{ChainFileResolver, File as Proto, FileResolver, GoogleFileResolver};

use crate::source::File;

/// The module of messages.
pub const MODULE: &str = "pb.rs";
/// What makes it, for the digest of an image.
pub(crate) const GENERATOR: &str = "prost-build =0.14.4, protox =0.10.0";
/// The thread's stack, in bytes: messages that have each other as fields take some of it each.
const STACK: usize = 128 << 20;

/// Why `.proto` files are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtoError {
    /// The file would be there twice.
    #[error("`{MODULE}` is made of the .proto files; give the file of that name another one")]
    Module,
    /// There are no messages in them that Rust could have; with the place, where that is known.
    #[error("{0}")]
    Messages(String),
}

struct Tree(BTreeMap<String, String>);

impl FileResolver for Tree {
    fn open_file(&self, name: &str) -> Result<Proto, protox::Error> {
        let text = self.0.get(name).ok_or_else(|| protox::Error::file_not_found(name))?;
        Proto::from_source(name, text)
    }
}

/// The files of which a module is made, if there are some.
pub(crate) fn sources(files: &[File]) -> Result<Option<BTreeMap<String, String>>, ProtoError> {
    let is_proto = |file: &&File| file.path.ends_with(".proto");
    let file = |file: &File| (file.path.clone(), file.text.clone());
    let protos: BTreeMap<_, _> = files.iter().filter(is_proto).map(file).collect();
    if protos.is_empty() {
        return Ok(None);
    }
    match files.iter().any(|file| file.path == MODULE) {
        true => Err(ProtoError::Module),
        false => Ok(Some(protos)),
    }
}

/// The text of the module, made by a thread with a stack for what nests deeply.
///
/// # Errors
/// [`ProtoError::Messages`].
pub fn module(protos: BTreeMap<String, String>) -> Result<String, ProtoError> {
    let thread = thread::Builder::new().stack_size(STACK).spawn(move || text(&protos));
    let thread = thread.map_err(|why| ProtoError::Messages(why.to_string()))?;
    // What these crates take for granted of protoc's output may not hold.
    thread.join().unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
        Err(ProtoError::Messages(format!("these .proto files have no form in Rust: {said}")))
    })
}

fn text(protos: &BTreeMap<String, String>) -> Result<String, ProtoError> {
    let mut resolver = ChainFileResolver::new();
    resolver.add(Tree(protos.clone()));
    resolver.add(GoogleFileResolver::new());
    let mut compiler = Compiler::with_file_resolver(resolver);
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(protos.keys()).map_err(|why| ProtoError::Messages(format!("{why:?}")))?;
    let package = |package: &str| Module::from_protobuf_package_name(package);
    let descriptors = compiler.file_descriptor_set().file.into_iter();
    let mut config = Config::new();
    config.btree_map(["."]).compile_well_known_types().disable_comments(["."]);
    let modules = config
        .generate(descriptors.map(|file| (package(file.package()), file)).collect())
        .map_err(|why| ProtoError::Messages(why.to_string()))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generators_are_those_of_the_digest() {
        let manifest = include_str!("../Cargo.toml");
        for generator in GENERATOR.split(", ") {
            let (name, version) = generator.split_once(' ').unwrap();
            let is = |line: &&str| line.starts_with(&format!("{name} = "));
            let lines: Vec<_> = manifest.lines().filter(is).collect();
            assert!(matches!(lines[..], [line] if line.contains(version)), "{name}");
        }
    }
}
