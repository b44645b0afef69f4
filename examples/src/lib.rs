//! What the examples share: the types that `proto/examples.proto` defines.
#![allow(missing_docs)]

tonic::include_proto!("examples");
