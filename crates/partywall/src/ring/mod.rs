//! Calls over a ring: what is common to both sides ([`core`], [`reader`], [`stream`], [`pump`],
//! [`body`]),
//! the caller's side ([`client`], [`lone`]) and the service's side ([`server`], [`inline`]).

pub(crate) mod body;
mod broken;
pub(crate) mod client;
pub(crate) mod core;
pub(crate) mod inline;
mod lone;
pub(crate) mod pump;
mod reader;
pub(crate) mod server;
pub(crate) mod stream;
mod table;
