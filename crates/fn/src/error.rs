//! The error that a function answers with.

use alloc::string::String;
use core::fmt;

/// The status codes of gRPC that a function may answer with, as its documentation numbers them.
///
/// # References
/// <https://grpc.io/docs/guides/status-codes/>
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    /// An error that has no code of its own.
    Unknown = 2,
    /// The request is wrong, whatever the state of the world.
    InvalidArgument = 3,
    /// What was asked for is not there.
    NotFound = 5,
    /// What was to be made is there already.
    AlreadyExists = 6,
    /// The caller must not do this.
    PermissionDenied = 7,
    /// Something is used up.
    ResourceExhausted = 8,
    /// The state of the world is not what the request needs.
    FailedPrecondition = 9,
    /// The operation was aborted, as by a conflict.
    Aborted = 10,
    /// Beyond what there is.
    OutOfRange = 11,
    /// Not done by this function.
    Unimplemented = 12,
    /// Something that must hold does not.
    Internal = 13,
    /// What the function needs cannot be reached now.
    Unavailable = 14,
    /// Data are lost or damaged.
    DataLoss = 15,
    /// The caller has not said who it is.
    Unauthenticated = 16,
}

impl Code {
    /// The code with this number; [`Self::Unknown`] for those that no function may answer with.
    pub fn of(number: u32) -> Self {
        const CODES: [Code; 14] = [
            Code::InvalidArgument,
            Code::NotFound,
            Code::AlreadyExists,
            Code::PermissionDenied,
            Code::ResourceExhausted,
            Code::FailedPrecondition,
            Code::Aborted,
            Code::OutOfRange,
            Code::Unimplemented,
            Code::Internal,
            Code::Unavailable,
            Code::DataLoss,
            Code::Unauthenticated,
            Code::Unknown,
        ];
        CODES.into_iter().find(|code| *code as u32 == number).unwrap_or(Code::Unknown)
    }
}

/// Why a function does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The code that the caller sees.
    pub code: Code,
    /// The text that the caller sees; what is over [`crate::cell::MESSAGE_BYTES`] is cut off.
    pub message: String,
}

impl Error {
    /// One with this code and text.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The request is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}

impl core::error::Error for Error {}

impl From<String> for Error {
    fn from(message: String) -> Self {
        Self::new(Code::Unknown, message)
    }
}

impl From<&str> for Error {
    fn from(message: &str) -> Self {
        Self::new(Code::Unknown, message)
    }
}
