//! The image of a function: what a worker maps, and nothing else.
//!
//! ```text
//! addresses, from the image's begin       bytes of the packed form
//! 0           code        r-x             Header, then code, constants, data, bindings
//! CONSTANTS   constants   r--
//! DATA        data, zeros rw-
//! ```
//!
//! The parts are at these distances from each other wherever the image is, so that code finds constants and
//! data relative to itself. A binding is a word of constants or data that holds an address: the store writes
//! it once it knows the image's place.
//!
//! A *compact* image is on one page: its constants, and data as the function finds them, are behind its code.
//! They are executable then, and looked through as code is: by [`Image::check`] with all that does not depend
//! on the place, and around its bindings by the store, which takes another place where bytes are forbidden.
//!
//! [`Image::check`] is the second gate after the compiler, and the only way to an image: packed bytes are
//! checked as an object is, whoever signed them. Code has no bytes of a system call, nor of an instruction
//! that changes protection keys or segment bases, at any offset: where an instruction begins is the
//! processor's choice.

use std::fmt;

/// Where constants are, from the image's begin, in bytes.
pub const CONSTANTS: u32 = 512 << 20;
/// Where data are, from the image's begin, in bytes.
pub const DATA: u32 = 1 << 30;
/// The most bytes of code, and of constants.
pub const PART_BYTES: u32 = 4 << 20;
/// The most bytes of data and zeros together.
pub const DATA_BYTES: u32 = 256 << 10;
/// The most bindings.
pub const BINDINGS: usize = 65_536;
/// Code ends so many bytes before the end of its last page, so that no instruction goes on in what is mapped
/// beside it. The rest are breakpoints.
pub const GUARD: u32 = 16;
/// The most bytes of a compact image: a page without the guard.
pub const COMPACT_BYTES: u32 = 4096 - GUARD;
/// What the data of an image are a multiple of, from where its constants begin, in bytes.
const GRAIN: usize = 16;

/// What the packed form begins with.
const MAGIC: [u8; 8] = *b"PWFN\x02\0\0\0";

/// What the runtime does for functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Call {
    /// Ends the function.
    Leave,
    /// Calls a service.
    Service,
    /// Fills memory with random bytes.
    Random,
}

impl Call {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Leave, Self::Service, Self::Random];

    /// Its symbol in an object.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Leave => "partywall_leave",
            Self::Service => "partywall_call",
            Self::Random => "partywall_random",
        }
    }
}

/// What a binding's word holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// An address of the image, from its place.
    Here(u32),
    /// The address of a call of the runtime.
    Call(Call),
}

/// A word that holds an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// Where the word is, from the image's begin; in constants or data.
    pub word: u32,
    /// What it holds.
    pub target: Target,
}

/// The image of a function.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Image {
    /// The code.
    pub code: Vec<u8>,
    /// The constants, with zeros where bindings are.
    pub constants: Vec<u8>,
    /// The data that the function may change, as it finds them.
    pub data: Vec<u8>,
    /// How many zeros follow the data.
    pub zeros: u32,
    /// Where the code is entered.
    pub entry: u32,
    /// The words that hold addresses, in ascending order.
    pub bindings: Vec<Binding>,
    /// Constants are behind the code, and all of it is on one page.
    pub compact: bool,
}

/// The bytes of an image at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// What is executable: the code, and what is behind it in a compact image.
    pub code: Vec<u8>,
    /// What is only read; nothing of a compact image.
    pub constants: Vec<u8>,
}

/// An instruction that no function has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forbidden {
    /// `0F 05`.
    Syscall,
    /// `0F 34`.
    Sysenter,
    /// `CD 80`.
    Int80,
    /// `0F 01 EF`.
    Wrpkru,
    /// `0F AE /5` with memory.
    Xrstor,
    /// `0F AE /2` and `/3` with a register.
    WriteBase,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Syscall => "SYSCALL",
            Self::Sysenter => "SYSENTER",
            Self::Int80 => "INT 0x80",
            Self::Wrpkru => "WRPKRU",
            Self::Xrstor => "XRSTOR",
            Self::WriteBase => "WRFSBASE or WRGSBASE",
        })
    }
}

