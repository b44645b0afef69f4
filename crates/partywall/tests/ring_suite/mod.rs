//! One module per subject.

mod interop;
mod setup;
