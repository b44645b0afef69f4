//! The host over gRPC: the service [`Functions`].
//!
//! Who calls is [`partywall::Peer`], by the kernel's word; who has none comes over HTTP/2, is `network`, and
//! has `Invoke` alone.
//!
//! A list comes in pages. The token of a page is the name of the last function before it, so a host keeps
//! nothing of a reader. Who makes a token up learns no more than by a list from its begin.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use partywall::{Deadline, Peer};
use partywall_functions::source::File;
use prost::Message as _;
use serde_bytes::ByteBuf;
use tonic::{Request, Response, Status};

use crate::checks;
use crate::host::{Code, Deployment, Host, Listed};
use crate::logs::{Line, Wanted};
use crate::policy::Caller;
use crate::proto::functions_server::{Functions, FunctionsServer};
use crate::proto::{self, deploy_request};
use crate::registry::{Record, Version};
use crate::reply::{CALL, blocking};

/// The longest message: a request with what is around it.
pub(crate) const LONGEST: usize = partywall_functions::dispatcher::MESSAGE + (64 << 10);

/// The most functions of a page of a list.
const PAGE: usize = 1000;
/// The most bytes of a page, unless its only function has more: with all versions that has at most
/// [`KEPT`](crate::registry::KEPT) times [`PARAMETERS`](checks::PARAMETERS) and some hundred bytes for each.
const PAGE_BYTES: usize = 1 << 20;

/// The service of a host, to be added to a server.
pub fn of(host: Arc<Host>) -> FunctionsServer<Service> {
    let server = FunctionsServer::new(Service(host));
    server.max_decoding_message_size(LONGEST).max_encoding_message_size(LONGEST)
}

/// The methods.
#[derive(Debug)]
pub struct Service(Arc<Host>);

fn caller<T>(request: &Request<T>) -> Caller {
    match request.extensions().get::<Peer>() {
        Some(peer) => Caller::Process { uid: peer.uid(), principals: peer.principals().to_vec() },
        None => Caller::Network,
    }
}

/// The caller of what is for processes of this host only.
fn process<T>(request: &Request<T>) -> Result<Caller, Status> {
    match caller(request) {
        Caller::Network => Err(Status::permission_denied(
            "nobody vouches for who comes over HTTP/2, and such a caller has Invoke alone; ask the function \
             host by its name at the coordinator",
        )),
        process => Ok(process),
    }
}

#[tonic::async_trait]
impl Functions for Service {
    async fn invoke(
        &self,
        request: Request<proto::InvokeRequest>,
    ) -> Result<Response<proto::InvokeReply>, Status> {
        let caller = caller(&request);
        let deadline = request.extensions().get::<Deadline>().map(|deadline| deadline.0);
        let proto::InvokeRequest { function, body } = request.into_inner();
        let reply = self.0.invoke(&caller, &function, body.into(), deadline).await?;
        let mut response = Response::new(proto::InvokeReply { body: reply.body.into() });
        response.metadata_mut().insert(CALL, reply.call.into());
        Ok(response)
    }

    async fn deploy(
        &self,
        request: Request<proto::DeployRequest>,
    ) -> Result<Response<proto::Version>, Status> {
        let caller = process(&request)?;
        let asked = request.into_inner();
        let code = match asked.code {
            Some(deploy_request::Code::Sources(sources)) => {
                let file = |file: proto::SourceFile| File { path: file.path, text: file.text };
                Code::Sources(sources.files.into_iter().map(file).collect())
            }
            Some(deploy_request::Code::Image(bytes)) => Code::Image(bytes.into()),
            None => {
                return Err(Status::invalid_argument("there is no code: give sources or an image"));
            }
        };
        let name = asked.function.clone();
        let deployment = Deployment {
            name: asked.function,
            owner: asked.owner,
            code,
            budget_us: asked.budget_us,
            idempotent: asked.idempotent,
            parameters: values(asked.parameters),
            secrets: values(asked.secrets),
        };
        let (record, tries) = self.0.deploy(&caller, deployment).await?;
        let mut deployed = version(&name, &record, record.version());
        deployed.tries = tries;
        Ok(Response::new(deployed))
    }

    async fn list(
        &self,
        request: Request<proto::ListRequest>,
    ) -> Result<Response<proto::ListReply>, Status> {
        let (host, who) = (self.0.clone(), process(&request)?);
        let proto::ListRequest { versions, page_size, page_token } = request.into_inner();
        if !page_token.is_empty() && checks::name(&page_token).is_err() {
            return Err(Status::invalid_argument(format!(
                "page_token has {} bytes and is none that this host has given; begin again without one",
                page_token.len()
            )));
        }
        let most = match page_size as usize {
            0 => PAGE,
            most => most.min(PAGE),
        };
        // One more says whether there is another page.
        let listed = blocking(move || host.list_behind(&who, &page_token, most + 1)).await?;
        Ok(Response::new(page(listed, versions, most)))
    }

