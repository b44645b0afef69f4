//! One module per subject.

mod host;
mod idle;
mod impostor;
mod kills;
mod memory;
#[cfg(feature = "stops")]
mod stops;
mod unprivileged;
