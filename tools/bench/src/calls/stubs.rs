//! The generated stubs, of both generators: the file `generated.rs` is compiled twice, without a
//! difference.

use bytes::Bytes;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::{Body as HttpBody, StdError};

/// By tonic-prost-build.
pub mod ordinary {
    /// Generated from `proto/bench.proto`.
    #[allow(missing_docs, reason = "generated")]
    pub mod proto {
        tonic::include_proto!("partywall.bench.v1");
    }
    mod generated {
        include!("stubs/generated.rs");
    }
    pub use generated::{client, service};
}

/// By partywall-build.
pub mod native {
    /// Generated from `proto/bench.proto`.
    #[allow(missing_docs, reason = "generated")]
    pub mod proto {
        include!(concat!(env!("OUT_DIR"), "/native/partywall.bench.v1.rs"));
    }
    mod generated {
        include!("stubs/generated.rs");
    }
    pub use generated::{Service, client, service};
}

/// What stubs can send their requests through.
pub trait Transport:
    GrpcService<
        Body,
        Error: Into<StdError>,
        ResponseBody: HttpBody<Data = Bytes, Error: Into<StdError> + Send> + Send + 'static,
    >
{
}

impl<T> Transport for T where
    T: GrpcService<
            Body,
            Error: Into<StdError>,
            ResponseBody: HttpBody<Data = Bytes, Error: Into<StdError> + Send> + Send + 'static,
        >
{
}
