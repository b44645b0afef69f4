//! Where the types of a service come from: its reflection, or .proto files.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use partywall::Channel;
use prost::Message;
use prost_reflect::prost_types::FileDescriptorProto;
use prost_reflect::{DescriptorPool, ServiceDescriptor};
use tokio_stream::StreamExt;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest as Question;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse as Answer;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use super::contained::contained;
use super::descriptors;
use super::failure::Failed;
use super::limit;
use crate::terminal::in_line;

/// Both versions of reflection have the same messages.
const VERSIONS: [&str; 2] = ["v1", "v1alpha"];
/// The most that reflection may tell to one command: files of a service's types, bytes of all answers, and
/// answers to questions that came of those before.
const MOST_FILES: usize = 1_000;
const MOST_BYTES: usize = 4 << 20;
const MOST_ROUNDS: usize = 64;

/// The types of services.
pub(crate) enum Schema {
    Compiled(DescriptorPool),
    Reflected(Reflected),
}

/// Reflection, of which one command takes only so much.
pub(crate) struct Reflected {
    channel: Channel,
    until: Option<Instant>,
    bytes: Cell<usize>,
    rounds: Cell<usize>,
}

/// Why no more is taken from reflection.
fn too_much() -> String {
    let rounds = format!("{MOST_BYTES} bytes of answers or {MOST_ROUNDS} rounds of questions");
    format!("reflection: more than {MOST_FILES} files, {rounds}; use --proto FILE")
}

impl Schema {
    /// Those that the service tells.
    pub(crate) fn reflected(channel: Channel, until: Option<Instant>) -> Self {
        let (bytes, rounds) = (Cell::new(0), Cell::new(0));
        Self::Reflected(Reflected { channel, until, bytes, rounds })
    }

    /// Those of .proto files.
    pub(crate) fn compiled(files: &[PathBuf], include: &[PathBuf]) -> Result<Self, Box<dyn Error>> {
        let beside = |file: &PathBuf| match file.parent() {
            Some(dir) if dir != Path::new("") => dir.to_owned(),
            _ => PathBuf::from("."),
        };
        let include = match include {
            [] => files.iter().map(beside).collect(),
            named => named.to_vec(),
        };
        let compiled = partywall_build::compiler(include).and_then(|mut compiler| {
            compiler.include_imports(true).open_files(files)?;
            Ok(compiler.descriptor_pool())
        });
        // Its `Debug` has the place of a mistake.
        Ok(Self::Compiled(compiled.map_err(|error| format!("--proto: {error:?}"))?))
    }

    /// The names of all services.
    pub(crate) async fn services(&self) -> Result<Vec<String>, Box<dyn Error>> {
        let mut names: Vec<String> = match self {
            Self::Compiled(pool) => pool.services().map(|s| s.full_name().to_owned()).collect(),
            Self::Reflected(reflected) => {
                let answers = reflected.ask(vec![Question::ListServices("*".into())]).await?;
                let lists = answers.into_iter().filter_map(|answer| match answer {
                    Answer::ListServicesResponse(list) => Some(list.service),
                    _ => None,
                });
                let names: Vec<String> = lists.flatten().map(|service| service.name).collect();
                let checked = names.iter().try_for_each(|name| descriptors::full_name(name));
                checked.map_err(|error| format!("reflection: a service: {error}"))?;
                names
            }
        };
        names.sort();
        Ok(names)
    }

    /// A service, with all types that it uses.
    pub(crate) async fn service(&self, name: &str) -> Result<ServiceDescriptor, Box<dyn Error>> {
        let names = self.services().await?;
        if !names.iter().any(|known| known == name) {
            let known = names.join(", ");
            let text = match self {
                Self::Compiled(_) => format!("there is no service `{name}`; there are: {known}"),
                Self::Reflected(_) => format!(
                    "the server's reflection does not tell of a service `{name}`; it tells of: {known}; \
                     remedy: if the server has it, name its .proto by --proto"
                ),
            };
            return Err(text.into());
        }
        let pool = match self {
            Self::Compiled(pool) => pool.clone(),
            // Google's own types are there already.
            Self::Reflected(reflected) => {
                reflected.files_of(DescriptorPool::global(), name).await?
            }
        };
        let service = pool.get_service_by_name(name);
        service.ok_or_else(|| format!("reflection: no file that it tells has `{name}`").into())
    }

    /// The types of a pool and those of the file that has this one, if somebody tells it.
    pub(crate) async fn with(&self, pool: &DescriptorPool, name: &str) -> Option<DescriptorPool> {
        let Self::Reflected(reflected) = self else { return None };
        let pool = reflected.files_of(pool.clone(), name).await.ok()?;
        pool.get_message_by_name(name).map(|_| pool)
    }
}

