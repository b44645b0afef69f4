//! Objects that the builder's linker does not make: one of its own, changed in one place each.

use std::sync::LazyLock;

use object::elf;
use partywall_functions::builder::BuildError;
use partywall_functions::image::{CONSTANTS, DATA, DATA_BYTES, Forbidden, ImageError};
use partywall_functions::verify::{self, LINK, VerifyError};

use super::{BUILDER, File};

/// One with all that an honest object has: data, zeros, constants with addresses, a call of the runtime.
const TEXT: &str = "use core::sync::atomic::{AtomicU32, Ordering};\n\
    static COUNT: AtomicU32 = AtomicU32::new(7);\n\
    static ZERO: AtomicU32 = AtomicU32::new(0);\n\
    static TABLE: [fn(u32) -> u32; 2] = [u32::swap_bytes, u32::reverse_bits];\n\
    pub fn handle(r: Request<'_>) -> Reply {\n\
    let n = COUNT.fetch_add(1, Ordering::Relaxed) + ZERO.fetch_add(3, Ordering::Relaxed);\n\
    let f = TABLE[r.body().len() % 2];\n\
    Ok(vec![f(n) as u8, partywall_fn::random::number() as u8]) }";

static OBJECT: LazyLock<Vec<u8>> = LazyLock::new(|| object(true));
static COMPACT: LazyLock<Vec<u8>> = LazyLock::new(|| object(false));

fn object(apart: bool) -> Vec<u8> {
    let files = [File { path: "main.rs".into(), text: TEXT.into() }];
    BUILDER.object_for_tests(&files, apart).unwrap()
}

/// A field of a structure of the file: where it is there, and how long (elf(5)).
type Field = (usize, usize);

const E_CLASS: Field = (4, 1);
const E_DATA: Field = (5, 1);
const E_TYPE: Field = (16, 2);
const E_MACHINE: Field = (18, 2);
const E_ENTRY: Field = (24, 8);
const E_PHOFF: Field = (32, 8);
const E_PHENTSIZE: Field = (54, 2);
const E_PHNUM: Field = (56, 2);
const P_TYPE: Field = (0, 4);
const P_FLAGS: Field = (4, 4);
const P_OFFSET: Field = (8, 8);
const P_VADDR: Field = (16, 8);
const P_FILESZ: Field = (32, 8);
const P_MEMSZ: Field = (40, 8);
const D_TAG: Field = (0, 8);
const D_VAL: Field = (8, 8);
const R_OFFSET: Field = (0, 8);
const R_TYPE: Field = (8, 4);
const R_SYM: Field = (12, 4);
const R_ADDEND: Field = (16, 8);
const ST_NAME: Field = (0, 4);
const ST_SHNDX: Field = (6, 2);

/// The lengths of a program header, a dynamic entry, and of a relocation or a symbol.
const SEGMENT: usize = 56;
const ENTRY: usize = 16;
const ITEM: usize = 24;

/// An object that is being changed.
struct Object(Vec<u8>);

