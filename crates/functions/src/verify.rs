//! The object that the builder's linker has made, taken to an [`Image`].
//!
//! The linker's script has four parts at fixed addresses: code, constants, data, and what the linker itself
//! needs (dynamic entries, symbols, relocations), which is read here and goes no further. Constants may be
//! right behind the code instead: then the image is compact. What an object can have besides is refused, not
//! left out: a library that it needs, constructors, thread-local data, indirect functions, relocations in
//! code, symbols that are not the runtime's calls.
//!
//! # References
//! elf(5); System V ABI, AMD64 supplement, section 4.4 (relocation types).

use object::LittleEndian;
use object::elf;
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _, Rela as _, Sym as _};

use crate::image::{
    Binding, COMPACT_BYTES, CONSTANTS, Call, DATA, DATA_BYTES, Image, ImageError, PART_BYTES,
    Target,
};

type Header = elf::FileHeader64<LittleEndian>;
type Segment = elf::ProgramHeader64<LittleEndian>;
type Entry = elf::Dyn64<LittleEndian>;
type Relocation = elf::Rela64<LittleEndian>;
type Symbol = elf::Sym64<LittleEndian>;

const E: LittleEndian = LittleEndian;

/// Where the linker's own part is.
pub const LINK: u32 = 0x6000_0000;
/// The most bytes of it.
const LINK_BYTES: u32 = 8 << 20;
/// The most segments.
const SEGMENTS: usize = 32;

/// Why an object is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// Not an object of the builder's linker.
    #[error("this is no function's object: {0}")]
    Object(&'static str),
    /// A segment that no image has.
    #[error("segment {index} {why}")]
    Segment {
        /// Which program header, from 0.
        index: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A dynamic entry that no image has.
    #[error("the object {0}")]
    Dynamic(String),
    /// A relocation that no image has.
    #[error("the relocation at {at:#x} {why}")]
    Relocation {
        /// The word's address.
        at: u64,
        /// What is wrong with it.
        why: String,
    },
    /// What has become of it is no image.
    #[error("{why}{}", of(.symbol))]
    Image {
        /// The reason.
        why: ImageError,
        /// The function that the place belongs to, if that is known.
        symbol: Option<String>,
    },
}

fn of(symbol: &Option<String>) -> String {
    symbol.as_ref().map(|symbol| format!(", in `{symbol}`")).unwrap_or_default()
}

impl VerifyError {
    /// Whether another layout of the same code might pass.
    pub fn is_chance(&self) -> bool {
        matches!(self, Self::Image { why: ImageError::Forbidden { .. }, .. })
    }
}

/// A part of the object's addresses, as it is loaded.
struct Part {
    begin: u32,
    most: u32,
    bytes: Vec<u8>,
    /// Its length in memory.
    end: usize,
}

impl Part {
    fn new(begin: u32, most: u32) -> Self {
        Self { begin, most, bytes: Vec::new(), end: 0 }
    }

    /// Puts a segment behind those before it.
    fn load(&mut self, segment: &Segment, data: &[u8]) -> Result<(), &'static str> {
        let at = segment.p_vaddr(E) - u64::from(self.begin);
        let end = at.checked_add(segment.p_memsz(E)).filter(|end| *end <= u64::from(self.most));
        let end = end.ok_or("is longer than its part of an image may be")?;
        if at < self.end as u64 {
            return Err("overlaps the one before it, or comes out of order");
        }
        if data.len() as u64 > segment.p_memsz(E) {
            return Err("is longer in the file than in memory");
        }
        self.bytes.resize(at as usize, 0);
        self.bytes.extend_from_slice(data);
        self.end = end as usize;
        Ok(())
    }

    /// The bytes with those that are zeros by their length alone.
    fn whole(mut self) -> Vec<u8> {
        self.bytes.resize(self.end, 0);
        self.bytes
    }

    /// So many bytes at an address.
    fn at(&self, address: u64, bytes: u64) -> Option<&[u8]> {
        let at = usize::try_from(address.checked_sub(u64::from(self.begin))?).ok()?;
        self.bytes.get(at..at.checked_add(usize::try_from(bytes).ok()?)?)
    }
}

/// Checks an object, and makes an image of it.
///
/// # Errors
/// [`VerifyError`] with the first thing that is refused.
pub fn image(file: &[u8]) -> Result<Image, VerifyError> {
    let image = read(file)?;
    image.check().map_err(|why| {
        let symbol = match why {
            ImageError::Forbidden { offset, .. } => symbol_at(file, offset.into()),
            _ => None,
        };
        VerifyError::Image { why, symbol }
    })?;
    Ok(image)
}

/// What an object says that it is, without [`Image::check`]: for tests of what is behind that.
///
/// # Errors
/// [`VerifyError`] with the first thing that no object has.
#[doc(hidden)]
pub fn unchecked_for_tests(file: &[u8]) -> Result<Image, VerifyError> {
    read(file)
}

