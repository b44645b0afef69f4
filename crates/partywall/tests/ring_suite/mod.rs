//! One module per subject.

mod bounds;
mod calls;
mod http;
mod interop;
mod security;
mod service;
mod setup;
mod targets;
mod tonics;
