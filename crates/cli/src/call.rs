//! `partywall call`: calls a method with JSON, of a service whose types it learns while it runs.
//!
//! The types come from the service's reflection or from .proto files ([`schema`]). A call is the same for
//! all four kinds of methods: a stream of requests, read as JSON ([`json`]), and a stream of answers. A
//! method that takes one message has it read before the call begins, so that a mistake in it is no call.
//!
//! Ctrl-C ends the process, and that ends the call as for every caller that goes away.

mod contained;
mod descriptors;
mod failure;
mod json;
mod metadata;
mod schema;
mod template;

use std::error::Error;
use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use partywall::{Channel, Endpoint};
use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, MethodDescriptor, ReflectMessage, ServiceDescriptor,
};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};

use crate::compose;
use crate::socket::Socket;
use failure::Failed;
use json::{Input, Messages};
use schema::Schema;

pub(crate) const HELP: &str = "\
Examples:
  partywall call greeter                       the services behind the name `greeter`
  partywall call greeter hello.Greeter         the methods of one, with their types
  partywall call greeter hello.Greeter/SayHello --describe
  partywall call greeter hello.Greeter/SayHello --data '{\"name\": \"you\"}'
  partywall call unix:/run/greeter.sock hello.Greeter/SayHello --data @request.json
  partywall call greeter hello.Greeter/Chat --metadata 'trace-bin: AAEC' --timeout 5s < names.json
  partywall call greeter hello.Greeter/SayHello --proto hello.proto --data '{}'

Messages are JSON as proto3 defines it: 64-bit numbers as strings, bytes in base64, enums by name. A method
that takes a stream takes one JSON value after the other. Each answer is one line of standard output,
written when it comes.

The types are those that the service's reflection tells. Reflection is a method as well, which the policy
has to allow: `grpc.reflection.v1.ServerReflection/*`. With --proto no reflection is needed.

Exit status: 0 when the status of the call is OK; 64 and the code of the status when it is another one, as
69 for NOT_FOUND (5), for the calls of reflection as well; 1 when there was no call, or an answer was
wrong; 2 for wrong arguments. Code, message and details are on standard error.";

/// What tonic takes unless told otherwise.
const MOST: usize = 4 << 20;

/// What is called, and how.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Whom: NAME, partywall:///NAME, http://HOST:PORT or unix:/PATH.
    target: String,
    /// What: package.Service/Method. A service alone lists its methods; without it services are listed.
    method: Option<String>,
    /// The messages; `@FILE` reads them from a file, `@-` from standard input.
    ///
    /// Without it they are read from standard input, and at a terminal there is one empty message.
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// An entry of the call's metadata; the value of a key that ends with `-bin` is base64.
    #[arg(long, value_name = "KEY: VALUE", value_parser = metadata::entry)]
    metadata: Vec<metadata::Entry>,
    /// By when all must be done, such as `500ms` or `1m30s`; unlimited unless given.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    /// Wait until somebody serves the name, or the address answers.
    #[arg(long)]
    wait: bool,
    /// How many bytes a message of the answer may have. As JSON it takes some times as much memory.
    #[arg(long, value_name = "BYTES", default_value_t = MOST)]
    max_answer: usize,
    /// A .proto file with types, instead of the service's reflection.
    #[arg(long, value_name = "FILE")]
    proto: Vec<PathBuf>,
    /// Where .proto files are looked for; unless given, beside those of --proto.
    #[arg(long, value_name = "DIR", requires = "proto")]
    include: Vec<PathBuf>,
    /// Print a message that the method takes, with all its fields, instead of calling it.
    #[arg(long, requires = "method", conflicts_with_all = ["data", "metadata"])]
    describe: bool,
    /// Tell on standard error the route, what protects it, headers, trailers and the time.
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    socket: Socket,
}

fn duration(text: &str) -> Result<Duration, String> {
    let found = compose::parse_duration(text).filter(|found| !found.is_zero());
    found.ok_or_else(|| "write a time such as `10s`, `1m30s` or `500ms`".to_owned())
}

/// Calls, lists or describes.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let until = arguments.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    if let Some(until) = until {
        end_at(until);
    }
    let done = match connect(&runtime, arguments, until) {
        Ok(channel) => runtime.block_on(Work { arguments, channel, until }.run()),
        Err(error) => Err(error),
    };
    // Whoever reads standard input may do so for ever.
    runtime.shutdown_background();
    match done {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            let failed = error.downcast::<Failed>()?;
            crate::remark(&format!("partywall: {failed}"));
            Ok(failed.exit_code())
        }
    }
}

/// How long after its time a command that has not said so itself is ended.
const AFTER: Duration = Duration::from_secs(1);

/// Ends the process when it is over time: nothing else interrupts work on types or a write that blocks.
fn end_at(until: Instant) {
    std::thread::spawn(move || {
        let over = until.checked_add(AFTER).unwrap_or(until);
        std::thread::sleep(over.saturating_duration_since(Instant::now()));
        crate::remark("partywall: DEADLINE_EXCEEDED: the time of --timeout is over");
        std::process::exit(failure::OVER_TIME);
    });
}

