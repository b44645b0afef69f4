//! What is deployed: functions, their versions, and images, in one file that a crash leaves whole.
//!
//! ```text
//! DIRECTORY (mode 0700)   registry.redb   table functions: name -> Record
//!                                         table images: SHA-256 of a signed image -> users, bytes
//!                                         table owners: name -> functions, bytes of images
//!                         builder.key     the key that this host signs with, mode 0600
//!                         builder.pub     its public half
//!                         trusted/*.pub   keys whose images are taken beside
//! ```
//!
//! Each change is one transaction: whoever reads sees all of it or nothing, and what was committed is there
//! after a crash. One host has a directory at a time, by the lock of the file. An image is kept once for all
//! versions that have it, and goes with the last of them. A function has [`KEPT`] versions at most; the
//! oldest one goes when there is another.
//!
//! Nobody else can write the directory. The file is checked all the same when it is opened, and images when
//! they are read ([`Signed::from_bytes`]). One that is damaged, or empty, is left as it is.
//!
//! | the file | then |
//! | --- | --- |
//! | is not there | it is made |
//! | cannot be opened, or is damaged | the host does not start |
//! | could not be written or read | that change is taken back; it is closed, and opened again for the next one |

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use partywall_functions::signed::{Signed, SignedError};
use partywall_trust::{KeyError, PublicKey, SigningKey};
use redb::{Database, ReadableDatabase as _, ReadableTable, Table, TableDefinition};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use sha2::{Digest as _, Sha256};

use crate::checks::block_bytes;

/// Versions of a function that are kept.
pub const KEPT: usize = 10;

const FUNCTIONS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("functions");
const IMAGES: TableDefinition<'_, &[u8], (u32, &[u8])> = TableDefinition::new("images");
const OWNERS: TableDefinition<'_, &str, (u64, u64)> = TableDefinition::new("owners");

/// A function, and who it is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its owner, as the policy names it.
    pub owner: String,
    /// The number of the version that is called.
    pub current: u32,
    /// Nobody calls it until the ban is taken back.
    pub is_banned: bool,
    /// The number that the next version has.
    next: u32,
    /// Its versions, the newest one last.
    pub versions: Vec<Version>,
}

/// A version of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Its number, from 1 on.
    pub number: u32,
    /// What else there is to it.
    pub deployed: Deployed,
}

/// What is deployed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployed {
    /// SHA-256 of its signed image.
    pub image: [u8; 32],
    /// The bytes of that.
    pub image_bytes: u64,
    /// SHA-256 of sources, compiler and crates, as hexadecimal digits.
    pub sources: String,
    /// The id of the key that has signed the image.
    pub key: String,
    /// When, in milliseconds since 1970.
    pub deployed_ms: u64,
    /// What a call of it may use of a CPU, in microseconds.
    pub budget_us: u64,
    /// It may run twice for one call.
    pub idempotent: bool,
    /// Its parameters.
    pub parameters: BTreeMap<String, ByteBuf>,
    /// What is shown to nobody but the function.
    pub secrets: BTreeMap<String, ByteBuf>,
}

impl Record {
    /// A function with its first version.
    pub fn first(owner: &str, version: Version) -> Self {
        let (current, next) = (version.number, version.number + 1);
        Self { owner: owner.into(), current, is_banned: false, next, versions: vec![version] }
    }

    /// The version that is called.
    pub fn version(&self) -> &Version {
        self.find(self.current).expect("the current version is among the versions")
    }

    /// The version with this number.
    pub fn find(&self, number: u32) -> Option<&Version> {
        self.versions.iter().find(|version| version.number == number)
    }

    /// The bytes of the images of all versions, with their parameters and secrets.
    pub fn image_bytes(&self) -> u64 {
        let of = |deployed: &Deployed| {
            deployed.image_bytes + block_bytes(&deployed.parameters, &deployed.secrets) as u64
        };
        self.versions.iter().map(|version| of(&version.deployed)).sum()
    }
}

