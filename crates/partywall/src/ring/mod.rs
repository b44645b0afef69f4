//! Calls over a ring: what is common to both sides ([`core`], [`reader`], [`stream`], [`pump`],
//! [`body`]), the caller's side ([`client`], [`lone`], [`habits`]) and the service's side ([`server`],
//! [`inline`]).

pub(crate) mod body;
mod broken;
pub(crate) mod client;
pub(crate) mod core;
mod habits;
pub(crate) mod inline;
mod lone;
pub(crate) mod pump;
mod reader;
pub(crate) mod server;
pub(crate) mod stream;
mod table;