fn read(file: &[u8]) -> Result<Image, VerifyError> {
    let header = Header::parse(file).map_err(|_| VerifyError::Object("it is no ELF file"))?;
    header.endian().map_err(|_| VerifyError::Object("it is of another byte order"))?;
    if header.e_machine(E) != elf::EM_X86_64 || header.e_type(E) != elf::ET_DYN {
        return Err(VerifyError::Object("it is no shared object for x86-64"));
    }
    let segments = header
        .program_headers(E, file)
        .map_err(|_| VerifyError::Object("its program headers are not in the file"))?;
    if segments.len() > SEGMENTS {
        return Err(VerifyError::Object("it has more than 32 segments"));
    }
    let mut parts = [
        Part::new(0, PART_BYTES),
        Part::new(CONSTANTS, PART_BYTES),
        Part::new(DATA, DATA_BYTES),
        Part::new(LINK, LINK_BYTES),
    ];
    let mut dynamic = None;
    for (index, segment) in segments.iter().enumerate() {
        let bad = |why| VerifyError::Segment { index, why };
        let data = segment.data(E, file).map_err(|()| bad("is not in the file"))?;
        match segment.p_type(E) {
            elf::PT_LOAD if segment.p_memsz(E) == 0 && data.is_empty() => {}
            elf::PT_LOAD => load(&mut parts, segment, data).map_err(bad)?,
            elf::PT_DYNAMIC => dynamic = segment.dynamic(E, file).map_err(|_| bad("is cut off"))?,
            elf::PT_GNU_STACK if segment.p_flags(E).contains(elf::PF_X) => {
                return Err(bad("asks for an executable stack"));
            }
            elf::PT_GNU_STACK | elf::PT_GNU_RELRO | elf::PT_PHDR | elf::PT_NULL => {}
            elf::PT_TLS => {
                return Err(bad("is thread-local data, which functions do not have"));
            }
            elf::PT_INTERP => return Err(bad("names an interpreter")),
            _ => return Err(bad("is of a kind that no function has")),
        }
    }
    let dynamic = dynamic.ok_or(VerifyError::Object("it has no dynamic segment"))?;
    let bindings = bindings(dynamic, &parts)?;
    let entry = u32::try_from(header.e_entry(E)).unwrap_or(u32::MAX);
    let [code, constants, data, _] = parts;
    let zeros = (data.end - data.bytes.len()) as u32;
    let compact = constants.begin != CONSTANTS;
    let behind = if compact { constants.begin as usize } else { code.end };
    let (mut code, constants, data) = (code.whole(), constants.whole(), data.bytes);
    code.resize(behind, 0);
    Ok(Image { code, constants, data, zeros, entry, bindings, compact })
}

fn load(parts: &mut [Part; 4], segment: &Segment, data: &[u8]) -> Result<(), &'static str> {
    let flags = segment.p_flags(E);
    let (write, execute) = (flags.contains(elf::PF_W), flags.contains(elf::PF_X));
    if write && execute {
        return Err("is writable and executable");
    }
    let address = segment.p_vaddr(E);
    let is_behind = address < u64::from(CONSTANTS) && parts[0].end > 0 && parts[1].end == 0;
    if is_behind && !write && !execute {
        // Constants behind the code: the image is compact.
        if address < parts[0].end as u64 {
            return Err("overlaps the one before it, or comes out of order");
        }
        parts[1] = Part::new(address as u32, COMPACT_BYTES);
    }
    let at = parts.iter().rposition(|part| address >= u64::from(part.begin)).unwrap_or(0);
    match at {
        0 if write || !execute => return Err("is no code, but lies where code does"),
        1.. if execute => return Err("is code, but lies where none does"),
        2 if !write => return Err("is read-only, but lies where data do"),
        _ => {}
    }
    parts[at].load(segment, data)
}

