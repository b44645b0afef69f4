//! One module per subject.

mod again;
mod bounds;
mod burn;
mod domains;
mod forks;
mod held;
mod host;
mod hung;
mod idle;
mod impostor;
mod kills;
mod memory;
mod security;
mod signals;
#[cfg(feature = "failpoints")]
mod stops;
mod unprivileged;
