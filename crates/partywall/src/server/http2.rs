//! The same services over HTTP/2: for callers that are elsewhere, or are not ours, and for tools.
//!
//! ```text
//! accept -> one task per connection -> one per call: handler -> head -> body -> trailers
//!   deadline passed at any point: the handler or the body is dropped, DEADLINE_EXCEEDED
//!   panic at any point: INTERNAL, the connection goes on
//!   reset by the caller, or its death: the handler or the body is dropped
//! too many connections, or one that says nothing: module `connections`
//! one that reads nothing: module `unread`
//! a connection has its age: its caller is told to send no more calls, and it ends with its last
//! stop: no more connections, each is told to send no more calls, and ends with its last
//! ```
//!
//! A call means what it means on a ring ([`crate::link::service`]), with one difference: while a
//! caller takes none of an answer, nobody looks at the deadline of that call. Requests that are not
//! gRPC's (of a layer that speaks gRPC-Web, say) get the service's answer as it is; a deadline is gRPC's and
//! gRPC-Web's, and a panic is 500 to others.

mod connection;
mod connections;
mod incoming;
mod listener;
mod settings;
mod tls;
mod unread;

pub(crate) use connection::serve as serve_connection;
pub(crate) use connections::Connection;
pub(super) use connections::most;
pub(super) use listener::Listener;
pub(super) use settings::Settings;
pub(super) use tls::Terms as TlsTerms;
