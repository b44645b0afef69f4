//! The messages of the Workload API, and those of Envoy's API and of Google's that SDS has.
#![allow(missing_docs, clippy::all, reason = "generated")]

use std::fmt;

tonic::include_proto!("_");

impl fmt::Debug for X509svid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("X509svid").field("spiffe_id", &self.spiffe_id).finish_non_exhaustive()
    }
}

impl fmt::Debug for X509svidResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("X509svidResponse").field("svids", &self.svids).finish_non_exhaustive()
    }
}

pub mod google {
    pub mod protobuf {
        tonic::include_proto!("google.protobuf");

        impl std::fmt::Debug for Any {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("Any").field("type_url", &self.type_url).finish_non_exhaustive()
            }
        }
    }

    pub mod rpc {
        tonic::include_proto!("google.rpc");
    }
}

pub mod envoy {
    pub mod config {
        pub mod core {
            pub mod v3 {
                tonic::include_proto!("envoy.config.core.v3");
            }
        }
    }

    pub mod service {
        pub mod discovery {
            pub mod v3 {
                tonic::include_proto!("envoy.service.discovery.v3");
            }
        }

        pub mod secret {
            pub mod v3 {
                tonic::include_proto!("envoy.service.secret.v3");
            }
        }
    }

    pub mod extensions {
        pub mod transport_sockets {
            pub mod tls {
                pub mod v3 {
                    tonic::include_proto!("envoy.extensions.transport_sockets.tls.v3");
                }
            }
        }
    }
}
