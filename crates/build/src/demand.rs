//! What `.proto` files demand of the links that calls travel over: `partywall/security.proto`.
//!
//! ```text
//! a file    -> compiled, with our own copy of the import whatever the directories have  [`compiler`]
//! its bytes -> options of services and methods, by the definitions that the bytes have  [`Demands::of`]
//! ```
//!
//! prost drops options that it does not know. So they are read from bytes that it has not decoded; where
//! there are none, files that could have a demand are refused rather than compiled without it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, ExtensionDescriptor, Value};
use protox::file::{
    ChainFileResolver, File, FileResolver, GoogleFileResolver, IncludeFileResolver,
};
use tonic_prost_build::FileDescriptorSet;

use crate::error;

/// The import.
pub(crate) const NAME: &str = "partywall/security.proto";
/// Its text.
const TEXT: &str = include_str!("../proto/partywall/security.proto");
/// Its options: of services, and of methods.
const OPTIONS: [&str; 2] = ["partywall.security", "partywall.method_security"];
/// Its message, of which no Rust is generated.
pub(crate) const MESSAGE: &str = ".partywall.Security";

/// What a `.proto` file demands of the link that a call travels over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Demand {
    /// What passes has to be sealed.
    pub seal: bool,
    /// Messages have to be signed.
    pub sign: bool,
    /// How the identities of both ends have to be known, at least.
    pub evidence: Evidence,
}

/// How identities are known; the later the stricter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// In any way, or not at all.
    #[default]
    Any,
    /// Observed, at least.
    Observed,
    /// By the image of a container, at least.
    Image,
    /// Started.
    Started,
}

impl Demand {
    /// Whether it demands nothing.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    /// What both demand: of each field the stricter.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            seal: self.seal || other.seal,
            sign: self.sign || other.sign,
            evidence: self.evidence.max(other.evidence),
        }
    }

    /// As an option has it.
    ///
    /// # Errors
    /// It has a value or a field that this release does not know, and so may demand more.
    fn read(option: &DynamicMessage) -> Result<Self, String> {
        if let Some(field) = option.unknown_fields().next() {
            return Err(format!("field {}", field.number()));
        }
        let mut demand = Self::default();
        for (field, value) in option.fields() {
            let unknown = || format!("`{}: {value}`", field.name());
            let number = value.as_enum_number().ok_or_else(unknown)?;
            match (field.name(), number) {
                (_, 0) | ("seal" | "sign", 1) => {}
                ("seal", 2) => demand.seal = true,
                ("sign", 2) => demand.sign = true,
                ("evidence", 1) => demand.evidence = Evidence::Observed,
                ("evidence", 2) => demand.evidence = Evidence::Started,
                ("evidence", 3) => demand.evidence = Evidence::Image,
                _ => return Err(unknown()),
            }
        }
        Ok(demand)
    }
}

/// What methods demand, by their paths; those that demand nothing are not there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Demands {
    /// The import is among the files.
    pub(crate) is_imported: bool,
    pub(crate) of_methods: BTreeMap<String, Demand>,
}

impl Demands {
    /// Those of descriptors as a compiler has written them.
    ///
    /// # Errors
    /// Of a file that imports the options something is missing; a demand is not known.
    pub(crate) fn of(descriptors: &[u8]) -> io::Result<Self> {
        let files = FileDescriptorSet::decode(descriptors)?;
        if !imports(&files) {
            return Ok(Self::default());
        }
        let pool = DescriptorPool::decode(descriptors).map_err(|e| error::not_whole(&e))?;
        let [of_services, of_methods] = OPTIONS.map(|name| pool.get_extension_by_name(name));
        let mut demands = Self { is_imported: true, of_methods: BTreeMap::new() };
        for service in pool.services() {
            let all = demand_of(service.options(), of_services.as_ref(), service.full_name())?;
            for method in service.methods() {
                let own = demand_of(method.options(), of_methods.as_ref(), method.full_name())?;
                let demand = all.and(own);
                if !demand.is_none() {
                    let path = format!("/{}/{}", service.full_name(), method.name());
                    demands.of_methods.insert(path, demand);
                }
            }
        }
        Ok(demands)
    }

    /// Of files that prost has decoded, which have lost the options.
    ///
    /// # Errors
    /// They could have had some.
    pub(crate) fn check_none(files: &FileDescriptorSet) -> io::Result<()> {
        if imports(files) { Err(error::options_are_lost()) } else { Ok(()) }
    }
}

/// Whether a file could have a demand.
fn imports(files: &FileDescriptorSet) -> bool {
    files.file.iter().any(|file| file.dependency.iter().any(|import| import == NAME))
}

fn demand_of(
    options: DynamicMessage,
    extension: Option<&ExtensionDescriptor>,
    of: &str,
) -> io::Result<Demand> {
    let Some(extension) = extension.filter(|extension| options.has_extension(extension)) else {
        return Ok(Demand::default());
    };
    let option = options.get_extension(extension);
    let read = match &*option {
        Value::Message(option) => Demand::read(option),
        other => Err(other.to_string()),
    };
    read.map_err(|what| error::unknown_demand(of, extension.full_name(), &what))
}

/// A compiler of files, whose imports are looked for in these directories. It knows the import of demands,
/// which needs no directory: that of this release counts, whatever a directory has under its name.
///
/// # Errors
/// As [`protox::Compiler::new`].
pub fn compiler<P: AsRef<Path>>(
    includes: impl IntoIterator<Item = P>,
) -> Result<protox::Compiler, protox::Error> {
    let mut resolver = ChainFileResolver::new();
    resolver.add(Own);
    for include in includes {
        resolver.add(IncludeFileResolver::new(include.as_ref().to_owned()));
    }
    resolver.add(GoogleFileResolver::new());
    Ok(protox::Compiler::with_file_resolver(resolver))
}

/// The import of demands.
struct Own;

impl FileResolver for Own {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match name {
            NAME => File::from_source(name, TEXT),
            _ => Err(protox::Error::file_not_found(name)),
        }
    }
}

/// Writes `partywall/security.proto` below a directory, for other compilers: `protoc -I DIRECTORY ..`.
///
/// # Errors
/// It cannot be written.
pub fn write_imports(directory: impl AsRef<Path>) -> io::Result<()> {
    let path = directory.as_ref().join(NAME);
    let write = || {
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
        std::fs::write(&path, TEXT)
    };
    write().map_err(|e: io::Error| {
        let text = format!("{}: {e}; remedy: give a directory that can be written", path.display());
        io::Error::new(e.kind(), text)
    })
}

/// What the methods of these files demand, by their paths, such as `/shop.v1.Billing/Charge`. A method that
/// demands nothing is not there, and neither are those of imports.
///
/// # Errors
/// A file cannot be compiled; a demand is not known to this release.
pub fn demands<P: AsRef<Path>>(
    protos: &[P],
    includes: &[P],
) -> io::Result<BTreeMap<String, Demand>> {
    let compiled = crate::compiled(protos, includes)?;
    let mut demands = Demands::of(&compiled.encode_file_descriptor_set())?.of_methods;
    let files = compiled.files().filter(|file| !file.is_import());
    let files: BTreeSet<&str> = files.map(|file| file.name()).collect();
    for service in compiled.descriptor_pool().services() {
        if !files.contains(service.parent_file().name()) {
            let begin = format!("/{}/", service.full_name());
            demands.retain(|path, _| !path.starts_with(&begin));
        }
    }
    Ok(demands)
}
