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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::minimal_elf;

    #[test]
    fn fuzz_elf() {
        let seed = minimal_elf();
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
