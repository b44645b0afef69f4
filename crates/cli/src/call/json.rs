//! Messages as JSON and as what a call carries.

use std::io::{BufReader, Read};

use prost::Message;
use prost::bytes::Buf;
use prost_reflect::prost_types::Any;
use prost_reflect::{DynamicMessage, MessageDescriptor, ReflectMessage, Value};
use serde_json::de::IoRead;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::contained::contained;
use crate::terminal::in_line;

/// Messages of one type, read from JSON values that follow one another.
pub(crate) struct Input {
    from: String,
    values: serde_json::Deserializer<IoRead<BufReader<Box<dyn Read + Send>>>>,
    kind: MessageDescriptor,
}

impl Input {
    /// Of this type, from a reader that errors call so.
    pub(crate) fn new(from: String, reader: Box<dyn Read + Send>, kind: MessageDescriptor) -> Self {
        let values = serde_json::Deserializer::from_reader(BufReader::new(reader));
        Self { from, values, kind }
    }

    /// The one message there is; that without fields if there is nothing.
    pub(crate) fn only(&mut self) -> Result<DynamicMessage, String> {
        let Some(message) = self.next() else { return Ok(DynamicMessage::new(self.kind.clone())) };
        let message = message?;
        match self.values.end() {
            Ok(()) => Ok(message),
            Err(error) => Err(format!(
                "{}: something follows the message, and the method takes one; write one JSON value",
                self.place(&error)
            )),
        }
    }

    fn place(&self, error: &serde_json::Error) -> String {
        format!("{}, line {}, column {}", self.from, error.line(), error.column())
    }

    fn wrong(&self, path: &serde_path_to_error::Path, error: &serde_json::Error) -> String {
        if error.is_io() {
            return format!("{}: {error}", self.from);
        }
        let text = error.to_string();
        // The place comes first here.
        let suffix = format!(" at line {} column {}", error.line(), error.column());
        let text = text.strip_suffix(&suffix).unwrap_or(&text);
        let field = match path.iter().len() {
            0 => String::new(),
            _ => format!("field `{path}`: "),
        };
        let (place, kind) = (self.place(error), self.kind.full_name());
        format!("{place}: {field}{text}; --describe shows what {kind} has")
    }
}

impl Iterator for Input {
    type Item = Result<DynamicMessage, String>;

    fn next(&mut self) -> Option<Self::Item> {
        // At the end there is nothing but white space.
        if self.values.end().is_ok() {
            return None;
        }
        let mut track = serde_path_to_error::Track::new();
        let tracked = serde_path_to_error::Deserializer::new(&mut self.values, &mut track);
        let message = contained(|| DynamicMessage::deserialize(self.kind.clone(), tracked));
        Some(message.and_then(|read| read.map_err(|error| self.wrong(&track.path(), &error))))
    }
}

/// Why a message has no form in JSON.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Formless {
    #[error(
        "the answer has an Any of type `{}`, which is not known; name the .proto by --proto FILE",
        in_line(.0)
    )]
    Unknown(String),
    #[error("the answer has more than {DEEPEST} Any inside one another")]
    Deep,
    #[error("the answer has no form in JSON: {0}")]
    Wrong(String),
}

/// How many Any may be inside one another, for each costs the writer's stack.
const DEEPEST: usize = 8;

/// A message in one line.
pub(crate) fn line(message: &DynamicMessage) -> Result<String, Formless> {
    let text = contained(|| {
        unpack(message, 0)?;
        let text = serde_json::to_string(message);
        text.map(|text| text + "\n").map_err(|error| Formless::Wrong(error.to_string()))
    });
    text.map_err(Formless::Wrong).flatten()
}

/// A message of this type; otherwise why the bytes are none.
pub(crate) fn decode(kind: MessageDescriptor, bytes: impl Buf) -> Result<DynamicMessage, String> {
    let message = contained(|| DynamicMessage::decode(kind, bytes));
    message.and_then(|message| message.map_err(|error| error.to_string()))
}

/// Looks into each Any of a message that is inside so many of them.
fn unpack(message: &DynamicMessage, depth: usize) -> Result<(), Formless> {
    if message.descriptor().full_name() != "google.protobuf.Any" {
        return message.fields().try_for_each(|(_, value)| unpack_value(value, depth));
    }
    if depth == DEEPEST {
        return Err(Formless::Deep);
    }
    let any = message.transcode_to::<Any>();
    let any = any.map_err(|error| Formless::Wrong(error.to_string()))?;
    let name = any.type_url.rsplit('/').next().unwrap_or_default();
    let kind = message.descriptor().parent_pool().get_message_by_name(name);
    let kind = kind.ok_or_else(|| Formless::Unknown(name.to_owned()))?;
    let packed = decode(kind, &any.value[..]).map_err(Formless::Wrong)?;
    unpack(&packed, depth + 1)
}

fn unpack_value(value: &Value, depth: usize) -> Result<(), Formless> {
    match value {
        Value::Message(message) => unpack(message, depth),
        Value::List(list) => list.iter().try_for_each(|value| unpack_value(value, depth)),
        Value::Map(map) => map.values().try_for_each(|value| unpack_value(value, depth)),
        _ => Ok(()),
    }
}

/// Carries messages; those that come are of this type.
#[derive(Clone)]
pub(crate) struct Messages(pub(crate) MessageDescriptor);

impl Codec for Messages {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        self.clone()
    }

    fn decoder(&mut self) -> Self {
        self.clone()
    }
}

impl Encoder for Messages {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(
        &mut self,
        message: DynamicMessage,
        buffer: &mut EncodeBuf<'_>,
    ) -> Result<(), Status> {
        message.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for Messages {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        let message = decode(self.0.clone(), buffer);
        let name = self.0.full_name();
        let wrong = |error| Status::internal(format!("the answer is no {name}: {error}"));
        message.map(Some).map_err(wrong)
    }
}
