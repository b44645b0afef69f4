//! The images of all registered functions, packed, in a file of a disk without a name.
//!
//! ```text
//! register --put--> file --read--> call of a function that is not loaded --> [store]
//!                     `--take--> removed: its bytes are given back to the disk
//! ```
//!
//! Of a registered function, the dispatcher's memory has where its image is; a page of the image is in memory
//! while the kernel has use for it, and once more in the store while the function is loaded. The dispatcher
//! alone has the file, which is gone with it, and has checked each image before it was put there: one is not
//! looked through again when it is read, but has to be one by its form.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::FallocateFlags;

use crate::image::Image;
use crate::store::Store;

/// What places in the file are a multiple of, in bytes: what a disk gives and takes.
const BLOCK: u64 = 4096;

/// The file.
#[derive(Debug)]
pub(crate) struct Archive {
    file: File,
    /// Where nothing has been put yet.
    end: u64,
}

/// Where an image is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packed {
    at: u64,
    bytes: u32,
    /// The bytes of memory that it has in the store.
    pub(crate) resident: u32,
}

impl Archive {
    /// An empty one in this directory.
    pub(crate) fn new(directory: &Path) -> io::Result<Self> {
        let file = tempfile::tempfile_in(directory).map_err(|why| {
            let text = format!("{}: no file for images of functions: {why}", directory.display());
            io::Error::new(why.kind(), text)
        })?;
        Ok(Self { file, end: 0 })
    }

    /// Puts an image in, which is checked.
    pub(crate) fn put(&mut self, image: &Image) -> io::Result<Packed> {
        let bytes = image.pack();
        let packed = Packed {
            at: self.end,
            bytes: bytes.len() as u32,
            resident: Store::bytes(image) as u32,
        };
        if let Err(why) = self.file.write_all_at(&bytes, packed.at) {
            // What was written of it has no room either.
            let _kept = self.file.set_len(self.end);
            return Err(why);
        }
        self.end += packed.blocks();
        Ok(packed)
    }

    /// An image that is in.
    pub(crate) fn read(&self, packed: Packed) -> io::Result<Image> {
        let mut bytes = vec![0; packed.bytes as usize];
        self.file.read_exact_at(&mut bytes, packed.at)?;
        Image::unpack_checked(&bytes).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
    }

    /// Takes an image out. A file system that cannot has its bytes until the file is gone.
    pub(crate) fn take(&mut self, packed: Packed) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _kept = rustix::fs::fallocate(&self.file, flags, packed.at, packed.blocks());
    }
}

impl Packed {
    fn blocks(self) -> u64 {
        u64::from(self.bytes).next_multiple_of(BLOCK)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn image(code: usize) -> Image {
        Image { code: vec![0xc3; code], ..Image::default() }
    }

    #[test]
    fn images_are_read_as_they_were_put_and_give_their_blocks_back() {
        let directory = tempfile::tempdir().unwrap();
        let mut archive = Archive::new(directory.path()).unwrap();
        let images: Vec<_> = [1, 4000, 4096, 5000, 100_000].map(image).into();
        let packed: Vec<_> = images.iter().map(|image| archive.put(image).unwrap()).collect();
        assert_eq!(packed[4].resident, 102_400);
        for (image, packed) in images.iter().zip(&packed) {
            assert_eq!(&archive.read(*packed).unwrap(), image);
        }
        let used = |archive: &Archive| {
            archive.file.sync_all().unwrap();
            archive.file.metadata().unwrap().blocks() * 512
        };
        let before = used(&archive);
        archive.take(packed[4]);
        assert!(used(&archive) + 100_000 <= before, "{before} {}", used(&archive));
        assert!(archive.read(packed[4]).is_err());
        assert_eq!(&archive.read(packed[3]).unwrap(), &images[3]);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "it has no name");
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let why = Archive::new(Path::new("/nowhere/at/all")).unwrap_err().to_string();
        assert!(why.starts_with("/nowhere/at/all: no file for images of functions: "), "{why}");
    }
}
