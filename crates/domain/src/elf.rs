//! Reading and checking the program files that can be domains.
//!
//! A domain is a *static-pie* executable: position-independent, without interpreter and shared
//! libraries, relocating itself. Such a file can be loaded at any address beside others, as the
//! kernel would load it (elf(5); System V ABI, chapter 5, "Program Loading").
//!
//! The file is hostile until it is checked: [`Image::parse`] looks at every number that the loader
//! uses, and what it returns is bounds and rights, never a reference into the file.

use object::LittleEndian;
use object::elf;
use object::read::elf::{Dyn, FileHeader as _, ProgramHeader as _};

type Header = elf::FileHeader64<LittleEndian>;
type Segment = elf::ProgramHeader64<LittleEndian>;

/// A page of memory, in bytes.
pub const PAGE: u64 = 4096;
/// The most a program may span from its first to its last segment, in bytes: far more than any
/// program has, far less than a domain's share of addresses.
pub const SPAN: u64 = 4 << 30;
/// The most program headers that are looked at.
pub const SEGMENTS: usize = 64;
/// The strictest alignment that is granted, in bytes: a huge page.
pub const ALIGN: u64 = 2 << 20;

const E: LittleEndian = LittleEndian;

/// Why a file cannot be a domain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElfError {
    /// Not an ELF file at all, or cut off.
    #[error("this is no ELF program: {0}")]
    NotElf(&'static str),
    /// For another processor; its number in elf(5).
    #[error(
        "the program is for another processor (ELF machine {0}); a domain runs x86-64 programs"
    )]
    Machine(u16),
    /// An ordinary executable or a library.
    #[error(
        "the program is not static-pie ({0}); build it with `-C target-feature=+crt-static` \
         and an explicit --target (Rust) or `-static-pie` (C)"
    )]
    NotStaticPie(&'static str),
    /// Made by a Go compiler, whose runtime handles all signals by itself.
    #[error(
        "the program is written in Go, whose runtime needs handlers of its own for signals by which a \
         launcher makes system calls for a domain (SIGSYS, SIGSTKFLT); run it as a process (`link: ring`)"
    )]
    Go,
    /// A program header that cannot be honoured.
    #[error("segment {index} {why}")]
    Segment {
        /// Which program header, from 0.
        index: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The program as a whole.
    #[error("the program {0}")]
    Program(&'static str),
}

/// Rights of a loaded segment; never both writable and executable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    /// It can be read.
    pub read: bool,
    /// It can be written.
    pub write: bool,
    /// It can be executed.
    pub execute: bool,
}

/// One piece of the file, as it is to be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Where it begins, relative to the program's first page, in bytes.
    pub address: u64,
    /// Where it begins in the file, in bytes; congruent to `address` modulo [`PAGE`].
    pub offset: u64,
    /// How much of it comes from the file, in bytes.
    pub file_bytes: u64,
    /// How long it is; the rest is zeros.
    pub bytes: u64,
    /// What may be done with it.
    pub rights: Rights,
}

impl Load {
    /// Its pages, relative to the program's first page.
    pub fn pages(&self) -> std::ops::Range<u64> {
        self.address / PAGE * PAGE..(self.address + self.bytes).next_multiple_of(PAGE)
    }
}

/// A program that can be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Its segments in ascending order, on pages of their own.
    pub loads: Vec<Load>,
    /// What it spans, in bytes, a multiple of [`PAGE`].
    pub span: u64,
    /// What the address of its first page must be a multiple of.
    pub align: u64,
    /// Where it is entered, relative to its first page.
    pub entry: u64,
    /// Where its program headers are once loaded (`AT_PHDR`), relative to its first page.
    pub headers: u64,
    /// How many there are (`AT_PHNUM`).
    pub header_count: u64,
}

