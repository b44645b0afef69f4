//! Calls over the ring, inside one process that is both sides.

mod bounds;
mod calls;
mod http;
mod interop;
mod security;
mod service;
mod serving;
mod setup;
mod targets;
mod tonics;
