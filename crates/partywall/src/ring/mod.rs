//! Calls over a ring: what is common to both sides ([`core`], [`calls`], [`table`], [`reader`], [`stream`],
//! [`pump`], [`incoming`], [`account`], [`body`]), the caller's side ([`client`],
//! [`lone`], [`habits`]) and the service's side ([`server`], [`inline`]).

pub(crate) mod account;
pub(crate) mod body;
pub(crate) mod broken;
mod calls;
pub(crate) mod client;
pub(crate) mod core;
mod habits;
mod incoming;
pub(crate) mod inline;
mod lone;
pub(crate) mod pump;
mod reader;
pub(crate) mod server;
pub(crate) mod stream;
mod table;

#[cfg(test)]
mod hostile_tests;
