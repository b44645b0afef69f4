//! What is there for HTTP/2 in a build without the feature `http2`: no address is one.
#![allow(dead_code, reason = "the items are those of `dial` and `http2`, and none can be had")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use partywall_abi::name::ServiceName;
use tonic::body::Body;

use super::settings::{Answer, Settings};
use super::{Endpoint, Route};
use crate::coordinator::Place;
use crate::error::Error;
use crate::pins::Pins;
use crate::target::{Target, TargetError};

/// How to connect to an address.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    pub(super) within: Duration,
    pub(super) first: bool,
    pub(super) later: bool,
}

/// Nothing can be set.
#[derive(Clone, Default)]
pub(super) struct Network {}

/// There is none.
#[derive(Clone)]
pub(super) struct Address(Infallible);

/// There is none.
pub(super) struct Dialing(Infallible);

/// There is none.
#[derive(Clone)]
pub(crate) struct Transport(Infallible);

impl Address {
    pub(super) fn of(
        (target, _): (&Target, Option<SocketAddr>),
        _: &Network,
        _: &Settings,
        _: (&Place, &Pins),
    ) -> Result<Self, TargetError> {
        Err(TargetError::NoHttp2 { text: target.to_string() })
    }

    pub(super) fn by(self, _dialing: Dialing) -> Self {
        self
    }

    pub(super) fn route(&self) -> Route {
        match self.0 {}
    }

    pub(super) async fn connect(&self, _patience: Patience) -> Result<Transport, Error> {
        match self.0 {}
    }

    pub(super) fn lazy(&self, _patience: Patience) -> Transport {
        match self.0 {}
    }
}

/// There are none.
pub(crate) struct Remotes(Infallible);

impl Remotes {
    pub(super) async fn connect(
        _: &Endpoint,
        _: &ServiceName,
        targets: Vec<Target>,
    ) -> Result<Self, Error> {
        let text = targets.first().map_or_else(String::new, ToString::to_string);
        Err(TargetError::NoHttp2 { text }.into())
    }
}

/// Where calls go.
pub(super) enum Way {
    One(Transport),
    OneOf(Arc<Remotes>),
}

pub(super) fn begin(way: Way, _request: http::Request<Body>) -> Answer {
    match way {
        Way::One(transport) => match transport.0 {},
        Way::OneOf(remotes) => match remotes.0 {},
    }
}