impl Image {
    /// Checks the program in `file`.
    ///
    /// # Errors
    /// [`ElfError`], with the reason.
    pub fn parse(file: &[u8]) -> Result<Self, ElfError> {
        let header = Header::parse(file).map_err(|_| ElfError::NotElf(no_header(file)))?;
        header.endian().map_err(|_| ElfError::NotElf(no_header(file)))?;
        if header.e_machine(E) != elf::EM_X86_64 {
            return Err(ElfError::Machine(header.e_machine(E).0));
        }
        if header.e_type(E) != elf::ET_DYN {
            return Err(ElfError::NotStaticPie("it has a fixed address, or is no executable"));
        }
        let segments = header
            .program_headers(E, file)
            .map_err(|_| ElfError::NotElf("its program headers are not in the file"))?;
        if segments.len() > SEGMENTS {
            return Err(ElfError::Program("has more than 64 segments"));
        }
        if segments.iter().any(|s| s.p_type(E) == elf::PT_INTERP) {
            return Err(ElfError::NotStaticPie("it names an interpreter"));
        }
        dynamic(segments, file)?;
        if segments.iter().any(|s| is_of_go(s, file)) {
            return Err(ElfError::Go);
        }
        let (loads, align) = loads(segments, file.len() as u64)?;
        let end = loads.last().map_or(0, |last| last.pages().end);
        if end > SPAN {
            return Err(ElfError::Program("spans more than 4 GiB"));
        }
        let image = Self {
            span: end,
            align,
            entry: header.e_entry(E),
            headers: address_of(&loads, header.e_phoff(E))
                .ok_or(ElfError::Program("does not load its own program headers"))?,
            header_count: segments.len() as u64,
            loads,
        };
        image.check(segments)?;
        Ok(image)
    }

