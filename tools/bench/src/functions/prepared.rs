//! What a run needs, made once: programs of processes, images of functions, and a compiled module.
//!
//! | file | what it is | made by |
//! |---|---|---|
//! | `published` | a process of ATC'18's kind: std, with shared libraries | rustc |
//! | `waiting` | a static process without any library | rustc with its own linker |
//! | `*.image` | functions | the runtime's builder |
//! | `wasm`, `wasm-memory` | a compiled module | wasmtime |
//!
//! Copies of a function are its image with another number in its constants, and are checked as any image.

use std::path::Path;
use std::process::Command;

use partywall_functions::builder::{Builder, ROOT, Toolchain};
use partywall_functions::image::Image;
use partywall_functions::sandbox::Limits;
use partywall_functions::source::File;

use super::program;
use crate::error::Result;

const STAMP: &str = include_str!("images/stamp.rs");
const FIRST: &str = include_str!("images/first.rs");
const ENDLESS: &str = include_str!("images/endless.rs");
const HASH: &str = include_str!("images/hash.rs");
const SHA512: &str = include_str!("sha512.rs");
const PUBLISHED: &str = include_str!("programs/published.rs");
const WAITING: &str = include_str!("programs/waiting.rs");

/// The number of function 0 in `images/stamp.rs`.
const NUMBER: u64 = 0x5a17_c040_4040_4040;

/// Makes all of it.
pub fn prepare(files: &Path) -> Result<()> {
    let rustc = |name: &str, text: &str, more: &[&str]| -> Result<()> {
        let source = files.join(format!("{name}.rs"));
        std::fs::write(&source, text)?;
        let made = Command::new("rustc")
            .args(["--edition", "2024", "-O", "-C", "panic=abort", "-C", "strip=symbols"])
            .args(more)
            .arg("-o")
            .arg(files.join(name))
            .arg(&source)
            .output()
            .map_err(|error| format!("rustc, which makes programs of processes: {error}"))?;
        match made.status.success() {
            true => Ok(()),
            false => {
                Err(format!("rustc, {name}: {}", String::from_utf8_lossy(&made.stderr)).into())
            }
        }
    };
    rustc("published", PUBLISHED, &[])?;
    let alone =
        ["-C", "linker=rust-lld", "-C", "linker-flavor=ld.lld", "-C", "relocation-model=static"];
    rustc("waiting", WAITING, &alone)?;
    let toolchain = Toolchain::of(Path::new("rustc"))?;
    let builder = Builder::new(toolchain, program("sandbox", &[])?, Limits::default());
    for (name, text) in [("stamp", STAMP), ("first", FIRST), ("endless", ENDLESS), ("hash", HASH)] {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let mut sources = vec![file(ROOT, text)];
        if name == "hash" {
            sources.push(file("sha512.rs", SHA512));
        }
        let built = builder.build(&sources).map_err(|error| format!("function {name}: {error}"))?;
        std::fs::write(files.join(format!("{name}.image")), built.image.pack())?;
    }
    #[cfg(feature = "opponents")]
    for (name, has_memory) in [("wasm", false), ("wasm-memory", true)] {
        std::fs::write(files.join(name), super::wasm::compiled(has_memory)?)?;
    }
    Ok(())
}

/// An image.
pub fn image(files: &Path, name: &str) -> Result<Image> {
    let packed = std::fs::read(files.join(format!("{name}.image")))?;
    Ok(Image::unpack(&packed)?)
}

/// Distinct copies of the time stamp function.
#[derive(Debug)]
pub struct Copies {
    image: Image,
    /// Where the number is in its constants.
    at: usize,
}

impl Copies {
    /// Of the function that was built.
    pub fn new(files: &Path) -> Result<Self> {
        let image = image(files, "stamp")?;
        let number = NUMBER.to_le_bytes();
        let found = image.constants.windows(8).enumerate().filter(|(_, window)| **window == number);
        let found: Vec<usize> = found.map(|(at, _)| at).collect();
        match found[..] {
            [at] => Ok(Self { image, at }),
            _ => Err(format!("the function's number is {} times in its image", found.len()).into()),
        }
    }

    /// The copy with this number.
    pub fn copy(&self, which: u32) -> Result<Image> {
        let mut image = self.image.clone();
        let number = number_of(which);
        image.constants[self.at..self.at + 8].copy_from_slice(&number.to_le_bytes());
        image.check()?;
        Ok(image)
    }
}

/// The number of a copy: each byte has four of its bits, so that none has bytes that no code may have.
fn number_of(which: u32) -> u64 {
    (0..5).fold(NUMBER, |number, at| number + (u64::from(which >> (4 * at) & 15) << (8 * at)))
}

/// The copy that says this number, below 2^20; another one is no copy's.
pub fn copy_of(number: u64) -> u64 {
    let which = (0..5).fold(0, |which, at| which | (number >> (8 * at) & 15) << (4 * at));
    if number_of(which as u32) == number { which } else { u64::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_known_by_their_numbers() {
        for which in [0, 1, 15, 16, 1295, 4999, 299_999, (1 << 20) - 1] {
            assert_eq!(copy_of(number_of(which)), u64::from(which));
        }
        assert_eq!(copy_of(number_of(5) + 16), u64::MAX);
        assert_eq!(copy_of(0), u64::MAX);
    }
}
