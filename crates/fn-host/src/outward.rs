//! Calls that functions make to services.
//!
//! ```text
//! function -> dispatcher's thread: Outwards::call -> task: channel to the service -> Answer -> function
//!                                  Outwards::unwanted -> the task is ended, and so is its call
//! ```
//!
//! The coordinator sees the host as the caller, and not the function's owner. So the host asks its own policy
//! first, which says what each owner's functions may call; what the coordinator's policy allows the host is
//! the most that any of them may.
//!
//! A call has the function's deadline. A channel to each service is made at the first call, and kept.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use partywall::{Channel, Endpoint};
use partywall_functions::dispatcher::{MESSAGE, Number};
use partywall_functions::runtime::{ServiceCall, Services};
use partywall_functions::schedule::Owner;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tonic::Status;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;

use crate::policy::Policy;

/// What host and services both know.
#[derive(Debug)]
pub(crate) struct Known {
    policy: RwLock<Arc<Policy>>,
    /// Their names; an owner keeps its number as long as the host runs.
    owners: RwLock<HashMap<Owner, Arc<str>>>,
}

impl Known {
    pub(crate) fn new(policy: Policy) -> Self {
        Self { policy: RwLock::new(Arc::new(policy)), owners: RwLock::default() }
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
    }

    pub(crate) fn add(&self, owner: Owner, name: &str) {
        let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
        owners.insert(owner, name.into());
    }

    fn owner(&self, owner: Owner) -> Option<Arc<str>> {
        self.owners.read().unwrap_or_else(PoisonError::into_inner).get(&owner).cloned()
    }
}

/// The services that functions call.
#[derive(Debug)]
pub(crate) struct Outwards {
    known: Arc<Known>,
    coordinator: Option<PathBuf>,
    on: Handle,
    channels: HashMap<String, Channel>,
    tasks: Arc<Mutex<HashMap<Number, AbortHandle>>>,
    /// Dropped with the dispatcher.
    _alive: watch::Sender<()>,
}

impl Outwards {
    pub(crate) fn new(
        known: Arc<Known>,
        coordinator: Option<PathBuf>,
        on: Handle,
        alive: watch::Sender<()>,
    ) -> Self {
        let (channels, tasks) = (HashMap::new(), Arc::default());
        Self { known, coordinator, on, channels, tasks, _alive: alive }
    }

    /// The channel to a service; a text where its name is none.
    fn channel(&mut self, service: &str) -> Result<Channel, String> {
        if let Some(channel) = self.channels.get(service) {
            return Ok(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("partywall:///{service}"));
        let mut endpoint = endpoint.map_err(|error| error.to_string())?;
        if let Some(coordinator) = &self.coordinator {
            endpoint = endpoint.coordinator(coordinator);
        }
        let channel = endpoint.connect_lazy();
        self.channels.insert(service.to_owned(), channel.clone());
        Ok(channel)
    }
}

impl Services for Outwards {
    fn call(&mut self, call: ServiceCall) {
        let ServiceCall { owner, service, method, request, until, answer, .. } = call;
        if !method.starts_with('/') {
            let text =
                format!("`{method}` is no path of a method; write `/package.Service/Method`");
            return answer.give(Err((tonic::Code::InvalidArgument as u32, text)));
        }
        let owner = self.known.owner(owner);
        let policy = self.known.policy();
        let rules = owner.as_deref().and_then(|owner| policy.rules(owner));
        let refused = |text: String| (tonic::Code::PermissionDenied as u32, text);
        if !rules.is_some_and(|rules| rules.may_call(&service, &method)) {
            let owner = owner.as_deref().unwrap_or("nobody");
            return answer.give(Err(refused(format!(
                "functions of `{owner}` may not call {service}{method}; the policy of the function \
                 host has to list it under [owner.{owner:?}] services"
            ))));
        }
        let _entered = self.on.enter();
        let channel = match self.channel(&service) {
            Ok(channel) => channel,
            Err(text) => return answer.give(Err((tonic::Code::InvalidArgument as u32, text))),
        };
        let (number, tasks) = (answer.call(), self.tasks.clone());
        let of_task = tasks.clone();
        let mut tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let task = self.on.spawn(async move {
            let answered = unary(channel, &method, request, until).await;
            of_task.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
            answer.give(match answered {
                Ok(reply) => Ok(reply.to_vec()),
                Err(status) => Err((status.code() as u32, status.message().to_owned())),
            });
        });
        tasks.insert(number, task.abort_handle());
    }

    fn unwanted(&mut self, call: Number) {
        let task = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).remove(&call);
        if let Some(task) = task {
            task.abort();
        }
    }
}

async fn unary(
    channel: Channel,
    method: &str,
    request: Vec<u8>,
    until: Option<std::time::Instant>,
) -> Result<Bytes, Status> {
    let path: PathAndQuery = method
        .parse()
        .map_err(|_| Status::invalid_argument(format!("`{method}` is no path of a method")))?;
    let mut request = tonic::Request::new(Bytes::from(request));
    if let Some(until) = until {
        request.set_timeout(until.saturating_duration_since(std::time::Instant::now()));
    }
    let mut grpc = Grpc::new(channel).max_decoding_message_size(MESSAGE);
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    Ok(grpc.unary(request, path, Raw).await?.into_inner())
}

/// Messages in their bytes.
#[derive(Debug, Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put(buffer, item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        use bytes::Buf as _;
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