/// Why something is not deployed, found or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The directory, or a file in it.
    #[error("{}: {source}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others could change what is in the directory.
    #[error("{}: {text}", .path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// What is wrong, and the remedy.
        text: String,
    },
    /// A key's file.
    #[error("{}: {source}", .path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Why.
        source: KeyError,
    },
    /// Another host has it.
    #[error("{}: another function host has this directory; end that, or name another one", .0.display())]
    Taken(PathBuf),
    /// The file of the registry.
    #[error("{}: {source}; {}", .path.display(), remedy(.source))]
    Database {
        /// Which.
        path: PathBuf,
        /// Why.
        source: Box<redb::Error>,
    },
    /// A record that is none.
    #[error("the registry of functions: the record of `{0}` is damaged")]
    Damaged(String),
    /// An image that is none, or of an unknown key.
    #[error("the image of `{name}`: {source}")]
    Image {
        /// The function.
        name: String,
        /// Why.
        source: SignedError,
    },
    /// There is no such function.
    #[error("there is no function `{0}`")]
    Unknown(String),
    /// There is no such version.
    #[error("`{name}` has no version {wanted}; it has {there}")]
    NoVersion {
        /// The function.
        name: String,
        /// Its version: `7`, or `before 1`.
        wanted: String,
        /// What there is.
        there: String,
    },
    /// The name is another owner's, which is not said: not all may know whose functions there are.
    #[error("another owner has a function `{0}`; choose another name")]
    NotYours(String),
    /// An owner has no room for another function or version.
    #[error(
        "`{owner}` would have {what}, and its limit is {most}; remove functions, or have the limit raised"
    )]
    Full {
        /// The owner.
        owner: String,
        /// How much of what.
        what: String,
        /// The limit.
        most: u64,
    },
}

/// What [`Registry::with`] names the file of.
fn database(error: impl Into<redb::Error>) -> RegistryError {
    RegistryError::Database { path: PathBuf::new(), source: Box::new(error.into()) }
}

/// What to do about a file that cannot be read or written.
pub(crate) fn remedy(error: &redb::Error) -> &'static str {
    use io::ErrorKind::{
        FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
    };
    match error {
        redb::Error::Io(why) => match why.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => {
                "what is deployed stays; make room on its disk, and try again"
            }
            PermissionDenied | ReadOnlyFilesystem => "let this user read and write it",
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => NO_REGISTRY,
            _ => "what is deployed stays; see to its disk, and try again",
        },
        redb::Error::UpgradeRequired(_) | redb::Error::LockProtocolMismatch => {
            "it is of another version of Partywall; use that, or deploy anew in another directory"
        }
        _ => NO_REGISTRY,
    }
}

/// The remedy for a file that is none of a registry.
const NO_REGISTRY: &str =
    "it is left as it is; put a copy of it there, or move it away and deploy anew";

/// How much an owner may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Functions.
    pub functions: u64,
    /// Bytes of images, of all versions.
    pub image_bytes: u64,
}

/// The registry of a host.
#[derive(Debug)]
pub struct Registry {
    path: PathBuf,
    /// None after it could not be written or read: its handle takes nothing any more.
    database: RwLock<Option<Database>>,
    key: SigningKey,
    trusted: Vec<PublicKey>,
}

type Functions<'t> = Table<'t, &'static str, &'static [u8]>;
type Images<'t> = Table<'t, &'static [u8], (u32, &'static [u8])>;
type Owners<'t> = Table<'t, &'static str, (u64, u64)>;

/// The tables of a transaction.
struct Tables<'t> {
    functions: Functions<'t>,
    images: Images<'t>,
    owners: Owners<'t>,
}