fn connect(
    runtime: &tokio::runtime::Runtime,
    arguments: &Arguments,
    until: Option<Instant>,
) -> Result<Channel, Box<dyn Error>> {
    let target = match arguments.target.contains(':') {
        true => arguments.target.clone(),
        false => format!("partywall:{}", arguments.target),
    };
    arguments.socket.ask(|socket| {
        let mut endpoint = Endpoint::new(target)?.wait_for_ready(arguments.wait);
        if let Some(socket) = socket {
            endpoint = endpoint.coordinator(socket);
        }
        runtime.block_on(async {
            let Some(until) = until else { return endpoint.connect().await };
            let connected = tokio::time::timeout_at(until.into(), endpoint.connect()).await;
            connected
                .unwrap_or(Err(partywall::Error::TimedOut(arguments.timeout.unwrap_or_default())))
        })
    })
}

/// A command with its channel.
struct Work<'a> {
    arguments: &'a Arguments,
    channel: Channel,
    until: Option<Instant>,
}

impl Work<'_> {
    async fn run(&self) -> Result<(), Box<dyn Error>> {
        let Arguments { proto, include, .. } = self.arguments;
        if let Some(route) = self.channel.route() {
            self.tell(|| format!("route: {route}"));
            self.tell(|| format!("security: {}", route.security()));
        }
        let schema = match proto.is_empty() {
            true => Schema::reflected(self.channel.clone(), self.until),
            false => Schema::compiled(proto, include)?,
        };
        let Some(path) = &self.arguments.method else {
            let services = schema.services().await?;
            return crate::say(
                &services.iter().map(|name| format!("{name}\n")).collect::<String>(),
            );
        };
        let path = path.strip_prefix('/').unwrap_or(path);
        let (service, method) = match path.split_once('/') {
            Some((service, method)) => (service, Some(method)),
            None => (path, None),
        };
        let service = schema.service(service).await?;
        match method {
            Some(method) if self.arguments.describe => {
                template::describe(&find(&service, method)?.input())
            }
            Some(method) => self.call(&schema, &find(&service, method)?).await,
            None if self.arguments.describe => {
                Err(format!("--describe {path}: write a method, as in `{path}/METHOD`").into())
            }
            None => crate::say(&service.methods().map(|method| line(&method)).collect::<String>()),
        }
    }

    async fn call(&self, schema: &Schema, method: &MethodDescriptor) -> Result<(), Box<dyn Error>> {
        let name = name(method);
        let (requests, broken) = requests(method, self.input(method)?).await?;
        let mut request = Request::new(requests);
        *request.metadata_mut() = metadata::map(&self.arguments.metadata);
        limit(&mut request, self.until);
        let begin = Instant::now();
        let types = || method.parent_pool().clone();
        let failed = |status: Status| {
            // tonic names the limit.
            let limit = format!("the limit is: {} bytes", self.arguments.max_answer);
            let remedy =
                match status.code() == Code::OutOfRange && status.message().contains(&limit) {
                    true => "\nremedy: if it is the answer that is so long, --max-answer BYTES",
                    false => "",
                };
            Failed { what: name.clone(), status, types: types(), remedy }
        };
        let done = tokio::select! {
            biased;
            Ok((error, _unfinished)) = broken => return Err(error.into()),
            done = self.answers(schema, method, request) => done,
        };
        self.tell(|| format!("time: {:?}", begin.elapsed()));
        match done {
            Err(Ended::Failed(status)) => {
                self.tell_metadata("trailer", status.metadata());
                Err(failed(*status).into())
            }
            Err(Ended::Unwritten(error)) => Err(error),
            Ok(()) => Ok(()),
        }
    }

    /// Makes the call, and writes its answers.
    async fn answers(
        &self,
        schema: &Schema,
        method: &MethodDescriptor,
        request: Request<Requests>,
    ) -> Result<(), Ended> {
        let grpc = Grpc::new(self.channel.clone());
        let mut grpc = grpc.max_decoding_message_size(self.arguments.max_answer);
        let path = format!("/{}", name(method)).parse::<PathAndQuery>();
        let path = path.map_err(|_| Status::unimplemented("its name is no path"))?;
        grpc.ready().await?;
        let response = grpc.streaming(request, path, Messages(method.output())).await?;
        self.tell_metadata("header", response.metadata());
        let mut answers = response.into_inner();
        let mut known = method.parent_pool().clone();
        let mut count = 0_u64;
        while let Some(answer) = answers.message().await? {
            count += 1;
            if count > 1 && !method.is_server_streaming() {
                return Err(Status::internal("more than one answer to a unary call").into());
            }
            let unknown = answer.unknown_fields().count();
            if unknown > 0 {
                self.tell(|| {
                    format!("fields that {} does not have: {unknown}", method.output().full_name())
                });
            }
            let line = shown(schema, &mut known, answer).await;
            let line = line.map_err(|error| Ended::Unwritten(error.into()))?;
            crate::say(&line).map_err(Ended::Unwritten)?;
        }
        if let Some(trailers) = answers.trailers().await? {
            self.tell_metadata("trailer", &trailers);
        }
        match count {
            0 if !method.is_server_streaming() => {
                Err(Status::internal("no answer, and the status OK").into())
            }
            _ => Ok(()),
        }
    }

    /// Where the requests come from.
    fn input(&self, method: &MethodDescriptor) -> Result<Input, Box<dyn Error>> {
        let stdin =
            || ("standard input".to_owned(), Box::new(std::io::stdin()) as Box<dyn Read + Send>);
        let (from, reader) = match self.arguments.data.as_deref() {
            Some("@-") => stdin(),
            None if !std::io::stdin().is_terminal() => stdin(),
            None => ("the terminal".to_owned(), Box::new(std::io::empty()) as _),
            Some(data) => match data.strip_prefix('@') {
                Some(path) => {
                    let file = std::fs::File::open(path);
                    let file = file.map_err(|error| format!("--data @{path}: {error}"))?;
                    (path.to_owned(), Box::new(file) as _)
                }
                None => {
                    let data = std::io::Cursor::new(data.to_owned());
                    ("--data".to_owned(), Box::new(data) as _)
                }
            },
        };
        Ok(Input::new(from, reader, method.input()))
    }

    fn tell(&self, line: impl FnOnce() -> String) {
        if self.arguments.verbose {
            crate::remark(&line());
        }
    }

    fn tell_metadata(&self, kind: &str, entries: &MetadataMap) {
        for entry in metadata::lines(entries) {
            self.tell(|| format!("{kind}: {entry}"));
        }
    }
}

