//! The function host: what is deployed, who may do what with it, and how it is called.
//!
//! ```text
//! gRPC over rings --> [service] --.                  .--> [registry]: versions and images, on disk
//!                                  >-- [host] ------<---> [policy]: who may what
//! HTTP, stock gRPC -> [http] -----'                  `--> dispatcher and workers (partywall-functions)
//!                                                            `--> [outward]: calls of services
//! ```
//!
//! The same call means the same on all ways in; over HTTP nobody vouches for the caller, who is `network` to
//! the policy.

pub mod checks;
pub mod host;
pub mod http;
pub mod logs;
mod outward;
pub mod page;
pub mod policy;
pub mod registry;
pub mod reply;
pub mod service;
pub mod slo;
pub mod telemetry;

/// The messages, the service and its client.
#[allow(missing_docs, unnameable_types, reason = "generated")]
pub mod proto {
    tonic::include_proto!("partywall.functions.v1");
}
