//! What a sample is told, and what it tells.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::case::Case;
use crate::row::Figures;
use crate::sys::clock::{Stamps, Ticker};

/// One contender in one round; the sample's one argument, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// Who is measured.
    pub contender: String,
    /// How many functions there are.
    pub count: u32,
    /// Process id of the driver.
    pub driver: u32,
    /// The dispatcher's CPU, and that of what it calls.
    pub cpus: [usize; 2],
    /// How long each loop is measured.
    pub span: Duration,
    /// How many functions are stopped in each place.
    pub kills: u32,
    /// How many begins of a handler are measured.
    pub begins: u32,
    /// Calls per second of `process-fair`, once they are known.
    pub fair_per_s: Option<f64>,
    /// Decides what is random.
    pub seed: u64,
    /// The clock of what has no page of its own.
    pub stamps: Stamps,
    /// The clock of the probe.
    pub ticker: Ticker,
    /// Where programs and images are.
    pub files: PathBuf,
}

impl Task {
    /// The places of functions.
    pub fn places(&self) -> std::ops::Range<u32> {
        0..self.count
    }
}

/// What a sample has measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Told {
    /// Why there is no more of it.
    pub error: Option<String>,
    /// Each cell, its figures, and whether the cores were near before and after; none if they have moved.
    pub rows: Vec<(Case, Figures, Option<bool>)>,
}