/// A message in one line, with all that is packed into it: the types of that are in files which the service
/// may tell. What it has told is kept in `known`.
async fn shown(
    schema: &Schema,
    known: &mut DescriptorPool,
    message: DynamicMessage,
) -> Result<String, json::Formless> {
    let mut line = json::line(&message);
    while let Err(json::Formless::Unknown(name)) = &line {
        if known.get_message_by_name(name).is_none() {
            let Some(more) = schema.with(known, name).await else { break };
            *known = more;
        }
        let kind = known.get_message_by_name(message.descriptor().full_name());
        let Some(kind) = kind else { break };
        let again = json::decode(kind, &message.encode_to_vec()[..]);
        line = json::line(&again.map_err(json::Formless::Wrong)?);
    }
    line
}

/// Why there are no more answers.
enum Ended {
    Failed(Box<Status>),
    /// An answer cannot be written.
    Unwritten(Box<dyn Error>),
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        Self::Failed(Box::new(status))
    }
}

type Requests = Pin<Box<dyn Stream<Item = DynamicMessage> + Send>>;

/// Why the rest of the input is no message; and what keeps the stream of requests from ending, since one
/// that ends would be taken for whole.
type Broken = (String, mpsc::Sender<DynamicMessage>);

/// The requests of a call, as they are read.
async fn requests(
    method: &MethodDescriptor,
    mut input: Input,
) -> Result<(Requests, oneshot::Receiver<Broken>), Box<dyn Error>> {
    let (broken, breaks) = oneshot::channel();
    if !method.is_client_streaming() {
        let request = tokio::task::spawn_blocking(move || input.only()).await??;
        return Ok((Box::pin(tokio_stream::once(request)), breaks));
    }
    let (sender, receiver) = mpsc::channel(1);
    tokio::task::spawn_blocking(move || {
        for message in input {
            let sent = match message {
                Ok(message) => sender.blocking_send(message),
                Err(error) => {
                    let _call_over = broken.send((error, sender));
                    return;
                }
            };
            // The call has ended.
            if sent.is_err() {
                return;
            }
        }
    });
    Ok((Box::pin(ReceiverStream::new(receiver)), breaks))
}

/// Gives a call what is left of the time.
fn limit<T>(request: &mut Request<T>, until: Option<Instant>) {
    if let Some(until) = until {
        request.set_timeout(until.saturating_duration_since(Instant::now()));
    }
}

fn name(method: &MethodDescriptor) -> String {
    format!("{}/{}", method.parent_service().full_name(), method.name())
}

fn find(service: &ServiceDescriptor, name: &str) -> Result<MethodDescriptor, String> {
    service.methods().find(|method| method.name() == name).ok_or_else(|| {
        let known: Vec<String> = service.methods().map(|method| method.name().to_owned()).collect();
        format!("{} has no method `{name}`; it has {}", service.full_name(), known.join(", "))
    })
}

/// A method with its types.
fn line(method: &MethodDescriptor) -> String {
    let kind = |streams| if streams { "stream " } else { "" };
    format!(
        "{} ({}{}) returns ({}{})\n",
        name(method),
        kind(method.is_client_streaming()),
        method.input().full_name(),
        kind(method.is_server_streaming()),
        method.output().full_name()
    )
}