/// Why bytes are no image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The packed form is not one.
    #[error("this is no packed image: {0}")]
    Packed(&'static str),
    /// A part is too long.
    #[error("the image has {bytes} bytes of {part}; the most is {most}")]
    Size {
        /// Which part.
        part: &'static str,
        /// What it has.
        bytes: u64,
        /// What it may have.
        most: u64,
    },
    /// A binding, or the entry, is somewhere else.
    #[error("the image has {what} at {address:#x}, which is outside its {part}")]
    Outside {
        /// What.
        what: &'static str,
        /// Where, from the image's begin.
        address: u32,
        /// Where it would have to be.
        part: &'static str,
    },
    /// Bytes of an instruction that no function has.
    #[error("the code has the bytes of {instruction} at {offset:#x}")]
    Forbidden {
        /// Which.
        instruction: Forbidden,
        /// Where, from the image's begin.
        offset: u32,
    },
}

/// The first forbidden instruction in `code`, at any offset.
#[inline]
pub fn forbidden(code: &[u8]) -> Option<(usize, Forbidden)> {
    code.windows(2).enumerate().find_map(|(at, pair)| {
        let third = code.get(at + 2).copied();
        let found = match (pair[0], pair[1]) {
            (0x0f, 0x05) => Forbidden::Syscall,
            (0x0f, 0x34) => Forbidden::Sysenter,
            (0xcd, 0x80) => Forbidden::Int80,
            (0x0f, 0x01) if third == Some(0xef) => Forbidden::Wrpkru,
            (0x0f, 0xae) => match third.map(|m| (m >> 6, m >> 3 & 7))? {
                (0..=2, 5) => Forbidden::Xrstor,
                (3, 2 | 3) => Forbidden::WriteBase,
                _ => return None,
            },
            _ => return None,
        };
        Some((at, found))
    })
}

impl Image {
    /// Checks that all of it is as a worker needs it.
    ///
    /// # Errors
    /// [`ImageError`] with the first thing that is not.
    pub fn check(&self) -> Result<(), ImageError> {
        let size = |part, bytes: usize, most: u32| {
            let (bytes, most) = (bytes as u64, u64::from(most));
            if bytes > most { Err(ImageError::Size { part, bytes, most }) } else { Ok(()) }
        };
        size("code", self.code.len(), PART_BYTES - GUARD)?;
        size("constants", self.constants.len(), PART_BYTES)?;
        size("data", self.data.len().saturating_add(self.zeros as usize), DATA_BYTES)?;
        size("bindings", self.bindings.len(), BINDINGS as u32)?;
        if self.compact {
            size("a compact image", self.found_at() as usize + self.data.len(), COMPACT_BYTES)?;
        }
        if self.entry as usize >= self.code.len() {
            let (what, part) = ("an entry", "code");
            return Err(ImageError::Outside { what, address: self.entry, part });
        }
        let mut free = 0;
        for Binding { word, target } in &self.bindings {
            let fits = |begin: u32, bytes: usize| {
                *word >= begin && (*word - begin) as usize + 8 <= bytes && *word >= free
            };
            if !fits(self.constants_at(), self.constants.len()) && !fits(DATA, self.data.len()) {
                let (what, part) = ("a binding", "constants and data, or out of order");
                return Err(ImageError::Outside { what, address: *word, part });
            }
            free = *word + 8;
            if let Target::Here(address) = target
                && !self.has(*address)
            {
                let (what, part) = ("an address", "parts");
                return Err(ImageError::Outside { what, address: *address, part });
            }
        }
        // Places are pages: what does not depend on them is the same here.
        let found = match self.compact {
            true => forbidden(&self.bound(0, 0).code),
            false => forbidden(&self.code),
        };
        match found {
            Some((offset, instruction)) => {
                Err(ImageError::Forbidden { instruction, offset: offset as u32 })
            }
            None => Ok(()),
        }
    }

    /// Whether an address is of the image; the one past a part's last byte is, too.
    fn has(&self, address: u32) -> bool {
        let within =
            |begin: u32, bytes: usize| address >= begin && (address - begin) as usize <= bytes;
        within(0, self.code.len())
            || within(self.constants_at(), self.constants.len())
            || within(DATA, self.data.len() + self.zeros as usize)
    }

    /// Where its constants are, from its begin.
    pub fn constants_at(&self) -> u32 {
        if self.compact { self.code.len() as u32 } else { CONSTANTS }
    }

    /// Where its data are as the function finds them, from its begin.
    pub fn found_at(&self) -> u32 {
        let constants = self.constants_at() as usize + self.constants.len();
        constants.next_multiple_of(GRAIN) as u32
    }

