//! Several processes, one of which dies, floods or does nothing.

mod again;
mod balance;
mod bounds;
mod domains;
mod forks;
mod hardening;
mod held;
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

const CLIENT: &str = env!("CARGO_BIN_EXE_st-client");
const SERVER: &str = env!("CARGO_BIN_EXE_st-server");
