//! Calls over a sealed link while the certificates of all processes are said to be old each [`EACH`].
//!
//! ```text
//! coordinator  makes an authority with another key, is told of it, writes how often that was
//!              |- each process is told that its certificate is old
//! both ends    make a new key, and are certified for it, when a link is made next; the one that is measured
//!              goes on, and none is made beside it
//! ```
//!
//! A sample in which the authority was not replaced is a failed one.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use partywall_coordinator::trust::{CERTIFICATES, CROSSED, DOMAIN, KEY, TRUSTED};
use partywall_coordinator::{Coordinator, Listen, Options, Policy};
use partywall_trust::{Authority, LEAF_LIFE, TrustDomain};

use super::stubs::{RING_SEALED_TONIC, is_sealed, sealed_policy};
use crate::calls::partywall::{SOCKET, call_checked};
use crate::calls::stubs::ordinary;
use crate::case::{Case, Placement, Wait};
use crate::contender::Contender;
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

/// Bytes of a call.
pub const SIZE: u64 = 4 << 10;
/// From one rotation to the next.
const EACH: Duration = Duration::from_millis(100);
/// Authorities that stay trusted.
const OLD: u64 = 8;
/// The fewest rotations of a sample.
const LEAST: u64 = 2;

/// Sealed calls under rotation.
pub const RING_SEALED_ROTATING: Contender = Contender {
    name: "ring-sealed-rotating",
    about: "ring-sealed-tonic, while the authority is another one 10 times a second",
    cases: || vec![Case::sealed(SIZE, Placement::SameCore, Some(Wait::Block))],
    attend: Some(coordinate),
    call: Some(call),
    ..RING_SEALED_TONIC
};

/// How often there was a rotation, which the coordinator writes.
fn count_file(seat: &Seat) -> PathBuf {
    seat.dir().join("rotations")
}

fn rotations(path: &Path) -> u64 {
    std::fs::read_to_string(path).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The directory of an authority, as `partywall ca rotate` leaves it.
struct Authorities {
    directory: PathBuf,
    domain: TrustDomain,
    now: Option<Authority>,
}

impl Authorities {
    fn new(directory: PathBuf) -> Result<Self> {
        DirBuilder::new().mode(0o700).recursive(true).create(directory.join(TRUSTED))?;
        Ok(Self { directory, domain: TrustDomain::new(DOMAIN)?, now: None })
    }

    /// Another one is there from now on, and the last ones stay trusted.
    fn rotate(&mut self, number: u64) -> Result<()> {
        let write = |name: &str, text: &str| {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            options.open(self.directory.join(name))?.write_all(text.as_bytes())
        };
        let now = SystemTime::now();
        let next = Authority::new(&self.domain, now)?;
        if let Some(old) = &self.now {
            write(CROSSED, &old.cross(&next, (now, LEAF_LIFE))?)?;
        }
        let (certificate, key) = next.to_pem();
        self.now = Some(next);
        write(CERTIFICATES, &certificate)?;
        write(KEY, &key)?;
        Ok(write(&format!("{TRUSTED}/{}.pem", number % OLD), &certificate)?)
    }
}

fn coordinate(seat: &mut Seat) -> Result<()> {
    let (file, count) = (seat.dir().join("policy.toml"), count_file(seat));
    let mut authorities = Authorities::new(seat.dir().join("authority"))?;
    let directory = authorities.directory.display();
    let of = format!("[authority]\ndirectory = '{directory}'\n");
    std::fs::write(&file, of + &sealed_policy())?;
    authorities.rotate(0)?;
    let options = Options {
        listen: Listen::At(seat.dir().join(SOCKET)),
        policy_file: Some(file.clone()),
        ..Options::default()
    };
    let coordinator = Coordinator::start_with(Policy::load(&file)?, options)?;
    seat.ready();
    for number in 1.. {
        std::thread::sleep(EACH);
        authorities.rotate(number)?;
        let (done, reloaded) = mpsc::channel();
        coordinator.reload(move |result| drop(done.send(result.map_err(|e| e.to_string()))));
        reloaded.recv()??;
        // Whoever reads half of it reads a smaller number.
        std::fs::write(&count, number.to_string())?;
    }
    Ok(())
}

fn call(seat: &mut Seat) -> Result<Figures> {
    let count = count_file(seat);
    let before = rotations(&count);
    let figures = call_checked(seat, ordinary::client, is_sealed)?;
    match rotations(&count).saturating_sub(before) {
        during if during >= LEAST => Ok(figures),
        during => Err(format!("there were {during} rotations, and {LEAST} are the fewest").into()),
    }
}