    /// Its bytes where it begins at `base` and the runtime's calls at `calls`. The image is checked.
    pub fn bound(&self, base: u64, calls: u64) -> Bound {
        let (mut code, mut constants) = (self.code.clone(), Vec::new());
        let behind = if self.compact { &mut code } else { &mut constants };
        behind.extend_from_slice(&self.constants);
        let begin = if self.compact { 0 } else { CONSTANTS };
        behind.resize((self.found_at() - begin) as usize, 0);
        behind.extend_from_slice(&self.data);
        for Binding { word, target } in &self.bindings {
            let address = match target {
                Target::Here(address) => base + u64::from(*address),
                Target::Call(call) => calls + 16 * *call as u64,
            };
            let at = (self.in_file(*word) - begin) as usize;
            behind[at..at + 8].copy_from_slice(&address.to_le_bytes());
        }
        Bound { code, constants }
    }

    /// Where a binding's word is in the image's memory, from the image's begin.
    fn in_file(&self, word: u32) -> u32 {
        word.checked_sub(DATA).map_or(word, |at| self.found_at() + at)
    }

    /// Whether the bytes around the bindings of a compact image have a forbidden instruction at this place.
    pub fn is_forbidden_here(&self, bound: &Bound) -> bool {
        self.compact
            && self.bindings.iter().any(|binding| {
                let at = self.in_file(binding.word) as usize;
                let end = bound.code.len().min(at + 10);
                forbidden(&bound.code[at.saturating_sub(2)..end]).is_some()
            })
    }

    /// Whether the image has a binding to this call.
    pub fn calls(&self, call: Call) -> bool {
        self.bindings.iter().any(|binding| binding.target == Target::Call(call))
    }

    /// The packed form.
    pub fn pack(&self) -> Vec<u8> {
        let lengths = [
            self.code.len() as u32,
            self.constants.len() as u32,
            self.data.len() as u32,
            self.zeros,
            self.entry,
            self.bindings.len() as u32,
            self.compact.into(),
        ];
        let mut packed = MAGIC.to_vec();
        packed.extend(lengths.iter().flat_map(|length| length.to_le_bytes()));
        for part in [&self.code, &self.constants, &self.data] {
            packed.extend_from_slice(part);
        }
        for Binding { word, target } in &self.bindings {
            let target = match target {
                Target::Here(address) => *address,
                Target::Call(call) => CALLS + *call as u32,
            };
            packed.extend([*word, target].iter().flat_map(|word| word.to_le_bytes()));
        }
        packed
    }

    /// An image of its packed form, checked.
    ///
    /// # Errors
    /// [`ImageError`] with the first thing that is wrong.
    pub fn unpack(packed: &[u8]) -> Result<Self, ImageError> {
        let image = Self::unpack_checked(packed)?;
        image.check()?;
        Ok(image)
    }

    /// The same of one that was checked before it was packed.
    pub(crate) fn unpack_checked(packed: &[u8]) -> Result<Self, ImageError> {
        let mut rest = packed.strip_prefix(&MAGIC).ok_or(ImageError::Packed("it has no mark"))?;
        let mut lengths = [0; 7];
        for length in &mut lengths {
            *length = word(&mut rest)?;
        }
        let [code, constants, data, zeros, entry, bindings, compact] = lengths;
        if compact > 1 {
            return Err(ImageError::Packed("it is neither compact nor not"));
        }
        let mut part = |name, bytes: u32, most: u32| {
            if bytes > most {
                let (bytes, most) = (bytes.into(), most.into());
                return Err(ImageError::Size { part: name, bytes, most });
            }
            let (part, after) = rest.split_at_checked(bytes as usize).ok_or(CUT)?;
            rest = after;
            Ok(part.to_vec())
        };
        let code = part("code", code, PART_BYTES)?;
        let constants = part("constants", constants, PART_BYTES)?;
        let data = part("data", data, DATA_BYTES)?;
        let is_whole = rest.len() as u64 == u64::from(bindings) * 8;
        if !is_whole {
            return Err(CUT);
        }
        let mut bound = Vec::new();
        while !rest.is_empty() {
            let (word, target) = (word(&mut rest)?, word(&mut rest)?);
            let target = match target.checked_sub(CALLS) {
                None => Target::Here(target),
                Some(call) => {
                    let call = Call::ALL.get(call as usize);
                    Target::Call(*call.ok_or(ImageError::Packed("it names an unknown call"))?)
                }
            };
            bound.push(Binding { word, target });
        }
        let compact = compact == 1;
        Ok(Self { code, constants, data, zeros, entry, bindings: bound, compact })
    }
}

/// Targets from here on are calls.
const CALLS: u32 = 0xffff_ff00;

const CUT: ImageError = ImageError::Packed("its length is not what it says");

