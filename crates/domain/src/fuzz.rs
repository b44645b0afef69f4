//! Bodies of the fuzz targets. Each returns whether the bytes were accepted.

use crate::elf::{Image, PAGE, SPAN};

/// Program files: what is accepted can be loaded, whatever else the file says.
///
/// # Panics
/// When it cannot.
pub fn elf(file: &[u8]) -> bool {
    let Ok(image) = Image::parse(file) else { return false };
    let mut end = 0;
    for load in &image.loads {
        let pages = load.pages();
        assert!(end <= pages.start && pages.start < pages.end && pages.end <= image.span);
        assert!(!(load.rights.write && load.rights.execute));
        assert!(load.file_bytes <= load.bytes);
        assert!(load.offset + load.file_bytes <= file.len() as u64);
        assert_eq!(load.offset % PAGE, load.address % PAGE);
        end = pages.end;
    }
    assert!(image.span <= SPAN && image.align.is_power_of_two() && image.align >= PAGE);
    assert!(image.entry < image.span && image.headers < image.span);
    true
}

/// The smallest program that is accepted: headers, code, data.
pub fn smallest() -> Vec<u8> {
    use object::elf;
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

    #[test]
    fn fuzz_elf() {
        let seed = smallest();
        assert!(elf(&seed));
        let mut state = 88172645463325252_u64;
        let mut accepted = [0, 0];
        // Emulation is slow, and this would be the same there.
        let emulated = std::env::var("PARTYWALL_VM").as_deref() == Ok("1");
        let trials = if emulated { 20_000 } else { 200_000 };
        for _ in 0..trials {
            let mut file = seed.clone();
            let mut random = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as usize
            };
            for _ in 0..random() % 3 + 1 {
                let value = [0, 1, 0x7f, 0x80, 0xff, random() as u8][random() % 6];
                // The headers, and sometimes the dynamic entries.
                let at = if random() % 4 == 0 { 0x2000 + random() % 64 } else { random() % 344 };
                file[at] = value;
            }
            if random() % 16 == 0 {
                file.truncate(random() % file.len());
            }
            accepted[usize::from(elf(&file))] += 1;
        }
        assert!(accepted.iter().all(|n| *n > trials / 20), "{accepted:?}");
    }
}
