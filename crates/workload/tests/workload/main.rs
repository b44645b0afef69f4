//! The Workload API and SDS as workloads meet them: by a client of tonic, by bytes, and by stock libraries.

mod api;
mod limits;
mod rig;
mod sds;
mod senders;
mod stock;