/// The bindings that an object's relocations ask for.
fn bindings(dynamic: &[Entry], parts: &[Part; 4]) -> Result<Vec<Binding>, VerifyError> {
    let refused = |what: &str| Err(VerifyError::Dynamic(what.into()));
    // The relocations of data and those of calls.
    let (mut at, mut bytes) = ([0; 2], [0; 2]);
    let (mut symbols, mut names, mut names_bytes) = (0, 0, 0);
    for entry in dynamic {
        let value = entry.d_val(E);
        match entry.d_tag(E) {
            elf::DT_NULL => break,
            elf::DT_RELA => at[0] = value,
            elf::DT_RELASZ => bytes[0] = value,
            elf::DT_JMPREL => at[1] = value,
            elf::DT_PLTRELSZ => bytes[1] = value,
            elf::DT_PLTREL if value != elf::DT_RELA.0 as u64 => {
                return refused("has relocations without addends");
            }
            elf::DT_SYMTAB => symbols = value,
            elf::DT_STRTAB => names = value,
            elf::DT_STRSZ => names_bytes = value,
            elf::DT_RELAENT if value != size_of::<Relocation>() as u64 => {
                return refused("has relocations of another size");
            }
            elf::DT_SYMENT if value != size_of::<Symbol>() as u64 => {
                return refused("has symbols of another size");
            }
            elf::DT_FLAGS if value & elf::DF_TEXTREL.0 != 0 => {
                return refused("has relocations in code");
            }
            elf::DT_TEXTREL => return refused("has relocations in code"),
            elf::DT_NEEDED => return refused("needs a shared library"),
            elf::DT_INIT | elf::DT_INIT_ARRAY | elf::DT_PREINIT_ARRAY => {
                return refused("has constructors");
            }
            elf::DT_FINI | elf::DT_FINI_ARRAY => return refused("has destructors"),
            elf::DT_RELAENT
            | elf::DT_SYMENT
            | elf::DT_FLAGS
            | elf::DT_FLAGS_1
            | elf::DT_RELACOUNT
            | elf::DT_PLTREL
            | elf::DT_PLTGOT
            | elf::DT_HASH
            | elf::DT_GNU_HASH
            | elf::DT_SONAME => {}
            other => {
                let text = format!("has the dynamic entry {:#x}, which no function has", other.0);
                return Err(VerifyError::Dynamic(text));
            }
        }
    }
    let link = &parts[3];
    let table = |(at, bytes): (u64, u64)| {
        let table = link.at(at, bytes).or((bytes == 0).then_some(&[]));
        let why = "its relocations are not where its linker puts them";
        let table = table.ok_or(VerifyError::Object(why))?;
        object::pod::slice_from_all_bytes::<Relocation>(table)
            .map_err(|()| VerifyError::Object("its relocations are cut off"))
    };
    let [data, calls] = [table((at[0], bytes[0]))?, table((at[1], bytes[1]))?];
    let names = link.at(names, names_bytes).unwrap_or_default();
    let mut bindings = Vec::new();
    for relocation in data.iter().chain(calls) {
        let at = relocation.r_offset(E);
        let bad = |why: String| VerifyError::Relocation { at, why };
        let word = u32::try_from(at).map_err(|_| bad("is nowhere in an image".into()))?;
        if word < parts[1].begin {
            return Err(bad("is in code".into()));
        }
        let kind = relocation.r_type(E, false);
        let index = relocation.r_sym(E, false);
        let target = match kind {
            elf::R_X86_64_RELATIVE => u32::try_from(relocation.r_addend(E))
                .map(Target::Here)
                .map_err(|_| bad("leads out of the image".into()))?,
            elf::R_X86_64_GLOB_DAT | elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_64
                if relocation.r_addend(E) == 0 =>
            {
                let symbol = u64::from(index).checked_mul(size_of::<Symbol>() as u64);
                let symbol = symbol.and_then(|at| symbols.checked_add(at));
                let symbol = symbol.and_then(|at| link.at(at, size_of::<Symbol>() as u64));
                let symbol = symbol.and_then(|bytes| object::pod::from_bytes::<Symbol>(bytes).ok());
                let (symbol, _) = symbol.ok_or_else(|| bad("names no symbol".into()))?;
                Target::Call(call(symbol, names).map_err(bad)?)
            }
            elf::R_X86_64_IRELATIVE => return Err(bad("is an indirect function".into())),
            elf::R_X86_64_DTPMOD64 | elf::R_X86_64_DTPOFF64 | elf::R_X86_64_TPOFF64 => {
                return Err(bad("is thread-local data, which functions do not have".into()));
            }
            other => return Err(bad(format!("is of type {other:?}, which no function has"))),
        };
        bindings.push(Binding { word, target });
    }
    bindings.sort_by_key(|binding| binding.word);
    Ok(bindings)
}

/// The call of the runtime that a symbol stands for.
fn call(symbol: &Symbol, names: &[u8]) -> Result<Call, String> {
    let name = names.get(symbol.st_name(E) as usize..).unwrap_or_default();
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(&name[..name.len().min(200)]);
    if symbol.st_shndx(E) != elf::SHN_UNDEF {
        return Err(format!("is bound to `{name}`, which the object has itself"));
    }
    Call::ALL.into_iter().find(|call| call.symbol() == name).ok_or_else(|| {
        let calls = Call::ALL.map(Call::symbol).join(", ");
        format!("needs `{name}`, which is no call of the runtime; those are {calls}")
    })
}

/// The function of the object's symbol table that an address lies in; a name for people, which decides
/// nothing.
fn symbol_at(file: &[u8], address: u64) -> Option<String> {
    let header = Header::parse(file).ok()?;
    let sections = header.sections(E, file).ok()?;
    let symbols = sections.symbols(E, file, elf::SHT_SYMTAB).ok()?;
    let symbol = symbols.iter().find(|symbol| {
        let begin = symbol.st_value(E);
        symbol.st_type() == elf::STT_FUNC && begin <= address && address - begin < symbol.st_size(E)
    })?;
    let name = symbol.name(E, symbols.strings()).ok()?;
    Some(format!("{:#}", rustc_demangle::demangle(&String::from_utf8_lossy(name))))
}
