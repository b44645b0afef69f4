//! Several processes, one of which dies, floods or does nothing.

#[path = "system/mod.rs"]
mod system;
