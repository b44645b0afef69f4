//! One module per subject.

mod calls;
mod interop;
mod service;
mod setup;
