//! What a function is written against.
//!
//! A function is one Rust file with `handle`. It has no standard library and no `unsafe`; what it allocates,
//! and its stack, are gone when it has answered.
//!
//! ```
//! use partywall_fn::prelude::*;
//!
//! /// Counts the words of a text.
//! pub fn handle(request: Request<'_>) -> Reply {
//!     let words = request.text()?.split_whitespace().count();
//!     Ok(format!("{words}\n").into_bytes())
//! }
//! # assert_eq!(handle(Request::of(b"a b c")).unwrap(), b"3\n");
//! ```
//!
//! ```text
//! worker                                   function
//!   writes a Header, enters ------------->    rt::run: Request from the Header, handle()
//!   <------------------------------------    writes the reply's place into the Header, returns
//!   <------------------------------------    or leaves at once: panic, no memory left
//! ```
//!
//! With the feature `prost`, `Request::message` reads a protobuf message, and `reply` answers with one. The
//! builder sets it where a function uses `prost`.
//!
//! The worker believes nothing of what a function has written ([`cell`]).

#![no_std]

extern crate alloc;

pub mod cell;
pub mod clock;
mod error;
pub mod log;
pub mod random;
mod request;
pub mod rt;
pub mod service;

pub use error::{Code, Error};
#[cfg(feature = "prost")]
pub use request::reply;
pub use request::{Reply, Request};

/// What most functions use. The builder has it in each file of a function.
pub mod prelude {
    pub use alloc::borrow::ToOwned;
    pub use alloc::boxed::Box;
    pub use alloc::string::{String, ToString};
    pub use alloc::vec::Vec;
    pub use alloc::{format, vec};

    pub use crate::log;
    #[cfg(feature = "prost")]
    pub use crate::reply;
    pub use crate::{Code, Error, Reply, Request};
}
