//! What a container engine says of a container: its image, and the service of Compose that it was made for.
//!
//! The kernel says which container a process is in ([`crate::container`]). What that container was made
//! of only its engine knows, which is asked at its socket, by Docker's API, which podman speaks as well:
//!
//! ```text
//! GET /containers/ID/json    Id (the same one), Image, Config.Labels
//! GET /images/IMAGE/json     Id (the same one), Config.Labels
//! ```
//!
//! The engine is believed: it is root's, or the coordinator's user's, and so is the way to its socket
//! ([`crate::place`]) and who listens there (SO_PEERCRED). Labels are no proof by themselves, for an
//! image brings its own into each container. Compose gives a container its project, its service and a
//! number ([`NUMBER`]), all at once; images that it builds get the first two as well, and never a
//! number. So a container is a service's when it has all three, and its image has no number: then the
//! number was given to the container, and with it the others. Who gives labels by hand (`docker run
//! --label`) uses the engine, and so is root in all but name.
//!
//! Image and labels of a container never change, and no id comes twice, so that an answer holds for
//! ever. A failure is asked again with the next process. [`Answers::ask`] blocks, [`TIME`] at most, so
//! that it is used on threads of its own (`measure`).

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use partywall_abi::limits;
use partywall_shm::socket;
use serde::Deserialize;
use tokio::net::UnixStream;

use crate::container::{self, Container};
use crate::place::{Kind, Why};
use crate::signatures::Beside;

/// How long an engine may take for all of an answer. While it starts a container it says nothing of it.
const TIME: Duration = Duration::from_secs(5);
/// Bytes of an answer that are too many.
const LARGEST: usize = 4 << 20;
/// Containers whose answers are remembered.
const REMEMBERED: usize = 4096;

/// Compose's labels of a container.
const PROJECT: &str = "com.docker.compose.project";
const SERVICE: &str = "com.docker.compose.service";
const NUMBER: &str = "com.docker.compose.container-number";

/// How an image's id begins; 64 hexadecimal digits follow.
pub(crate) const ALGORITHM: &str = "sha256:";

/// What an engine says of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The id of its image, `sha256:` and 64 digits.
    pub image: String,
    /// `PROJECT/SERVICE`, if Compose has made it.
    pub compose: Option<String>,
    /// What was found of the image's signature, where the policy has a directory of those.
    pub signature: Option<Beside>,
}

/// What an engine says, or why it is not known, with the remedy.
pub type Told = Result<Origin, String>;

/// A container, and the socket of its engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    pub(crate) container: Container,
    /// None where the policy does not say.
    pub(crate) api: Option<PathBuf>,
    /// Where the signatures of images are, if the policy says so.
    pub(crate) signatures: Option<PathBuf>,
}

/// What engines have said.
#[derive(Default)]
pub(crate) struct Answers(Mutex<HashMap<(Container, PathBuf), Origin>>);

impl Answers {
    /// What the engine says of the container. Blocks for [`TIME`], and for as long as the file system of the
    /// socket's path likes.
    pub(crate) fn ask(&self, question: &Question) -> Told {
        let origin = self.origin(question)?;
        // An image stays as it is, and its signature need not.
        let signature = question.signatures.as_ref();
        let signature = signature.map(|directory| Beside::of_image(directory, &origin.image));
        Ok(Origin { signature, ..origin })
    }

    fn origin(&self, question: &Question) -> Told {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Question { container, api, .. } = question;
        let Some(api) = api else {
            let engine = &container.engine;
            return Err(format!(
                "{container}: the policy does not say where that engine answers; remedy: add `api`, the path \
                 of its socket, under [engine.{engine}]"
            ));
        };
        let key = (container.clone(), api.clone());
        if let Some(origin) = known().get(&key) {
            return Ok(origin.clone());
        }
        let origin = ask(container, api, TIME)
            .map_err(|why| format!("{container}: {}: {why}", api.display()))?;
        let mut known = known();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(key, origin.clone());
        Ok(origin)
    }
}

/// Whether an engine may be asked at this socket: it is one, and nobody else could put another one there.
///
/// # Errors
/// Why not, with the remedy.
pub fn check(api: &Path) -> Result<(), String> {
    Kind::Engine.find(api, rustix::process::geteuid().as_raw()).map(drop).map_err(|why| match why {
        Why::Text(text) => text,
        Why::Io(e) => format!("{e}; remedy: start the engine, or name its socket"),
    })
}

