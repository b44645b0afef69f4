//! Statuses that a call has alike on every route.

use tonic::Status;

/// The status of a call whose deadline has passed at its caller.
pub(crate) fn expired() -> Status {
    Status::deadline_exceeded("the deadline passed before the answer came")
}

/// The status of a call whose deadline has passed in the service.
pub(crate) fn expired_in_service() -> Status {
    Status::deadline_exceeded("the deadline passed in the service")
}

/// The status of a call whose handler, or the body of whose answer, has panicked.
pub(crate) fn panicked() -> Status {
    Status::internal("the handler panicked")
}