impl Registry {
    /// That of a directory, which is made if it is not there.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn open(directory: &Path) -> Result<Self, RegistryError> {
        closed(directory)?;
        let path = directory.join("registry.redb");
        let database = opened(&path)?;
        let key = key(directory)?;
        let mut trusted = vec![key.public()];
        trusted.extend(others(&directory.join("trusted"))?);
        let registry = Self { path, database: RwLock::new(Some(database)), key, trusted };
        registry.change(|_| Ok(()))?;
        Ok(registry)
    }

    /// Does something with the file, which is opened again if it was closed.
    fn with<R>(
        &self,
        work: impl FnOnce(&Database) -> Result<R, RegistryError>,
    ) -> Result<R, RegistryError> {
        let mut database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        if database.is_none() {
            drop(database);
            let mut closed = self.database.write().unwrap_or_else(PoisonError::into_inner);
            if closed.is_none() {
                *closed = Some(opened(&self.path)?);
            }
            database = RwLockWriteGuard::downgrade(closed);
        }
        let done = work(database.as_ref().expect("it is opened"));
        drop(database);
        done.map_err(|error| match error {
            RegistryError::Database { source, .. } => {
                *self.database.write().unwrap_or_else(PoisonError::into_inner) = None;
                RegistryError::Database { path: self.path.clone(), source }
            }
            other => other,
        })
    }

    /// The key that this host signs with.
    pub fn key(&self) -> &SigningKey {
        &self.key
    }

    /// The keys whose images are taken.
    pub fn trusted(&self) -> &[PublicKey] {
        &self.trusted
    }

    /// All functions.
    ///
    /// # Errors
    /// [`RegistryError::Database`], [`RegistryError::Damaged`].
    pub fn all(&self) -> Result<Vec<(String, Record)>, RegistryError> {
        self.with(|file| {
            let begun = file.begin_read().map_err(database)?;
            let functions = begun.open_table(FUNCTIONS).map_err(database)?;
            let mut all = Vec::new();
            for entry in functions.iter().map_err(database)? {
                let (name, record) = entry.map_err(database)?;
                let name = name.value().to_owned();
                let record = read(&name, record.value())?;
                all.push((name, record));
            }
            Ok(all)
        })
    }

    /// A function.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`], and those of [`Self::all`].
    pub fn find(&self, name: &str) -> Result<Record, RegistryError> {
        self.with(|file| {
            let begun = file.begin_read().map_err(database)?;
            found(&begun.open_table(FUNCTIONS).map_err(database)?, name)
        })
    }

    /// The signed image with this digest, of a function of this name.
    ///
    /// # Errors
    /// [`RegistryError::Database`], [`RegistryError::Image`] where the key is not trusted any more.
    pub fn image(&self, name: &str, digest: [u8; 32]) -> Result<Signed, RegistryError> {
        let bytes = self.image_bytes(name, digest)?;
        let signed = Signed::from_bytes(&bytes, &self.trusted);
        signed.map_err(|source| RegistryError::Image { name: name.into(), source })
    }

    /// The same in its bytes, unchecked.
    ///
    /// # Errors
    /// [`RegistryError::Database`], [`RegistryError::Damaged`].
    pub fn image_bytes(&self, name: &str, digest: [u8; 32]) -> Result<Vec<u8>, RegistryError> {
        self.with(|file| {
            let begun = file.begin_read().map_err(database)?;
            let images = begun.open_table(IMAGES).map_err(database)?;
            let found = images.get(&digest[..]).map_err(database)?;
            let found = found.ok_or_else(|| RegistryError::Damaged(name.into()))?;
            Ok(found.value().1.to_vec())
        })
    }

    /// Makes a new version of a function, which is called from then on.
    ///
    /// # Errors
    /// [`RegistryError::NotYours`], [`RegistryError::Full`], [`RegistryError::Database`].
    pub fn deploy(
        &self,
        (name, owner): (&str, &str),
        mut deployed: Deployed,
        image: &[u8],
        room: Room,
    ) -> Result<Record, RegistryError> {
        deployed.image = Sha256::digest(image).into();
        deployed.image_bytes = image.len() as u64;
        self.change(|tables| {
            let before = match found(&tables.functions, name) {
                Err(RegistryError::Unknown(_)) => None,
                other => Some(other?),
            };
            let had = before.as_ref().map_or([0, 0], |record| [1, record.image_bytes()]);
            let number = before.as_ref().map_or(1, |record| record.next);
            let version = Version { number, deployed };
            let mut record = match before {
                None => Record::first(owner, version),
                Some(record) if record.owner != owner => {
                    return Err(RegistryError::NotYours(name.into()));
                }
                Some(mut record) => {
                    (record.current, record.next) = (number, number + 1);
                    record.versions.push(version);
                    record
                }
            };
            tables.keep(record.version().deployed.image, image)?;
            while record.versions.len() > KEPT {
                let gone = record.versions.remove(0);
                tables.release(gone.deployed.image)?;
            }
            tables.account(owner, had, [1, record.image_bytes()], Some(room))?;
            tables.write(name, &record)?;
            Ok(record)
        })
    }

    /// Makes a version that is kept the one that is called; 0 is the one before the one that is.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`], [`RegistryError::NoVersion`], [`RegistryError::Database`].
    pub fn roll_back(&self, name: &str, number: u32) -> Result<Record, RegistryError> {
        self.change(|tables| {
            let mut record = found(&tables.functions, name)?;
            let before = record.versions.iter().rev().find(|found| found.number < record.current);
            let wanted = if number == 0 { before } else { record.find(number) };
            record.current = wanted.map(|version| version.number).ok_or_else(|| {
                let numbers = record.versions.iter().map(|version| version.number.to_string());
                RegistryError::NoVersion {
                    name: name.into(),
                    wanted: match number {
                        0 => format!("before {}", record.current),
                        number => number.to_string(),
                    },
                    there: numbers.collect::<Vec<_>>().join(", "),
                }
            })?;
            tables.write(name, &record)?;
            Ok(record)
        })
    }

    /// Bans a function, or lets it be called again.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`], [`RegistryError::Database`].
    pub fn ban(&self, name: &str, is_banned: bool) -> Result<(), RegistryError> {
        self.change(|tables| {
            let mut record = found(&tables.functions, name)?;
            record.is_banned = is_banned;
            tables.write(name, &record)
        })
    }

    /// Removes a function with all its versions.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`], [`RegistryError::Database`].
    pub fn remove(&self, name: &str) -> Result<(), RegistryError> {
        self.change(|tables| {
            let record = found(&tables.functions, name)?;
            for version in &record.versions {
                tables.release(version.deployed.image)?;
            }
            tables.account(&record.owner, [1, record.image_bytes()], [0, 0], None)?;
            tables.functions.remove(name).map_err(database)?;
            Ok(())
        })
    }

    /// One transaction, which an error takes back.
    fn change<R>(
        &self,
        change: impl FnOnce(&mut Tables<'_>) -> Result<R, RegistryError>,
    ) -> Result<R, RegistryError> {
        self.with(|file| {
            let begun = file.begin_write().map_err(database)?;
            let changed = change(&mut Tables {
                functions: begun.open_table(FUNCTIONS).map_err(database)?,
                images: begun.open_table(IMAGES).map_err(database)?,
                owners: begun.open_table(OWNERS).map_err(database)?,
            })?;
            begun.commit().map_err(database)?;
            Ok(changed)
        })
    }
}

