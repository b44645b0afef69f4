//! The processor: makes a small picture of each frame, finds what moves, and gives both to viewers.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use partywall::parcel::{Attach, Attachment};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use crate::processor_server::{Processor, ProcessorServer};
use crate::{Done, Error, Figures, Frame, MOST, NextRequest, View, Way, picture};

#[derive(Debug, Args)]
pub struct Options {
    /// The name to serve
    #[arg(long, default_value = "processor")]
    name: String,
    /// Serve gRPC at this Unix socket as well, to every user who reaches its directory
    #[arg(long, value_name = "PATH")]
    grpc: Option<PathBuf>,
}

/// Serves until Ctrl-C.
///
/// # Errors
/// It cannot be served.
pub async fn run(options: Options) -> Result<(), Error> {
    let service = ProcessorServer::new(Eye::default()).max_decoding_message_size(MOST);
    // Before callers find the name.
    let incoming = match &options.grpc {
        Some(path) => Some(listen(path).map_err(|error| {
            format!(
                "cannot serve gRPC at {}: {error}; remedy: another path, in a directory to write",
                path.display()
            )
        })?),
        None => None,
    };
    let over_grpc = async {
        let Some(incoming) = incoming else { return std::future::pending().await };
        let server = tonic::transport::Server::builder().add_service(service.clone());
        Ok(server.serve_with_incoming(incoming).await?)
    };
    let mut server = partywall::Server::builder();
    let over_links = server.add_service(service.clone()).serve(options.name.as_str());
    let ended = tokio::select! {
        served = over_links => Ok(served?),
        served = over_grpc => served,
        stopped = crate::stopped() => Ok(stopped?),
    };
    if let Some(path) = &options.grpc {
        // If it is gone, that is as good.
        let _removed = std::fs::remove_file(path);
    }
    ended
}

/// Listens for every user. A socket that a processor has left when it was killed makes way.
fn listen(path: &Path) -> std::io::Result<UnixListenerStream> {
    use std::os::unix::fs::PermissionsExt;
    let refused = std::os::unix::net::UnixStream::connect(path);
    if refused.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused) {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(UnixListenerStream::new(listener))
}

/// What sees frames.
#[derive(Clone, Debug, Default)]
pub struct Eye(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    seen: Mutex<Seen>,
    view: watch::Sender<View>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Of the last frame in this turn.
    last: Option<(u64, Vec<u8>)>,
    turn: u64,
    second: Option<Second>,
    figures: [Figures; 2],
}

/// Where a second of figures began.
#[derive(Debug)]
struct Second {
    begin: Instant,
    cpu: Duration,
    first: Frame,
    processed: u64,
}

#[tonic::async_trait]
impl Processor for Eye {
    async fn process(&self, mut request: Request<Frame>) -> Result<Response<Done>, Status> {
        let attached = request.attachments().map_err(|error| match error.is_resource() {
            true => Status::resource_exhausted(error.to_string()),
            false => Status::invalid_argument(error.to_string()),
        })?;
        let mut frame = request.into_inner();
        let pixels = std::mem::take(&mut frame.pixels);
        let (way, small) = match &attached[..] {
            [Attachment::Owned(view)] if view.len() == picture::BYTES => {
                let small = view.read(|words| picture::shrink(|at| words.get(at)));
                (Way::Parcel, small.map_err(|error| Status::aborted(error.to_string()))?)
            }
            [] if pixels.len() == picture::BYTES => {
                let (words, _) = pixels.as_chunks();
                (Way::Message, picture::shrink(|at| u64::from_ne_bytes(words[at])))
            }
            other => return Err(not_a_frame(other, pixels.len())),
        };
        self.see(way, frame, small);
        Ok(Response::new(Done {}))
    }

    async fn next(&self, request: Request<NextRequest>) -> Result<Response<View>, Status> {
        let after = request.into_inner().after;
        let mut views = self.0.view.subscribe();
        let view = views.wait_for(|view| view.number != after && view.number > 0).await;
        let view = view.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(Response::new(view.clone()))
    }
}

fn not_a_frame(attached: &[Attachment], bytes: usize) -> Status {
    Status::invalid_argument(format!(
        "no frame: {} attachments and {bytes} bytes of pixels; remedy: one owned parcel of {} bytes, or so many \
         bytes of pixels",
        attached.len(),
        picture::BYTES
    ))
}

impl Eye {
    /// Tells viewers of a frame, unless it comes after a later one.
    fn see(&self, way: Way, frame: Frame, small: Vec<u8>) {
        let mut seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = &mut *seen;
        if seen.turn != frame.turn {
            (seen.turn, seen.last, seen.second) = (frame.turn, None, None);
        }
        let number = frame.number;
        seen.count(way, frame);
        if seen.last.as_ref().is_some_and(|(last, _)| *last > number) {
            return;
        }
        let before = seen.last.replace((number, small));
        let small = &seen.last.as_ref().expect("it is there").1;
        let view = View {
            number: 0,
            way: way.into(),
            frame: number,
            brightness: picture::brightness(small),
            motion: before.and_then(|(_, before)| picture::motion(&before, small)),
            picture: small.clone().into(),
            figures: Some(seen.figures[way as usize]),
        };
        self.0.view.send_modify(|last| *last = View { number: last.number + 1, ..view });
    }
}

impl Seen {
    /// Counts the frame, and makes figures of each whole second of a turn.
    fn count(&mut self, way: Way, frame: Frame) {
        let (now, cpu) = (Instant::now(), crate::cpu());
        let begin = |first| Some(Second { begin: now, cpu, first, processed: 0 });
        let Some(second) = &mut self.second else {
            self.second = begin(frame);
            return;
        };
        second.processed += 1;
        // By the camera's clock, so that frames under way do not count.
        let due = Duration::from_micros(frame.due_us.saturating_sub(second.first.due_us));
        // A sixtieth of a second is not whole microseconds.
        if due < Duration::from_millis(999) {
            return;
        }
        let a_second = |count: u64| count as f64 / due.as_secs_f64();
        let percent = |cpu: Duration, of: Duration| 100.0 * cpu.as_secs_f64() / of.as_secs_f64();
        let frames = frame.number.saturating_sub(second.first.number);
        let camera = Duration::from_micros(frame.cpu_us.saturating_sub(second.first.cpu_us));
        self.figures[way as usize] = Figures {
            processed: a_second(second.processed),
            dropped: a_second(frames.saturating_sub(second.processed)),
            camera_cpu: percent(camera, due),
            processor_cpu: percent(cpu.saturating_sub(second.cpu), now - second.begin),
            round_trip_ms: frame.round_trip_us as f64 / 1000.0,
        };
        self.second = begin(frame);
    }
}
