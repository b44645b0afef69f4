//! What comes of calls and deployments: a reply, or a status that is the same over the ring and over HTTP.

use partywall_functions::builder::BuildError;
use partywall_functions::dispatcher::{Held, MESSAGE, Outcome};
use partywall_functions::runtime::{self, Finished};
use partywall_functions::schedule::Refused;
use partywall_functions::signed::SignedError;
use partywall_trust::{EnvelopeError, StatementError};
use tonic::{Code, Status};

use crate::registry::{self, RegistryError};

/// The metadata with the number of the call, which its log lines carry.
pub const CALL: &str = "partywall-call";
/// The metadata with the milliseconds after which a refused call may be made again.
pub const AGAIN: &str = "partywall-retry-after-ms";

/// How a call has ended well.
#[derive(Debug)]
pub struct Reply {
    /// The function's reply.
    pub body: Vec<u8>,
    /// The number of the call.
    pub call: u64,
}

/// A call that is over.
pub(crate) struct Ended {
    /// Its number; 0 if it was not taken.
    pub(crate) call: u64,
    pub(crate) reply: Result<Reply, Status>,
    /// Its lines, and the last one of what it was ended by, if not by the function's own word.
    pub(crate) log: Vec<Vec<u8>>,
}

/// The reply of a call that is over, or how it failed.
///
/// # Errors
/// As `Host::invoke`.
pub fn reply(finished: Finished) -> Result<Vec<u8>, Status> {
    end(finished).reply.map(|reply| reply.body)
}

/// What has come of a call.
pub(crate) fn end(finished: Finished) -> Ended {
    let mut log: Vec<_> = finished.lines().map(<[u8]>::to_vec).collect();
    let Finished { call, outcome, .. } = finished;
    let call = call.map_or(0, |number| number.as_u64());
    let is_its_own = matches!(outcome, Outcome::Error(..));
    let mut status = match outcome {
        Outcome::Reply(body) => {
            return Ended { call, reply: Ok(Reply { body, call }), log };
        }
        other => status(other),
    };
    if !is_its_own && call != 0 {
        log.push(format!("ended: {}", status.message()).into_bytes());
    }
    if call != 0 {
        put(&mut status, CALL, call);
    }
    Ended { call, reply: Err(status), log }
}

fn put(status: &mut Status, key: &'static str, number: u64) {
    status.metadata_mut().insert(key, number.into());
}

fn status(outcome: Outcome) -> Status {
    match outcome {
        Outcome::Reply(_) => Status::ok(""),
        Outcome::Error(code, text) => Status::new(error(code), text),
        Outcome::Panic(text) => Status::internal(format!("the function has panicked: {text}")),
        Outcome::Memory => Status::internal("the function needs more memory than one may have"),
        Outcome::Stack => Status::internal("the function needs more stack than one may have"),
        Outcome::Fault(signal, address) => Status::internal(format!(
            "the function was ended by signal {signal} at address {address:#x}"
        )),
        Outcome::Budget(budget) => Status::deadline_exceeded(format!(
            "the function has used up its budget, which is {} us of a CPU",
            budget.as_micros()
        )),
        Outcome::Long(bytes) if bytes <= MESSAGE as u64 => Status::internal(format!(
            "the function's reply has {bytes} bytes, for which there was no room yet, and it must not run again: \
             it has called a service; its next calls have the room"
        )),
        Outcome::Long(bytes) => Status::internal(format!(
            "the function's reply has {bytes} bytes, and a reply has {MESSAGE} at most"
        )),
        Outcome::LongRequest(bytes) => Status::invalid_argument(format!(
            "the request has {bytes} bytes with the parameters, and may have {MESSAGE} at most"
        )),
        Outcome::Refused(why) => {
            let mut status = Status::resource_exhausted(why.to_string());
            if let Refused::Rate { again_ms, .. } = why {
                put(&mut status, AGAIN, again_ms);
            }
            status
        }
        Outcome::Banned => Status::permission_denied(
            "the function is banned, by `partywall fn ban` or for what it has done before; `partywall fn \
             unban` takes that back",
        ),
        Outcome::Cancelled => Status::cancelled("the caller has ended the call"),
        Outcome::Deadline => Status::deadline_exceeded("the call's time is over"),
        Outcome::Unstarted(why) => Status::deadline_exceeded(format!(
            "the call's time is over, and no worker could be started for it: {why}"
        )),
        Outcome::Lost(why) => Status::internal(format!(
            "the function's worker has ended ({why}), and the function must not run again: it has called a \
             service, or has run twice already"
        )),
        Outcome::Deaf => {
            Status::internal("the function could not be stopped, and its worker was ended")
        }
        Outcome::Held(Held::All { processes }) => Status::unavailable(format!(
            "functions wait for services in all {processes} worker processes, and none is free for this one; \
             `fn serve --processes` has more"
        )),
        Outcome::Held(Held::Owner { holds, processes }) => Status::unavailable(format!(
            "functions of this one's owner wait for services in {holds} of {processes} worker processes, and \
             an owner has no more beside others; deadlines of calls, or `share = \"owner\"` in the host's \
             policy, need fewer, and `fn serve --processes` has more"
        )),
        Outcome::Gone => Status::unavailable("the function has just been replaced or removed"),
        Outcome::NotLoaded(why) => {
            Status::unavailable(format!("the function's image is not in memory: {why}"))
        }
    }
}

