//! What is there for HTTP/2 in a build without the feature `http2`: no listener, and nothing to set.

use std::path::Path;
use std::sync::Arc;

use partywall_abi::name::ServiceName;
use tokio::sync::watch;

use super::options::Served;
use crate::coordinator::Client;
use crate::error::Error;
use crate::pins::Pins;
use crate::target::{Target, TargetError};

/// Nothing can be set.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {}

/// There are none.
pub(super) struct TlsTerms;

impl TlsTerms {
    pub(super) async fn new(_: Arc<Client>, _: &[ServiceName], _: &Pins) -> Result<Self, Error> {
        Ok(Self)
    }
}

/// There is none.
pub(super) enum Listener {}

impl Listener {
    pub(super) async fn tcp(url: &str) -> Result<Self, Error> {
        Err(TargetError::NoHttp2 { text: url.into() }.into())
    }

    pub(super) async fn tls(url: &str, _: TlsTerms) -> Result<Self, Error> {
        Self::tcp(url).await
    }

    pub(super) fn unix(path: &Path) -> Result<Self, Error> {
        Err(TargetError::NoHttp2 { text: Target::Unix(path.into()).to_string() }.into())
    }

    pub(super) fn address(&self) -> Result<Target, Error> {
        match *self {}
    }

    pub(super) async fn serve(self, _: Served, _: usize, _: watch::Receiver<bool>) {
        match self {}
    }
}

pub(super) fn most(_names: bool) -> usize {
    0
}
