//! Why a call over a ring did not end by itself.

use partywall_shm::link::LinkError;
use tonic::Status;

use crate::link::broken::Broken;

/// How a call ended early.
#[derive(Debug)]
pub(super) enum Failed {
    /// With a status from the service; the link goes on.
    Status(Status),
    /// With a status of our own; the service is told to stop.
    Abort(Status),
    /// By the deadline; the call is to be reset.
    Expired,
    /// The server wants no more calls, and has not seen this one.
    Unsent,
    /// By the link's end.
    Link(Broken),
    /// By the link's end: the service kept this thread for too long.
    CutOff(Broken),
}

impl From<Broken> for Failed {
    fn from(why: Broken) -> Self {
        match why {
            Broken::Link(LinkError::TimedOut) => Self::Expired,
            other => Self::Link(other),
        }
    }
}

impl From<LinkError> for Failed {
    fn from(why: LinkError) -> Self {
        Broken::from(why).into()
    }
}

impl From<partywall_shm::ring::Violation> for Failed {
    fn from(why: partywall_shm::ring::Violation) -> Self {
        Broken::from(why).into()
    }
}

impl From<partywall_call::Error> for Failed {
    fn from(why: partywall_call::Error) -> Self {
        Self::Link(why.into())
    }
}