impl Reflected {
    /// Adds the file that has a symbol, and all that this one imports.
    async fn files_of(
        &self,
        mut pool: DescriptorPool,
        symbol: &str,
    ) -> Result<DescriptorPool, Box<dyn Error>> {
        let mut files: BTreeMap<String, FileDescriptorProto> = BTreeMap::new();
        let mut questions = vec![Question::FileContainingSymbol(symbol.into())];
        while !questions.is_empty() {
            let asked = files.len();
            for answer in self.ask(std::mem::take(&mut questions)).await? {
                let Answer::FileDescriptorResponse(told) = answer else {
                    return Err("reflection: an answer to another question".into());
                };
                for told in told.file_descriptor_proto {
                    let file = FileDescriptorProto::decode(&told[..]);
                    let file = file.map_err(|error| format!("reflection: no file: {error}"))?;
                    let checked = descriptors::check(&file);
                    checked.map_err(|error| format!("reflection: {error}; use --proto FILE"))?;
                    files.insert(file.name().to_owned(), file);
                }
            }
            let imports = files.values().flat_map(|file| &file.dependency);
            let mut missing: Vec<&String> = imports
                .filter(|name| !files.contains_key(*name) && pool.get_file_by_name(name).is_none())
                .collect();
            missing.sort();
            missing.dedup();
            if files.len() + missing.len() > MOST_FILES {
                return Err(too_much().into());
            }
            if let (true, Some(name)) = (files.len() == asked, missing.first()) {
                let name = in_line(name);
                return Err(format!("reflection: it does not tell `{name}`; use --proto").into());
            }
            questions = missing.into_iter().cloned().map(Question::FileByFilename).collect();
        }
        let new = files.into_values().filter(|file| pool.get_file_by_name(file.name()).is_none());
        let new: Vec<FileDescriptorProto> = new.collect();
        let added = contained(|| {
            let added = pool.add_file_descriptor_protos(new);
            added.map_err(|error| format!("files that do not fit together: {error}"))
        });
        added.flatten().map_err(|error| format!("reflection: {}", in_line(&error)))?;
        Ok(pool)
    }

    /// Asks by the first version of reflection that there is.
    async fn ask(&self, questions: Vec<Question>) -> Result<Vec<Answer>, Box<dyn Error>> {
        self.rounds.update(|rounds| rounds + 1);
        if self.rounds.get() > MOST_ROUNDS {
            return Err(too_much().into());
        }
        let mut first = None;
        for version in VERSIONS {
            match self.ask_by(version, &questions).await {
                Ok(answers) => return Ok(answers),
                Err(status) => {
                    let next =
                        matches!(status.code(), Code::Unimplemented | Code::PermissionDenied);
                    first.get_or_insert(status);
                    if !next {
                        break;
                    }
                }
            }
        }
        if self.bytes.get() > MOST_BYTES {
            return Err(too_much().into());
        }
        let status = first.unwrap_or_else(|| Status::internal("no version"));
        let remedy = match status.code() {
            Code::Unimplemented => {
                return Err("the service has no reflection; name its .proto by --proto FILE".into());
            }
            Code::PermissionDenied => {
                "\nreflection is a method as well: allow `grpc.reflection.v1.ServerReflection/*`, or name \
                 the service's .proto by --proto FILE"
            }
            _ => "",
        };
        let types = DescriptorPool::new();
        Err(Failed { what: "reflection".into(), status, types, remedy }.into())
    }

    async fn ask_by(&self, version: &str, questions: &[Question]) -> Result<Vec<Answer>, Status> {
        let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
        let path =
            PathAndQuery::try_from(path).map_err(|error| Status::internal(error.to_string()))?;
        let messages: Vec<_> = questions
            .iter()
            .map(|question| ServerReflectionRequest {
                host: String::new(),
                message_request: Some(question.clone()),
            })
            .collect();
        let mut request = Request::new(tokio_stream::iter(messages));
        limit(&mut request, self.until);
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await?;
        let codec = ProstCodec::<ServerReflectionRequest, ServerReflectionResponse>::default();
        let mut answers = grpc.streaming(request, path, codec).await?.into_inner();
        let mut told = Vec::new();
        while told.len() < questions.len()
            && let Some(answer) = answers.next().await
        {
            let answer = answer?;
            self.bytes.update(|bytes| bytes + answer.encoded_len());
            if self.bytes.get() > MOST_BYTES {
                return Err(Status::resource_exhausted("told enough"));
            }
            match answer.message_response {
                Some(Answer::ErrorResponse(error)) => {
                    return Err(Status::new(Code::from(error.error_code), error.error_message));
                }
                Some(answer) => told.push(answer),
                None => return Err(Status::internal("an answer without content")),
            }
        }
        Ok(told)
    }
}