fn ask(container: &Container, api: &Path, time: Duration) -> Told {
    let own = rustix::process::geteuid().as_raw();
    let real = Kind::Engine.find(api, own).map_err(|why| match why {
        Why::Text(text) => text,
        Why::Io(e) => unreachable(container, &e),
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| format!("no means to ask: {e}"))?;
    runtime.block_on(async {
        let asked = async {
            let path = format!("/containers/{}/json", container.id);
            let text = get(container, &real, own, &path).await?;
            let said = Said::of(&text, &container.id)?;
            let text = get(container, &real, own, &format!("/images/{}/json", said.image)).await?;
            said.origin(&text)
        };
        tokio::time::timeout(time, asked).await.unwrap_or_else(|_late| {
            Err(format!(
                "no answer within {} s; remedy: see why the engine hangs, then connect again",
                time.as_secs_f32()
            ))
        })
    })
}

/// The body of an answer.
async fn get(container: &Container, real: &Path, own: u32, path: &str) -> Result<Vec<u8>, String> {
    let stream = UnixStream::connect(real).await.map_err(|e| unreachable(container, &e))?;
    let who = socket::peer_credentials(stream.as_fd()).map_err(|e| e.to_string())?;
    if who.uid != 0 && who.uid != own {
        return Err(format!(
            "user {} listens there and could answer as the engine; remedy: name the socket of an engine of \
             root, or of user {own}",
            who.uid
        ));
    }
    let broken = |e: hyper::Error| format!("this is no engine's answer to {path}: {e}");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // It ends with the runtime.
    tokio::spawn(connection);
    let request = Request::get(path).header(HOST, "localhost").body(Empty::<Bytes>::new());
    let request = request.map_err(|e| e.to_string())?;
    let answer = sender.send_request(request).await.map_err(broken)?;
    let status = answer.status();
    if !status.is_success() {
        return Err(format!(
            "the engine answers {status} to {path}; remedy: see that `api` of [engine.{}] is the socket of the \
             engine that has made the container",
            container.engine
        ));
    }
    let body = Limited::new(answer.into_body(), LARGEST).collect().await;
    let body =
        body.map_err(|e| format!("no whole answer to {path} of at most {LARGEST} bytes: {e}"))?;
    Ok(body.to_bytes().to_vec())
}

fn unreachable(container: &Container, e: &io::Error) -> String {
    let engine = &container.engine;
    let remedy = match e.kind() {
        io::ErrorKind::PermissionDenied => {
            let own = rustix::process::geteuid().as_raw();
            format!("let user {own} use the engine")
        }
        _ => format!("start the engine, or correct `api` under [engine.{engine}]"),
    };
    format!("{e}; remedy: {remedy}")
}

/// An answer, as far as it is needed.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    /// Of a container.
    #[serde(default)]
    image: String,
    config: Option<Config>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Config {
    labels: Option<BTreeMap<String, String>>,
}

impl Inspected {
    /// Of what has this id.
    fn parse(text: &[u8], id: &str) -> Result<Self, String> {
        let inspected: Self = serde_json::from_slice(text).map_err(|e| {
            format!("this is no engine's answer: {e}; remedy: name an engine's socket")
        })?;
        match inspected.id.strip_prefix(ALGORITHM).unwrap_or(&inspected.id)
            == id.strip_prefix(ALGORITHM).unwrap_or(id)
        {
            true => Ok(inspected),
            false => {
                Err(format!("the engine speaks of `{}` when asked for {id}", shown(&inspected.id)))
            }
        }
    }

    fn labels(self) -> BTreeMap<String, String> {
        self.config.and_then(|config| config.labels).unwrap_or_default()
    }
}

/// What is said of a container alone.
struct Said {
    image: String,
    /// `PROJECT/SERVICE`, if its labels say so.
    compose: Option<String>,
}

impl Said {
    fn of(text: &[u8], id: &str) -> Result<Self, String> {
        let inspected = Inspected::parse(text, id)?;
        let digits = inspected.image.strip_prefix(ALGORITHM).unwrap_or(&inspected.image);
        if !container::is_id(digits) {
            return Err(format!("the engine has no id of its image, but `{}`", shown(digits)));
        }
        let image = format!("{ALGORITHM}{digits}");
        let labels = inspected.labels();
        let compose = match (labels.get(PROJECT), labels.get(SERVICE), labels.get(NUMBER)) {
            (Some(project), Some(service), Some(_)) => Some(format!("{project}/{service}")),
            _ => None,
        };
        if let Some(compose) = compose.as_ref().filter(|compose| !is_service(compose)) {
            return Err(format!("its labels name no service of Compose, but `{}`", shown(compose)));
        }
        Ok(Self { image, compose })
    }

    /// The same with what is said of the image.
    fn origin(self, text: &[u8]) -> Told {
        let brings = Inspected::parse(text, &self.image)?.labels().contains_key(NUMBER);
        let compose = self.compose.filter(|_| !brings);
        Ok(Origin { image: self.image, compose, signature: None })
    }
}

/// Whether this is `PROJECT/SERVICE`.
pub(crate) fn is_service(text: &str) -> bool {
    let is_name = |name: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        !name.is_empty() && name.chars().all(plain)
    };
    text.len() <= limits::COMPOSE_BYTES
        && text
            .split_once('/')
            .is_some_and(|(project, service)| is_name(project) && is_name(service))
}

/// The digest that an image's id is.
pub(crate) fn digest_of(image: &str) -> [u8; 32] {
    let mut digest = [0; 32];
    let digits = image.strip_prefix(ALGORITHM).unwrap_or_default().as_bytes();
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        let digits = std::str::from_utf8(pair).unwrap_or_default();
        *byte = u8::from_str_radix(digits, 16).unwrap_or_default();
    }
    digest
}

/// Whether this is an image's id, whole.
pub(crate) fn is_image(text: &str) -> bool {
    text.strip_prefix(ALGORITHM).is_some_and(container::is_id)
}

/// The begin of what somebody has chosen.
fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}

/// Body of the fuzz target: true when the two answers, with a zero byte between them, are an engine's.
#[doc(hidden)]
pub fn fuzz_engine(data: &[u8]) -> bool {
    let id = "0a".repeat(32);
    let at = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let (container, image) = (&data[..at], data.get(at + 1..).unwrap_or_default());
    let told = Said::of(container, &id).and_then(|said| said.origin(image));
    if let Ok(Origin { image: of, compose, .. }) = &told {
        assert!(is_image(of) && compose.as_deref().is_none_or(is_service), "{told:?}");
        // Of what is left out here, that one refuses more.
        let image = serde_json::from_slice::<serde_json::Value>(image).unwrap_or_default();
        let number = &image["Config"]["Labels"][NUMBER];
        assert!(compose.is_none() || number.is_null(), "{image}");
    }
    told.is_ok()
}

#[cfg(test)]
mod tests;
