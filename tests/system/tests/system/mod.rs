//! One module per subject.

mod host;
mod idle;
mod kills;
#[cfg(feature = "stops")]
mod stops;
