//! The Workload API and SDS as workloads meet them: by a client of tonic, by bytes, and by stock libraries.

mod api;
mod grpc;
mod limits;
mod programs;
mod rig;
mod sds;
mod senders;
mod stock;