/// The file, which is made if it is not there; one that is empty was another one before.
fn opened(path: &Path) -> Result<Database, RegistryError> {
    let mut file = Database::builder();
    // Without that, one that is damaged may be a panic when it is read.
    file.set_check_integrity_on_open(true);
    let opened = match path.try_exists() {
        Ok(false) => file.create(path),
        _ => file.open(path),
    };
    opened.map_err(|error| match error {
        redb::DatabaseError::DatabaseAlreadyOpen => {
            RegistryError::Taken(path.parent().unwrap_or(path).to_path_buf())
        }
        other => RegistryError::Database { path: path.into(), source: Box::new(other.into()) },
    })
}

fn read(name: &str, record: &[u8]) -> Result<Record, RegistryError> {
    let record: Option<Record> = postcard::from_bytes(record).ok();
    let is_whole = |record: &Record| record.find(record.current).is_some();
    record.filter(is_whole).ok_or_else(|| RegistryError::Damaged(name.into()))
}

fn found(
    functions: &impl ReadableTable<&'static str, &'static [u8]>,
    name: &str,
) -> Result<Record, RegistryError> {
    let found = functions.get(name).map_err(database)?;
    let found = found.ok_or_else(|| RegistryError::Unknown(name.into()))?;
    read(name, found.value())
}

