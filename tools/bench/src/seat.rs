//! What a side of a sample is given.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::case::{Case, Place};
use crate::control::Control;
use crate::error::Result;
use crate::memory::Held;
use crate::meter::Meter;
use crate::others::Others;
use crate::stopwatch::{Spans, Stopwatch};
use crate::sys::clock::Ticker;
use crate::text::Text;

/// Everything about a sample that both sides know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Who is measured.
    pub contender: String,
    /// Where and how.
    pub case: Case,
    /// How long.
    pub spans: Spans,
    /// The clock of this run.
    pub ticker: Ticker,
    /// A directory of this sample alone; of the same name in a container, which can only read it.
    pub dir: PathBuf,
    /// Where a server can make a socket that the client can reach.
    pub sockets: PathBuf,
    /// Where a server on the network listens.
    pub address: Ipv4Addr,
    /// A name that no other sample on this machine has; letters and digits.
    pub label: String,
    /// The text to count, in `words`.
    pub text: Option<Text>,
}

/// One side of a sample.
#[derive(Debug)]
pub struct Seat {
    sample: Sample,
    control: Arc<Control>,
    ends: Vec<Option<OwnedFd>>,
    lifeline: Option<OwnedFd>,
    admission: Option<Duration>,
}

impl Seat {
    /// A side with the descriptors it inherited; the lifeline is a pipe from client to server.
    pub fn new(
        sample: Sample,
        control: Control,
        ends: Vec<Option<OwnedFd>>,
        lifeline: Option<OwnedFd>,
    ) -> Self {
        Self { sample, control: Arc::new(control), ends, lifeline, admission: None }
    }

    /// The case to measure.
    pub fn case(&self) -> Case {
        self.sample.case
    }

    /// The sample's own directory.
    pub fn dir(&self) -> &Path {
        &self.sample.dir
    }

    /// Where the server makes its socket, if that has a name.
    pub fn sockets(&self) -> &Path {
        &self.sample.sockets
    }

    /// Where the server listens, if it is on the network.
    pub fn address(&self) -> Ipv4Addr {
        self.sample.address
    }

    /// The sample's own name.
    #[cfg_attr(not(feature = "opponents"), expect(dead_code, reason = "only they need a name"))]
    pub fn label(&self) -> &str {
        &self.sample.label
    }

    /// The text to count.
    ///
    /// # Errors
    /// Where there is none.
    pub fn text(&self) -> Result<Text> {
        Ok(self.sample.text.clone().ok_or("this bench has no text")?)
    }

    /// Takes the descriptor that `Contender::open` put at `index`.
    ///
    /// # Errors
    /// If it was taken already or belongs to the other side.
    pub fn take(&mut self, index: usize) -> Result<OwnedFd> {
        let end = self.ends.get_mut(index).and_then(Option::take);
        Ok(end.ok_or_else(|| format!("descriptor {index} is not this side's"))?)
    }

    /// Server: a pipe that ends when the client has gone.
    ///
    /// # Errors
    /// If it was taken already.
    pub fn lifeline(&mut self) -> Result<OwnedFd> {
        Ok(self.lifeline.take().ok_or("the lifeline was taken already")?)
    }

    /// Server: notes what is held before it makes anything; call before [`Seat::ready`].
    pub fn note_idle(&self) -> Result<()> {
        self.control.set_idle(Held::look(&[std::process::id()])?.0);
        Ok(())
    }

    /// Client: what is held before anything is made, with what the server has noted.
    pub fn idle(&self) -> Result<Held> {
        let own = Held::look(&[std::process::id()])?;
        Ok(match self.control.server() {
            Some(_) => own.with(Held(self.control.idle())),
            None => own,
        })
    }

    /// Client: takes no more than one of `times` calls that the sample is to have.
    pub fn take_fewer(&mut self, times: u64) {
        self.sample.spans.least = self.sample.spans.least.div_ceil(times);
    }

    /// Server: clients can connect from now on.
    pub fn ready(&self) {
        self.control.ready();
    }

    /// Server: leaves a number for the client, such as a port; call before [`Seat::ready`].
    pub fn set_number(&self, number: u32) {
        self.control.set_number(number);
    }

    /// Client: the number the server left.
    pub fn number(&self) -> u32 {
        self.control.number()
    }

    /// Client: connects, and notes how long that took.
    pub fn admitted<T>(&mut self, connect: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let link = connect(self)?;
        self.admission = Some(start.elapsed());
        Ok(link)
    }

    /// Client: the processes besides this one that work for the calls: the server, and the launcher
    /// of domains.
    pub fn others(&self) -> Others {
        match (self.case().place, self.control.server()) {
            (Place::Host, server) => {
                Others::Seen(server.into_iter().chain(self.control.launcher()).collect())
            }
            (_, Some(_)) => Others::Hidden(Arc::clone(&self.control)),
            (_, None) => Others::default(),
        }
    }

    /// Client: starts the warm-up, of both sides' CPU time too.
    pub fn stopwatch(&self) -> Result<Stopwatch> {
        Stopwatch::start(self.sample.ticker, self.sample.spans, self.others())
    }

    /// Client: starts the warm-up of a sample of `calls` or `domain`.
    pub fn meter(&self) -> Result<Meter> {
        Ok(Meter::new(self.stopwatch()?, &self.sample.case))
    }

    /// How long it took to connect; none if the client was connected before.
    pub(crate) fn admission(&self) -> Option<Duration> {
        self.admission
    }

    pub(crate) fn ticker(&self) -> Ticker {
        self.sample.ticker
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    /// Closes everything the side still holds, so that the other side sees it go.
    pub(crate) fn leave(&mut self) {
        self.ends.clear();
        self.lifeline = None;
    }
}