impl Object {
    fn get(&self, at: usize, (offset, length): Field) -> u64 {
        let bytes = &self.0[at + offset..at + offset + length];
        bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn set(&mut self, at: usize, (offset, length): Field, value: u64) {
        self.0[at + offset..at + offset + length].copy_from_slice(&value.to_le_bytes()[..length]);
    }

    fn header(&mut self, field: Field, value: u64) {
        self.set(0, field, value);
    }

    fn at_segment(&self, number: usize) -> usize {
        self.get(0, E_PHOFF) as usize + number * SEGMENT
    }

    fn segment(&mut self, number: usize, field: Field, value: u64) {
        self.set(self.at_segment(number), field, value);
    }

    fn segment_as(&mut self, number: usize, other: usize) {
        let (from, to) = (self.at_segment(other), self.at_segment(number));
        self.0.copy_within(from..from + SEGMENT, to);
    }

    fn at_entry(&self, tag: u64) -> usize {
        let begin = self.get(self.at_segment(4), P_OFFSET) as usize;
        let mut entries = (begin..).step_by(ENTRY).take(32);
        entries.find(|at| self.get(*at, D_TAG) == tag).expect("an entry of the linker's")
    }

    fn entry(&mut self, tag: DynTag, value: u64) {
        self.set(self.at_entry(tag as u64), D_VAL, value);
    }

    /// The entry that nobody needs becomes another one.
    fn add(&mut self, tag: u64, value: u64) {
        let at = self.at_entry(elf::DT_FLAGS_1.0 as u64);
        self.set(at, D_TAG, tag);
        self.set(at, D_VAL, value);
    }

    /// What an entry names, in the linker's own part.
    fn linked(&self, tag: DynTag) -> usize {
        let address = self.get(self.at_entry(tag as u64), D_VAL) - u64::from(LINK);
        (self.get(self.at_segment(3), P_OFFSET) + address) as usize
    }

    fn at_relocation(&self, number: usize) -> usize {
        self.linked(DynTag::Rela) + number * ITEM
    }

    fn relocation(&mut self, number: usize, field: Field, value: u64) {
        self.set(self.at_relocation(number), field, value);
    }

    /// The relocation of a call, which names a symbol.
    fn at_call(&self) -> usize {
        let count = self.get(self.at_entry(DynTag::RelaSz as u64), D_VAL) as usize / ITEM;
        let mut all = (0..count).map(|number| self.at_relocation(number));
        all.find(|at| self.get(*at, R_SYM) != 0).expect("a call")
    }

    fn call(&mut self, field: Field, value: u64) {
        self.set(self.at_call(), field, value);
    }

    fn symbol(&mut self, field: Field, value: u64) {
        let at = self.linked(DynTag::SymTab) + self.get(self.at_call(), R_SYM) as usize * ITEM;
        self.set(at, field, value);
    }
}

/// The dynamic entries of the linker that are changed.
#[derive(Clone, Copy)]
enum DynTag {
    SymTab = 6,
    Rela = 7,
    RelaSz = 8,
    RelaEnt = 9,
    SymEnt = 11,
    Flags = 30,
}

type Change = fn(&mut Object);

/// What is changed, and what the verifier says of it. Segments of an object: code, constants, data, the
/// linker's own, dynamic, stack.
const HOSTILE: &[(Change, &str)] = &[
    (|o| o.add(elf::DT_NEEDED.0 as u64, 1), "needs a shared library"),
    (|o| o.add(elf::DT_INIT.0 as u64, 0x100), "has constructors"),
    (|o| o.add(elf::DT_INIT_ARRAY.0 as u64, CONSTANTS.into()), "has constructors"),
    (|o| o.add(elf::DT_PREINIT_ARRAY.0 as u64, CONSTANTS.into()), "has constructors"),
    (|o| o.add(elf::DT_FINI.0 as u64, 0x100), "has destructors"),
    (|o| o.add(elf::DT_FINI_ARRAY.0 as u64, CONSTANTS.into()), "has destructors"),
    (|o| o.add(elf::DT_TEXTREL.0 as u64, 0), "has relocations in code"),
    (|o| o.entry(DynTag::Flags, 4), "has relocations in code"),
    (
        |o| o.add(elf::DT_REL.0 as u64, LINK.into()),
        "has the dynamic entry 0x11, which no function has",
    ),
    (|o| o.add(elf::DT_RPATH.0 as u64, 1), "has the dynamic entry 0xf, which no function has"),
    (|o| o.add(elf::DT_PLTREL.0 as u64, elf::DT_REL.0 as u64), "has relocations without addends"),
    (|o| o.entry(DynTag::RelaEnt, 16), "has relocations of another size"),
    (|o| o.entry(DynTag::SymEnt, 16), "has symbols of another size"),
    (|o| o.entry(DynTag::RelaSz, 25), "its relocations are cut off"),
    (|o| o.entry(DynTag::RelaSz, u64::MAX), "are not where its linker puts them"),
    (|o| o.entry(DynTag::Rela, CONSTANTS.into()), "are not where its linker puts"),
    (|o| o.segment(5, P_TYPE, elf::PT_TLS.0.into()), "segment 5 is thread-local data"),
    (|o| o.relocation(0, R_TYPE, elf::R_X86_64_TPOFF64.0.into()), "is thread-local data"),
    (|o| o.relocation(0, R_TYPE, elf::R_X86_64_DTPMOD64.0.into()), "is thread-local data"),
    (|o| o.relocation(0, R_TYPE, elf::R_X86_64_IRELATIVE.0.into()), "is an indirect function"),
    (|o| o.relocation(0, R_TYPE, elf::R_X86_64_COPY.0.into()), "which no function has"),
    (|o| o.relocation(0, R_TYPE, elf::R_X86_64_PC32.0.into()), "which no function has"),
    (|o| o.relocation(0, R_TYPE, 0xffff), "which no function has"),
    (|o| o.relocation(0, R_OFFSET, 0x10), "the relocation at 0x10 is in code"),
    (|o| o.relocation(0, R_OFFSET, u64::MAX), "is nowhere in an image"),
    (|o| o.relocation(0, R_OFFSET, LINK.into()), "a binding at 0x60000000, which is outside"),
    (|o| o.relocation(0, R_OFFSET, u64::from(DATA) - 4), "a binding at 0x3ffffffc"),
    (
        |o| {
            let at = o.get(o.at_relocation(1), R_OFFSET);
            o.relocation(0, R_OFFSET, at + 4)
        },
        "or out of order",
    ),
    (|o| o.relocation(0, R_ADDEND, -8_i64 as u64), "leads out of the image"),
    (|o| o.relocation(0, R_ADDEND, u64::from(DATA) + 4096), "an address at 0x40001000"),
    (|o| o.call(R_SYM, 0xffff), "names no symbol"),
    (|o| o.call(R_ADDEND, 8), "which no function has"),
    (|o| o.symbol(ST_SHNDX, 1), "which the object has itself"),
    (|o| o.symbol(ST_NAME, 0), "which is no call of the runtime; those are partywall_leave"),
    (|o| o.symbol(ST_NAME, u32::MAX.into()), "needs ``, which is no call"),
    (|o| o.segment(0, P_FLAGS, 7), "segment 0 is writable and executable"),
    (|o| o.segment(0, P_FLAGS, 4), "segment 0 is no code, but lies where code does"),
    (|o| o.segment(1, P_FLAGS, 5), "segment 1 is code, but lies where none does"),
    (|o| o.segment(2, P_FLAGS, 4), "segment 2 is read-only, but lies where data do"),
    (|o| o.segment(5, P_FLAGS, 7), "segment 5 asks for an executable stack"),
    (|o| o.segment(5, P_TYPE, elf::PT_INTERP.0.into()), "segment 5 names an interpreter"),
    (|o| o.segment(5, P_TYPE, 0x7000_0000), "segment 5 is of a kind that no function has"),
    (|o| o.segment(2, P_MEMSZ, u64::from(DATA_BYTES) + 1), "segment 2 is longer than its part"),
    (|o| o.segment(2, P_MEMSZ, u64::MAX), "segment 2 is longer than its part"),
    (|o| o.segment(2, P_MEMSZ, 1), "segment 2 is longer in the file than in memory"),
    (|o| o.segment(1, P_FILESZ, u64::MAX), "segment 1 is not in the file"),
    (|o| o.segment(1, P_OFFSET, u64::MAX), "segment 1 is not in the file"),
    (|o| o.segment(3, P_VADDR, u64::MAX), "segment 3 is longer than its part"),
    (|o| o.segment_as(5, 0), "segment 5 overlaps the one before it"),
    (|o| o.segment_as(2, 1), "segment 2 overlaps the one before it"),
    (|o| o.segment(4, P_TYPE, elf::PT_NULL.0.into()), "it has no dynamic segment"),
    (|o| o.header(E_PHNUM, 33), "it has more than 32 segments"),
    (|o| o.header(E_PHOFF, u64::MAX - 100), "its program headers are not in the file"),
    (|o| o.header(E_PHENTSIZE, 8), "its program headers are not in the file"),
    (|o| o.header(E_TYPE, elf::ET_EXEC.0.into()), "it is no shared object for x86-64"),
    (|o| o.header(E_MACHINE, elf::EM_AARCH64.0.into()), "it is no shared object for x86-64"),
    (|o| o.header(E_DATA, 2), "it is of another byte order"),
    (|o| o.header(E_CLASS, 1), "it is no ELF file"),
    (|o| o.header((0, 1), 0), "it is no ELF file"),
    (|o| o.header(E_ENTRY, CONSTANTS.into()), "an entry at 0x20000000, which is outside its code"),
    (|o| o.header(E_ENTRY, u64::MAX), "an entry at 0xffffffff"),
    (
        |o| {
            let at = o.get(o.at_segment(0), P_OFFSET) as usize;
            o.set(at, (0, 2), 0x050f)
        },
        "the bytes of SYSCALL at 0x0",
    ),
];

/// The same of an object whose constants are behind its code.
const HOSTILE_COMPACT: &[(Change, &str)] = &[
    (|o| o.segment(1, P_VADDR, 8), "segment 1 overlaps the one before it"),
    (|o| o.segment(1, P_MEMSZ, 4096), "segment 1 is longer than its part"),
    (|o| o.segment(1, P_FLAGS, 6), "segment 1 is no code, but lies where code does"),
    (|o| o.segment(1, P_FLAGS, 7), "segment 1 is writable and executable"),
    (|o| o.segment_as(5, 1), "segment 5 overlaps the one before it"),
    (
        |o| {
            let end = o.get(o.at_segment(1), P_VADDR) + o.get(o.at_segment(1), P_MEMSZ);
            o.segment_as(2, 0);
            o.segment(2, P_VADDR, end);
        },
        "segment 2 is code, but lies where none does",
    ),
    (|o| o.segment(1, P_MEMSZ, 1200), "bytes of a compact image; the most is 4080"),
    (|o| o.relocation(0, R_OFFSET, 0x10), "the relocation at 0x10 is in code"),
    (|o| o.relocation(0, R_OFFSET, 4080), "a binding at 0xff0, which is outside"),
    (
        |o| {
            let at = o.get(o.at_segment(1), P_OFFSET) as usize;
            o.set(at, (0, 2), 0x050f)
        },
        "the bytes of SYSCALL at",
    ),
    (
        |o| {
            let at = o.get(o.at_segment(2), P_OFFSET) as usize;
            o.set(at, (0, 2), 0x340f)
        },
        "the bytes of SYSENTER at",
    ),
];

#[test]
fn row_55_objects_that_no_linker_of_ours_makes_are_refused() {
    assert!(!verify::image(&OBJECT).unwrap().compact);
    assert!(verify::image(&COMPACT).unwrap().compact);
    let all = HOSTILE.iter().map(|hostile| (&OBJECT, hostile));
    let all = all.chain(HOSTILE_COMPACT.iter().map(|hostile| (&COMPACT, hostile)));
    let mut faults = Vec::new();
    for (number, (object, (change, text))) in all.enumerate() {
        let mut object = Object(object.to_vec());
        change(&mut object);
        match verify::image(&object.0) {
            Err(why) if why.to_string().contains(text) => {}
            other => faults.push(format!("{number}: {text}: {other:?}")),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A file that ends too early is refused wherever that is, and says why.
#[test]
fn row_55_objects_that_are_cut_off_are_refused() {
    let object = Object(OBJECT.clone());
    let ends = (0..4).map(|number| {
        let at = object.at_segment(number);
        (object.get(at, P_OFFSET) + object.get(at, P_FILESZ)) as usize
    });
    let needed = ends.max().unwrap();
    for length in (0..needed).filter(|n| *n < 1000 || n % 61 == 0 || needed - n < 300) {
        let why = verify::image(&OBJECT[..length]).unwrap_err().to_string();
        let known = ["it is no ELF file", "are not in the file", "is not in the file"];
        assert!(known.iter().any(|known| why.contains(known)), "{length}: {why}");
    }
    // Sections are for people.
    let whole = verify::image(&OBJECT).unwrap();
    assert_eq!(verify::image(&OBJECT[..needed]), Ok(whole));
}

/// The objects from which the fuzz targets begin have the form of the builder's.
#[test]
fn the_objects_of_the_fuzz_targets_are_like_the_builders() {
    const SEEDS: [&[u8]; 2] =
        [include_bytes!("../../src/fuzz/object.so"), include_bytes!("../../src/fuzz/compact.so")];
    let form = |file: &[u8]| -> Vec<[u64; 2]> {
        let object = Object(file.to_vec());
        let segments = (0..object.get(0, E_PHNUM) as usize).map(|number| object.at_segment(number));
        let entries = object.at_entry(DynTag::Flags as u64)..=object.at_entry(0);
        segments
            .map(|at| [P_TYPE, P_FLAGS].map(|field| object.get(at, field)))
            .chain(entries.step_by(ENTRY).map(|at| [object.get(at, D_TAG), 0]))
            .collect()
    };
    assert_eq!(SEEDS.map(form), [form(&OBJECT), form(&COMPACT)]);
}

/// Bytes of a system call in a constant, which are there in each layout: the last refusal says where.
#[test]
fn a_constant_that_no_layout_changes_is_named_with_its_place() {
    let text = "#[inline(never)] fn mixed(n: u32) -> u32 { core::hint::black_box(n) ^ 0x05_0f_05_0f }\n\
                pub fn handle(r: Request<'_>) -> Reply {\n\
                Ok(mixed(r.body().len() as u32).to_le_bytes().to_vec()) }";
    let files = [File { path: "main.rs".into(), text: text.into() }];
    let why = BUILDER.build(&files).unwrap_err();
    let BuildError::Forbidden(VerifyError::Image { why: refused, symbol }) = &why else {
        panic!("{why}")
    };
    let ImageError::Forbidden { instruction: Forbidden::Syscall, offset } = *refused else {
        panic!("{why}")
    };
    assert_eq!(symbol.as_deref(), Some("function::mixed"));
    let said = why.to_string();
    let place = format!(" at {offset:#x}, in `function::mixed`; 8 layouts have such bytes");
    assert!(said.contains(&place), "{said}");
    // The place is where the bytes are: so it is in the first layout, which a test can have.
    let object = BUILDER.object_for_tests(&files, false).unwrap();
    let Err(VerifyError::Image { why: ImageError::Forbidden { offset, .. }, symbol }) =
        verify::image(&object)
    else {
        panic!("it passes")
    };
    assert_eq!(symbol.as_deref(), Some("function::mixed"));
    let code = verify::unchecked_for_tests(&object).unwrap().code;
    assert_eq!(code[offset as usize..][..2], [0x0f, 0x05]);
}