impl Tables<'_> {
    fn write(&mut self, name: &str, record: &Record) -> Result<(), RegistryError> {
        let bytes = postcard::to_stdvec(record).expect("a record can be written down");
        self.functions.insert(name, &bytes[..]).map_err(database)?;
        Ok(())
    }

    /// A version more has this image.
    fn keep(&mut self, digest: [u8; 32], image: &[u8]) -> Result<(), RegistryError> {
        let images = &mut self.images;
        let users = images.get(&digest[..]).map_err(database)?.map_or(0, |found| found.value().0);
        images.insert(&digest[..], (users + 1, image)).map_err(database)?;
        Ok(())
    }

    /// A version less has this image.
    fn release(&mut self, digest: [u8; 32]) -> Result<(), RegistryError> {
        let images = &mut self.images;
        let found = images.get(&digest[..]).map_err(database)?.map(|found| {
            let (users, bytes) = found.value();
            (users, bytes.to_vec())
        });
        match found {
            Some((users, bytes)) if users > 1 => {
                images.insert(&digest[..], (users - 1, &bytes[..])).map_err(database)?;
            }
            _ => drop(images.remove(&digest[..]).map_err(database)?),
        }
        Ok(())
    }

    /// An owner has functions and bytes of images in place of others, if there is room.
    fn account(
        &mut self,
        owner: &str,
        before: [u64; 2],
        after: [u64; 2],
        room: Option<Room>,
    ) -> Result<(), RegistryError> {
        let had = self.owners.get(owner).map_err(database)?.map_or((0, 0), |found| found.value());
        let functions = had.0.saturating_sub(before[0]) + after[0];
        let bytes = had.1.saturating_sub(before[1]) + after[1];
        let full = |what, most| Err(RegistryError::Full { owner: owner.into(), what, most });
        if let Some(room) = room {
            if functions > had.0 && functions > room.functions {
                return full(format!("{functions} functions"), room.functions);
            }
            if bytes > had.1 && bytes > room.image_bytes {
                return full(format!("{bytes} bytes of images and parameters"), room.image_bytes);
            }
        }
        self.owners.insert(owner, (functions, bytes)).map_err(database)?;
        Ok(())
    }
}

/// Makes the directory, or looks whether it is closed to others.
fn closed(directory: &Path) -> Result<(), RegistryError> {
    let file = |source| RegistryError::File { path: directory.into(), source };
    match fs::DirBuilder::new().recursive(true).mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(file(error)),
        _ => {}
    }
    let found = fs::metadata(directory).map_err(file)?;
    let own = rustix::process::geteuid().as_raw();
    let text = if !found.is_dir() {
        "this is no directory; name one".into()
    } else if found.uid() != own {
        format!(
            "it is of user {}, and this is user {own}; name a directory of this user",
            found.uid()
        )
    } else if found.mode() & 0o077 != 0 {
        format!(
            "others can reach it (mode {:o}), and it has keys and secrets; `chmod go= {}`",
            found.mode() & 0o7777,
            directory.display()
        )
    } else {
        return Ok(());
    };
    Err(RegistryError::Open { path: directory.into(), text })
}

/// The key of the directory; a new one the first time.
fn key(directory: &Path) -> Result<SigningKey, RegistryError> {
    let path = directory.join("builder.key");
    let file = |source| RegistryError::File { path: path.clone(), source };
    let key = match fs::read_to_string(&path) {
        Ok(pem) => SigningKey::from_pem(&pem)
            .map_err(|source| RegistryError::Key { path: path.clone(), source })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let key = SigningKey::generate();
            let whole = directory.join("builder.key.new");
            let mut options = fs::OpenOptions::new();
            let mut written = options
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&whole)
                .map_err(file)?;
            io::Write::write_all(&mut written, key.to_pem().as_bytes()).map_err(file)?;
            written.sync_all().map_err(file)?;
            fs::rename(&whole, &path).map_err(file)?;
            key
        }
        Err(error) => return Err(file(error)),
    };
    fs::write(directory.join("builder.pub"), key.public().to_pem()).map_err(file)?;
    Ok(key)
}

/// The keys of a directory, which need not be there.
fn others(directory: &Path) -> Result<Vec<PublicKey>, RegistryError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|source| RegistryError::File { path: directory.into(), source })?,
    };
    let mut keys = Vec::new();
    for entry in entries {
        let entry =
            entry.map_err(|source| RegistryError::File { path: directory.into(), source })?;
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "pub") {
            continue;
        }
        let pem = fs::read_to_string(&path)
            .map_err(|source| RegistryError::File { path: path.clone(), source })?;
        keys.push(PublicKey::from_pem(&pem).map_err(|source| RegistryError::Key { path, source })?);
    }
    Ok(keys)
}

#[cfg(test)]
mod tests;