    /// What of the program refers to its segments must lie in them.
    fn check(&self, segments: &[Segment]) -> Result<(), ElfError> {
        let within = |address: u64, bytes: u64| {
            let end = address.checked_add(bytes)?;
            self.loads.iter().find(|l| l.address <= address && end <= l.address + l.bytes)
        };
        if !within(self.entry, 1).is_some_and(|l| l.rights.execute) {
            return Err(ElfError::Program("is entered where it has no code"));
        }
        let table = self.header_count * size_of::<Segment>() as u64;
        if within(self.headers, table).is_none() {
            return Err(ElfError::Program("does not load its own program headers"));
        }
        for (index, s) in segments.iter().enumerate() {
            let bad = |why| Err(ElfError::Segment { index, why });
            match s.p_type(E) {
                elf::PT_GNU_STACK if s.p_flags(E).contains(elf::PF_X) => {
                    return bad("asks for an executable stack");
                }
                elf::PT_TLS if within(s.p_vaddr(E), s.p_filesz(E)).is_none() => {
                    return bad("of thread-local data is not loaded");
                }
                elf::PT_TLS if s.p_memsz(E) > ALIGN || s.p_align(E) > PAGE => {
                    return bad("of thread-local data is larger than 2 MiB or oddly aligned");
                }
                elf::PT_GNU_RELRO | elf::PT_DYNAMIC
                    if within(s.p_vaddr(E), s.p_memsz(E)).is_none() =>
                {
                    return bad("refers to what is not loaded");
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn no_header(file: &[u8]) -> &'static str {
    match file.get(..4) {
        Some(b"\x7fELF") if file.len() < size_of::<Header>() => "it ends within the header",
        Some(b"\x7fELF") => "it is of another word length or byte order",
        _ => "it does not begin with the ELF mark",
    }
}

/// A domain has a dynamic segment, to relocate itself by, and needs nobody else.
fn dynamic(segments: &[Segment], file: &[u8]) -> Result<(), ElfError> {
    let mut found = false;
    for (index, s) in segments.iter().enumerate() {
        let bad = |why| ElfError::Segment { index, why };
        let entries =
            s.dynamic(E, file).map_err(|_| bad("of dynamic entries is not in the file"))?;
        for entry in entries.unwrap_or_default() {
            match entry.d_tag(E) {
                elf::DT_NULL => break,
                elf::DT_NEEDED => {
                    return Err(ElfError::NotStaticPie("it needs shared libraries"));
                }
                elf::DT_TEXTREL => return Err(bad("has relocations in code")),
                elf::DT_FLAGS if entry.d_val(E) & elf::DF_TEXTREL.0 != 0 => {
                    return Err(bad("has relocations in code"));
                }
                _ => {}
            }
        }
        found |= entries.is_some();
    }
    if found { Ok(()) } else { Err(ElfError::NotStaticPie("it has no dynamic segment")) }
}

/// Whether a segment is a list of notes with the one of Go's linker.
fn is_of_go(segment: &Segment, file: &[u8]) -> bool {
    let Ok(Some(mut notes)) = segment.notes(E, file) else { return false };
    // What cannot be read is nobody's: nothing else looks at notes.
    while let Ok(Some(note)) = notes.next() {
        if note.name() == b"Go" {
            return true;
        }
    }
    false
}

/// The segments that are loaded, and the strictest alignment among them.
fn loads(segments: &[Segment], file_bytes: u64) -> Result<(Vec<Load>, u64), ElfError> {
    let (mut loads, mut align) = (Vec::<Load>::new(), PAGE);
    for (index, s) in segments.iter().enumerate() {
        if s.p_type(E) != elf::PT_LOAD {
            continue;
        }
        let bad = |why| Err(ElfError::Segment { index, why });
        let flags = s.p_flags(E);
        let load = Load {
            address: s.p_vaddr(E),
            offset: s.p_offset(E),
            file_bytes: s.p_filesz(E),
            bytes: s.p_memsz(E),
            rights: Rights {
                read: flags.contains(elf::PF_R),
                write: flags.contains(elf::PF_W),
                execute: flags.contains(elf::PF_X),
            },
        };
        if load.rights.write && load.rights.execute {
            return bad("is writable and executable");
        }
        if load.bytes == 0 || load.file_bytes > load.bytes {
            return bad("is empty, or longer in the file than in memory");
        }
        if load.offset.checked_add(load.file_bytes).is_none_or(|end| end > file_bytes) {
            return bad("reaches beyond the end of the file");
        }
        if load.address.checked_add(load.bytes).is_none_or(|end| end > SPAN) {
            return bad("reaches beyond 4 GiB");
        }
        let wanted = s.p_align(E).max(PAGE);
        if !wanted.is_power_of_two() || wanted > ALIGN {
            return bad("has an alignment that is no power of two, or above 2 MiB");
        }
        if load.address % PAGE != load.offset % PAGE {
            return bad("lies differently in a page of the file and of memory");
        }
        if loads.last().is_some_and(|before| before.pages().end > load.pages().start) {
            return bad("overlaps the one before it, or comes out of order");
        }
        align = align.max(wanted);
        loads.push(load);
    }
    match loads.first() {
        None => Err(ElfError::Program("has nothing to load")),
        Some(first) if first.pages().start != 0 => Err(ElfError::Program("does not begin at 0")),
        Some(_) => Ok((loads, align)),
    }
}

/// Where a byte of the file is loaded.
fn address_of(loads: &[Load], offset: u64) -> Option<u64> {
    let load = loads.iter().find(|l| l.offset <= offset && offset < l.offset + l.file_bytes)?;
    Some(load.address + (offset - load.offset))
}

/// The smallest program that is accepted: headers, code, data.
#[cfg(test)]
pub(crate) fn minimal_elf() -> Vec<u8> {
    let mut file = vec![0; 0x3000];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        file[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    let half = |n: u16| n.to_le_bytes();
    let word = |n: u64| n.to_le_bytes();
    put(&[half(elf::ET_DYN.0), half(elf::EM_X86_64.0)].concat());
    put(&1_u32.to_le_bytes());
    put(&[word(0x1010), word(64), word(0)].concat());
    put(&0_u32.to_le_bytes());
    put(&[half(64), half(56), half(5), half(64), half(0), half(0)].concat());
    let read = elf::PF_R.0;
    let segments = [
        (elf::PT_LOAD.0, read, [0, 0, 0x400, 0x400, PAGE]),
        (elf::PT_LOAD.0, read | elf::PF_X.0, [0x1000, 0x1000, 0x800, 0x800, PAGE]),
        (elf::PT_LOAD.0, read | elf::PF_W.0, [0x2000, 0x2000, 0x100, 0x5000, PAGE]),
        (elf::PT_DYNAMIC.0, read | elf::PF_W.0, [0x2000, 0x2000, 0x40, 0x40, 8]),
        (elf::PT_GNU_STACK.0, read | elf::PF_W.0, [0, 0, 0, 0, 16]),
    ];
    for (kind, flags, [offset, address, file_bytes, bytes, align]) in segments {
        put(&[kind.to_le_bytes(), flags.to_le_bytes()].concat());
        put(&[offset, address, address, file_bytes, bytes, align].map(word).concat());
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest program with `bytes` at `at`.
    fn with(at: usize, bytes: &[u8]) -> Result<Image, ElfError> {
        let mut file = minimal_elf();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        Image::parse(&file)
    }

    /// Where a field of a program header is: segment and offset in its header.
    fn field(segment: usize, offset: usize) -> usize {
        64 + 56 * segment + offset
    }

    fn segment(at: usize, value: u64) -> &'static str {
        match with(at, &value.to_le_bytes()) {
            Err(ElfError::Segment { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_smallest_program_is_taken_as_it_is() {
        let image = Image::parse(&minimal_elf()).unwrap();
        assert_eq!((image.span, image.align, image.entry), (0x7000, PAGE, 0x1010));
        assert_eq!((image.headers, image.header_count, image.loads.len()), (64, 5, 3));
        assert_eq!(image.loads[2].pages(), 0x2000..0x7000);
    }

    #[test]
    fn elf_of_another_machine_is_refused() {
        let not_elf = |file: &[u8], why: &str| {
            assert_eq!(Image::parse(file).unwrap_err().to_string(), why);
        };
        not_elf(b"#!/bin/sh\n", "this is no ELF program: it does not begin with the ELF mark");
        not_elf(&minimal_elf()[..40], "this is no ELF program: it ends within the header");
        not_elf(&[], "this is no ELF program: it does not begin with the ELF mark");
        let cut = &minimal_elf()[..200];
        not_elf(cut, "this is no ELF program: its program headers are not in the file");
        assert!(matches!(with(4, &[1]), Err(ElfError::NotElf(_))), "32 bits");
        assert!(matches!(with(5, &[2]), Err(ElfError::NotElf(_))), "the other byte order");
        let machine = with(18, &183_u16.to_le_bytes()).unwrap_err().to_string();
        assert!(machine.contains("ELF machine 183"), "{machine}");
    }

    #[test]
    fn elf_without_static_pie_is_refused_with_remedy() {
        let fixed = with(16, &2_u16.to_le_bytes()).unwrap_err();
        assert!(fixed.to_string().contains("+crt-static"), "{fixed}");
        let interpreter = with(field(4, 0), &3_u32.to_le_bytes());
        assert!(
            matches!(interpreter, Err(ElfError::NotStaticPie(why)) if why.contains("interpreter"))
        );
        let library = with(0x2000, &1_u64.to_le_bytes());
        assert!(matches!(library, Err(ElfError::NotStaticPie(why)) if why.contains("libraries")));
        let bare = with(field(3, 0), &4_u32.to_le_bytes());
        assert!(matches!(bare, Err(ElfError::NotStaticPie(why)) if why.contains("dynamic")));
    }

    #[test]
    fn a_program_in_go_is_refused_with_the_reason() {
        // In place of the fifth segment, which only forbids an executable stack: a note (elf(5)).
        let note = |name: &[u8; 4]| {
            let mut file = minimal_elf();
            let at = file.len() as u64;
            file.extend([3, 4, 4_u32].iter().flat_map(|word| word.to_le_bytes()));
            file.extend(name.iter().chain(b"abcd"));
            for (offset, value) in [(8, at), (16, 0), (32, 20), (40, 20), (48, 4)] {
                let field = field(4, offset);
                file[field..field + 8].copy_from_slice(&value.to_le_bytes());
            }
            file[field(4, 0)..field(4, 0) + 4].copy_from_slice(&elf::PT_NOTE.0.to_le_bytes());
            Image::parse(&file)
        };
        assert!(note(b"Gnu\0").is_ok());
        let why = note(b"Go\0\0").unwrap_err();
        assert_eq!(why, ElfError::Go);
        assert!(
            why.to_string().contains("SIGSYS") && why.to_string().contains("link: ring"),
            "{why}"
        );
    }

    #[test]
    fn segments_that_cannot_be_honoured_are_refused() {
        let flags = |segment: usize, flags: u32| with(field(segment, 4), &flags.to_le_bytes());
        let writable_code = flags(1, 7).unwrap_err();
        assert_eq!(writable_code.to_string(), "segment 1 is writable and executable");
        let stack = flags(4, 7).unwrap_err();
        assert_eq!(stack.to_string(), "segment 4 asks for an executable stack");
        // Offsets in a program header: 8 offset, 16 address, 32 in the file, 40 in memory, 48 align.
        assert!(segment(field(2, 8), 0x2080).contains("differently"));
        assert!(segment(field(2, 32), 0x1001).contains("beyond the end of the file"));
        assert!(segment(field(2, 32), 0x5001).contains("longer in the file"));
        assert!(segment(field(2, 40), u64::MAX).contains("beyond 4 GiB"));
        assert!(segment(field(2, 40), SPAN).contains("beyond 4 GiB"));
        assert!(segment(field(1, 40), 0x1001).contains("overlaps"));
        assert!(segment(field(2, 16), 0x1000).contains("overlaps"));
        assert!(segment(field(0, 40), 0).contains("empty"));
        assert!(segment(field(2, 48), 0x3000).contains("alignment"));
        assert!(segment(field(2, 48), 4 << 20).contains("alignment"));
        assert!(segment(field(3, 40), 0x10_0000).contains("not loaded"));
        assert!(with(field(0, 16), &0x4000_u64.to_le_bytes()).is_err());
        let entry = with(24, &0x2010_u64.to_le_bytes()).unwrap_err();
        assert_eq!(entry.to_string(), "the program is entered where it has no code");
        let relocations = with(0x2000, &22_u64.to_le_bytes()).unwrap_err();
        assert_eq!(relocations.to_string(), "segment 3 has relocations in code");
    }
}