fn word(rest: &mut &[u8]) -> Result<u32, ImageError> {
    let (word, after) = rest.split_first_chunk().ok_or(CUT)?;
    *rest = after;
    Ok(u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn small() -> Image {
        Image {
            code: vec![0xc3; 40],
            constants: vec![0; 32],
            data: vec![1; 16],
            zeros: 100,
            entry: 8,
            bindings: vec![
                Binding { word: CONSTANTS, target: Target::Here(8) },
                Binding { word: CONSTANTS + 8, target: Target::Call(Call::Leave) },
                Binding { word: DATA + 8, target: Target::Here(DATA + 116) },
            ],
            compact: false,
        }
    }

    /// The same on one page.
    fn compact() -> Image {
        let mut image = Image { compact: true, ..small() };
        for binding in &mut image.bindings[..2] {
            binding.word = binding.word - CONSTANTS + 40;
        }
        image
    }

    #[test]
    fn an_image_is_what_it_was_when_it_is_unpacked() {
        for image in [small(), compact()] {
            assert_eq!(Image::unpack(&image.pack()), Ok(image.clone()));
            assert!(image.calls(Call::Leave) && !image.calls(Call::Service));
        }
        let mut packed = small().pack();
        packed[8 + 24] = 2;
        let why = Image::unpack(&packed).unwrap_err().to_string();
        assert!(why.contains("neither compact nor not"), "{why}");
    }

    #[test]
    fn an_image_is_bound_to_its_place() {
        let (base, calls) = (0x1234_5600_0000, 0x4000_0000_7000);
        let words = |bytes: &[u8], at: &[usize]| -> Vec<u64> {
            let word = |at: &usize| u64::from_le_bytes(bytes[*at..*at + 8].try_into().unwrap());
            at.iter().map(word).collect()
        };
        let apart = small().bound(base, calls);
        let wanted = [base + 8, calls, base + u64::from(DATA) + 116];
        assert_eq!(apart.code, [0xc3; 40]);
        assert_eq!(apart.constants.len(), 32 + 16);
        assert_eq!(words(&apart.constants, &[0, 8, 40]), wanted);
        let together = compact().bound(base, calls);
        // Data begin at a multiple of 16.
        assert_eq!((together.code.len(), together.constants.len()), (80 + 16, 0));
        assert_eq!(words(&together.code, &[40, 48, 88]), wanted);
        assert_eq!((compact().constants_at(), compact().found_at()), (40, 80));
    }

    /// What is behind the code of a compact image is looked through as code is.
    #[test]
    fn a_compact_image_has_no_forbidden_bytes_in_constants_or_data() {
        let refused = |change: &dyn Fn(&mut Image)| {
            let mut image = compact();
            change(&mut image);
            image.check().unwrap_err().to_string()
        };
        assert_eq!(compact().check(), Ok(()));
        for (change, at) in [
            (
                &(|i: &mut Image| i.constants[20..22].copy_from_slice(&[0x0f, 0x05]))
                    as &dyn Fn(&mut Image),
                "0x3c",
            ),
            (&|i| i.data[3..5].copy_from_slice(&[0x0f, 0x34]), "0x53"),
            // The last byte of the code and the first of the address behind it.
            (
                &|i| {
                    i.code[39] = 0x0f;
                    i.bindings[0].target = Target::Here(5);
                },
                "0x27",
            ),
            // A word's last byte and the constant behind it.
            (
                &|i| {
                    i.constants[15] = 0x0f;
                    i.bindings.remove(1);
                    i.constants[16] = 0x05;
                },
                "0x37",
            ),
        ] {
            let why = refused(change);
            assert!(why.ends_with(&format!("at {at}")), "{why}");
        }
        let why = refused(&|i| i.code = vec![0xc3; 4096]);
        assert!(why.contains("bytes of a compact image; the most is 4080"), "{why}");
        // Of the same image with constants apart, none of it is executable.
        let mut apart = small();
        apart.constants[20..22].copy_from_slice(&[0x0f, 0x05]);
        assert_eq!(apart.check(), Ok(()));
    }

    /// An address that makes a forbidden instruction does so at one place and not at another.
    #[test]
    fn forbidden_bytes_of_an_address_are_found_at_their_place() {
        let image = compact();
        let is_bad = |base| image.is_forbidden_here(&image.bound(base, 0x7000));
        let base = 0x1000_0000_0000;
        for bad in [0x05_0f00_0000, 0x340f_0000, 0x0080_cd00_0000] {
            assert!(is_bad(base + bad), "{bad:x}");
        }
        assert!(!is_bad(base) && !is_bad(base + 0x1000));
        let whole = image.bound(base + 0x340f_0000, 0x7000);
        assert_eq!(forbidden(&whole.code), Some((42, Forbidden::Sysenter)));
        assert!(!small().is_forbidden_here(&whole), "constants are not executable");
    }

    #[test]
    fn forbidden_bytes_are_found_at_every_offset() {
        for (bytes, found) in [
            (&[0x0f, 0x05][..], Forbidden::Syscall),
            (&[0x0f, 0x34], Forbidden::Sysenter),
            (&[0xcd, 0x80], Forbidden::Int80),
            (&[0x0f, 0x01, 0xef], Forbidden::Wrpkru),
            (&[0x0f, 0xae, 0x28], Forbidden::Xrstor),
            (&[0x0f, 0xae, 0x6c], Forbidden::Xrstor),
            (&[0x0f, 0xae, 0xaf], Forbidden::Xrstor),
            (&[0x0f, 0xae, 0xd0], Forbidden::WriteBase),
            (&[0x0f, 0xae, 0xdf], Forbidden::WriteBase),
        ] {
            for at in 0..=40 - bytes.len() {
                let mut image = small();
                image.code[at..at + bytes.len()].copy_from_slice(bytes);
                let refused = ImageError::Forbidden { instruction: found, offset: at as u32 };
                assert_eq!(image.check(), Err(refused.clone()), "{bytes:x?} at {at}");
                assert_eq!(Image::unpack(&image.pack()), Err(refused));
            }
        }
        // Two that overlap, and one behind another.
        assert_eq!(forbidden(&[0x0f, 0x0f, 0x05]), Some((1, Forbidden::Syscall)));
        // LFENCE, LDMXCSR, FXRSTOR, CLFLUSH, XSAVE; XGETBV; INT3.
        for honest in [
            [0x0f, 0xae, 0xe8],
            [0x0f, 0xae, 0x10],
            [0x0f, 0xae, 0x08],
            [0x0f, 0xae, 0x38],
            [0x0f, 0xae, 0x20],
            [0x0f, 0x01, 0xd0],
            [0xcc, 0xcd, 0x81],
        ] {
            assert_eq!(forbidden(&honest), None, "{honest:x?}");
        }
    }

    #[test]
    fn images_that_reach_outside_themselves_are_refused() {
        let refused = |change: &dyn Fn(&mut Image)| {
            let mut image = small();
            change(&mut image);
            let why = image.check().unwrap_err();
            assert_eq!(Image::unpack(&image.pack()).unwrap_err(), why);
            why.to_string()
        };
        for (change, text) in [
            (&(|i: &mut Image| i.entry = 40) as &dyn Fn(&mut Image), "an entry at 0x28"),
            (&|i| i.bindings[0].word = CONSTANTS + 25, "a binding at 0x20000019"),
            (&|i| i.bindings[0].word = 0, "a binding at 0x0"),
            (&|i| i.bindings[2].word = DATA + 9, "a binding at 0x40000009"),
            (&|i| i.bindings[1].word = CONSTANTS + 7, "or out of order"),
            (&|i| i.bindings[0].target = Target::Here(41), "an address at 0x29"),
            (&|i| i.bindings[0].target = Target::Here(DATA + 117), "an address at 0x40000075"),
            (&|i| i.zeros = DATA_BYTES, "262160 bytes of data; the most is 262144"),
            (&|i| i.zeros = u32::MAX, "bytes of data"),
            (&|i| i.code = vec![0; PART_BYTES as usize - 15], "bytes of code"),
            (&|i| i.constants = vec![0; PART_BYTES as usize + 1], "bytes of constants"),
        ] {
            let why = refused(change);
            assert!(why.contains(text), "{why}");
        }
    }

    #[test]
    fn packed_bytes_that_are_cut_or_changed_are_no_image_or_a_checked_one() {
        let packed = small().pack();
        for length in 0..packed.len() {
            assert!(Image::unpack(&packed[..length]).is_err(), "{length}");
        }
        assert!(Image::unpack(&[&packed[..], &[0]].concat()).is_err());
        for at in 0..packed.len() * 8 {
            let mut changed = packed.clone();
            changed[at / 8] ^= 1 << (at % 8);
            if let Ok(image) = Image::unpack(&changed) {
                assert_eq!(image.pack(), changed);
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_unpacked_or_refused(bytes: Vec<u8>) {
            let _any = Image::unpack(&[&MAGIC[..], &bytes].concat());
        }
    }
}
