//! Where a server serves.

use std::net::SocketAddr;

use crate::target::{Target, TargetError};

/// Where to serve: a list with commas of names at the coordinator (`greeter`) and of addresses for
/// HTTP/2 (`unix:/path`, `http://host:port`), or one [`SocketAddr`] for HTTP/2, as tonic takes it.
///
/// Callers by Python's grpcio over `unix:/path` need its option `grpc.default_authority` (set to
/// `localhost`, say): without it the escaped path is the authority of their calls, which is no
/// authority in HTTP/2's sense and refused.
///
/// ```
/// # use partywall::Addresses;
/// let _both: Addresses = "greeter,http://127.0.0.1:50051".into();
/// let _owned: Addresses = String::from("greeter").into();
/// let _tcp: Addresses = std::net::SocketAddr::from(([127, 0, 0, 1], 50051)).into();
/// ```
#[derive(Clone, Debug)]
pub struct Addresses(String);

impl Addresses {
    pub(super) fn targets(&self) -> Result<Vec<Target>, TargetError> {
        self.0.split(',').map(Target::parse_listen).collect()
    }
}

impl From<&str> for Addresses {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Addresses {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&String> for Addresses {
    fn from(text: &String) -> Self {
        Self(text.clone())
    }
}

impl From<SocketAddr> for Addresses {
    fn from(address: SocketAddr) -> Self {
        Self(format!("http://{address}"))
    }
}
