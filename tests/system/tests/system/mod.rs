//! One module per subject.

mod domains;
mod host;
mod idle;
mod impostor;
mod kills;
mod memory;
#[cfg(feature = "stops")]
mod stops;
mod unprivileged;
