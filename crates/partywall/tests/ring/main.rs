//! Calls over the ring, inside one process that is both sides.

mod answers;
mod bounds;
mod calls;
mod hosts;
mod http;
mod interop;
mod pace;
mod pins;
mod resending;
mod sealed;
mod security;
mod server_http2;
mod server_settings;
mod service;
mod serving;
mod settings;
mod setup;
mod signed;
mod targets;
mod tls;
mod tonics;
