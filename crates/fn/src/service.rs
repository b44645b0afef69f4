//! Calls to services, through the runtime.

use alloc::string::String;
use alloc::vec::Vec;

use crate::{Code, Error};

/// Calls a method of a service by its path (`/package.Service/Method`), with a message in its bytes, and
/// waits for the answer's.
///
/// The function waits without a CPU: its worker runs others meanwhile. The wait counts against the call's
/// deadline, not against the function's budget.
///
/// # Errors
/// The status of the call: PERMISSION_DENIED where the function's owner may not call it, UNAVAILABLE where
/// nobody serves it, RESOURCE_EXHAUSTED where the answer finds no room in memory, or what the service has
/// answered.
pub fn call(service: &str, method: &str, request: &[u8]) -> Result<Vec<u8>, Error> {
    let (code, reply) = crate::rt::call(service, method, request);
    match code {
        0 => Ok(reply.to_vec()),
        code => Err(Error::new(Code::of(code), String::from_utf8_lossy(reply))),
    }
}
