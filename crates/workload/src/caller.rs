//! What the calls of one connection share.

use std::sync::Arc;

use tonic::Status;

use crate::certificate::Certificate;
use crate::users::{Kind, Place, Users};

/// The most bytes of a request's message, and of what is read of a connection before its calls take it.
pub(crate) const BYTES: usize = 64 << 10;

/// What a connection's calls have.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) certificate: Certificate,
    users: Arc<Users>,
    uid: u32,
}

impl Caller {
    pub(crate) fn new(certificate: Certificate, users: Arc<Users>, uid: u32) -> Self {
        Self { certificate, users, uid }
    }

    /// A place for one more call that stays open.
    pub(crate) fn place(&self) -> Result<Place, Status> {
        Users::place(&self.users, self.uid, Kind::Stream).ok_or_else(|| {
            let uid = self.uid;
            Status::resource_exhausted(format!(
                "user {uid} has as many open calls here as one may have; remedy: end some"
            ))
        })
    }
}