    async fn logs(
        &self,
        request: Request<proto::LogsRequest>,
    ) -> Result<Response<proto::LogsReply>, Status> {
        let asked = request.get_ref();
        let wanted = Wanted { lines: asked.lines as usize, call: asked.call, after: asked.after };
        let lines = self.0.logs(&process(&request)?, &asked.function, wanted)?;
        let line = |Line { number, time_ms, call, text }| proto::LogLine {
            number,
            time_ms,
            call,
            text: text.into(),
        };
        Ok(Response::new(proto::LogsReply { lines: lines.into_iter().map(line).collect() }))
    }

    async fn remove(
        &self,
        request: Request<proto::RemoveRequest>,
    ) -> Result<Response<proto::Removed>, Status> {
        self.0.remove(&process(&request)?, &request.get_ref().function).await?;
        Ok(Response::new(proto::Removed {}))
    }

    async fn rollback(
        &self,
        request: Request<proto::RollbackRequest>,
    ) -> Result<Response<proto::Version>, Status> {
        let asked = request.get_ref();
        let record = self.0.roll_back(&process(&request)?, &asked.function, asked.version).await?;
        Ok(Response::new(version(&asked.function, &record, record.version())))
    }

    async fn preload(
        &self,
        request: Request<proto::PreloadRequest>,
    ) -> Result<Response<proto::Preloaded>, Status> {
        self.0.preload(&process(&request)?, &request.get_ref().function).await?;
        Ok(Response::new(proto::Preloaded {}))
    }

    async fn ban(
        &self,
        request: Request<proto::BanRequest>,
    ) -> Result<Response<proto::Banned>, Status> {
        let asked = request.get_ref();
        self.0.ban(&process(&request)?, &asked.function, asked.banned).await?;
        Ok(Response::new(proto::Banned {}))
    }

    async fn fetch(
        &self,
        request: Request<proto::FetchRequest>,
    ) -> Result<Response<proto::FetchReply>, Status> {
        let asked = request.get_ref();
        let (host, who) = (self.0.clone(), process(&request)?);
        let (name, version) = (asked.function.clone(), asked.version);
        let image = blocking(move || host.fetch(&who, &name, version)).await?;
        Ok(Response::new(proto::FetchReply { image: image.into() }))
    }
}

fn values(values: HashMap<String, Bytes>) -> BTreeMap<String, ByteBuf> {
    values.into_iter().map(|(name, value)| (name, ByteBuf::from(value.to_vec()))).collect()
}

fn version(name: &str, record: &Record, Version { number, deployed }: &Version) -> proto::Version {
    let names = |values: &BTreeMap<String, ByteBuf>| values.keys().cloned().collect();
    proto::Version {
        function: name.into(),
        number: *number,
        owner: record.owner.clone(),
        sources: deployed.sources.clone(),
        tries: 0,
        deployed_ms: deployed.deployed_ms,
        image_bytes: deployed.image_bytes,
        key: deployed.key.clone(),
        parameters: names(&deployed.parameters),
        secrets: names(&deployed.secrets),
        budget_us: deployed.budget_us,
        idempotent: deployed.idempotent,
    }
}

/// The first of these functions that a page has room for.
fn page(listed: Vec<Listed>, with_all: bool, most: usize) -> proto::ListReply {
    let (all, mut bytes) = (listed.len(), 0);
    let mut functions: Vec<proto::Function> = Vec::new();
    for one in listed.into_iter().take(most) {
        let one = function(one, with_all);
        bytes += one.encoded_len();
        if bytes > PAGE_BYTES && !functions.is_empty() {
            break;
        }
        functions.push(one);
    }
    let last = functions.last().filter(|_| functions.len() < all);
    let last = last.and_then(|one| one.version.as_ref());
    let next_page_token = last.map_or_else(String::new, |version| version.function.clone());
    proto::ListReply { functions, next_page_token }
}

/// A function as it is listed.
fn function(Listed { name, record, share, report }: Listed, with_all: bool) -> proto::Function {
    let others = record.versions.iter().filter(|of| with_all && of.number != record.current);
    let others = others.map(|of| version(&name, &record, of)).collect();
    proto::Function {
        version: Some(version(&name, &record, record.version())),
        others,
        share: share.into(),
        banned: record.is_banned || report.as_ref().is_some_and(|report| report.is_banned),
        loaded: report.as_ref().is_some_and(|report| report.is_loaded),
        strikes: report.as_ref().map_or(0, |report| report.strikes),
        counts: report.map(|report| {
            let counts = report.counts;
            let quantile = |part| counts.quantile(part).map_or(0, |time| time.as_nanos() as u64);
            proto::Counts {
                calls: counts.calls,
                replies: counts.replies,
                errors: counts.errors,
                overruns: counts.overruns,
                failures: counts.failures,
                refused: counts.refused,
                cold: counts.cold,
                cpu_us: counts.cpu_ns / 1000,
                p50_ns: quantile(0.5),
                p99_ns: quantile(0.99),
            }
        }),
    }
}