/// The code of a function's error, which is an error: its word is not to be taken for that.
fn error(code: u16) -> Code {
    match Code::from_i32(code.into()) {
        Code::Ok => Code::Unknown,
        code => code,
    }
}

/// The dispatcher is no more.
pub(crate) fn ended(ended: runtime::Ended) -> Status {
    Status::unavailable(ended.to_string())
}

pub(crate) fn of_signed(error: SignedError) -> Status {
    let remedy = match error {
        SignedError::Statement(StatementError::Envelope(EnvelopeError::Untrusted(_))) => {
            "; put the `builder.pub` of its host into `trusted` in this host's directory, as NAME.pub, and \
             start this host again"
        }
        _ => "",
    };
    Status::failed_precondition(format!("{error}{remedy}"))
}

pub(crate) fn of_registry(error: RegistryError) -> Status {
    let text = error.to_string();
    match error {
        RegistryError::Unknown(_) => Status::not_found(text),
        RegistryError::NoVersion { .. } => Status::failed_precondition(text),
        RegistryError::NotYours(_) => Status::permission_denied(text),
        RegistryError::Full { .. } => Status::resource_exhausted(text),
        RegistryError::Image { .. } => Status::failed_precondition(text),
        // Where it is is nothing to callers.
        RegistryError::Database { source, .. } => {
            tracing::error!("{text}");
            let remedy = registry::remedy(&source);
            Status::internal(format!("the registry of functions: {source}; {remedy}"))
        }
        _ => Status::internal(text),
    }
}

pub(crate) fn of_build(error: &BuildError) -> Status {
    let text = error.to_string();
    match error {
        BuildError::Sandbox(_) | BuildError::Linker(_) | BuildError::Toolchain { .. } => {
            Status::internal(text)
        }
        BuildError::Limit(_) => Status::resource_exhausted(text),
        _ => Status::invalid_argument(text),
    }
}

/// Does what blocks, on a thread for that.
pub(crate) async fn blocking<R: Send + 'static>(
    work: impl FnOnce() -> Result<R, Status> + Send + 'static,
) -> Result<R, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Status::internal(format!("a thread of the function host: {error}")))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_no_worker_could_be_started_for_says_why() {
        let status = status(Outcome::Unstarted("no such file".into()));
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert!(status.message().ends_with("no worker could be started for it: no such file"));
    }

    #[test]
    fn an_error_is_no_success_whatever_its_code() {
        for (number, code) in [(0, Code::Unknown), (5, Code::NotFound), (u16::MAX, Code::Unknown)] {
            let status = status(Outcome::Error(number, "why".into()));
            assert_eq!((status.code(), status.message()), (code, "why"));
        }
    }
}
