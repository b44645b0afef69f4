//! How often a long message is copied: the time that one more byte takes, by that of memcpy.
//!
//! Both ends are tasks of one thread, whose time on a processor is taken, and the answers are short. Each
//! time is the least of some rounds, in which all take turns. A copy that moves bytes from memory to memory
//! is one; what a handler and a caller do with theirs is not counted. The allocator keeps what it has once
//! got from the kernel: fresh pages cost more than copies, and are none.

use std::time::Duration;

use partywall::parcel::{Attach, Attachment, Owned, Sealed};
use partywall::{Channel, Endpoint, Server};
use partywall_stubs_tests::{ours, tonics};
use partywall_testkit::{Host, OPEN, in_own_process};
use tokio_stream::Stream;
use tonic::codegen::Bytes;
use tonic::{Request, Response, Status, Streaming};

const SHORT: usize = 64 << 10;
const LONG: usize = 64 << 20;
const ROUNDS: usize = 12;

/// The time that this thread has had a processor for.
fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("it is not negative")
}

/// A service that takes frames and gives none back, by the stubs of either generator.
macro_rules! sink {
    ($module:ident, $stubs:ident) => {
        mod $module {
            use super::*;
            pub(super) use $stubs::frames::Frame;
            use $stubs::frames::frames_client::FramesClient;
            use $stubs::frames::frames_server::{Frames, FramesServer};

            struct Sink;

            #[tonic::async_trait]
            impl Frames for Sink {
                type PlayStream =
                    std::pin::Pin<Box<dyn Stream<Item = Result<Frame, Status>> + Send>>;

                async fn turn(&self, mut frame: Request<Frame>) -> Result<Response<Frame>, Status> {
                    let attached = frame.attachments().expect("as it was sent");
                    let attached = attached.iter().map(|one| match one {
                        Attachment::Owned(view) => view.len() as u64,
                        other => panic!("{other:?}"),
                    });
                    let attached = attached.sum::<u64>();
                    let Frame { number, pixels, .. } = frame.into_inner();
                    let in_parcel = Sealed::of(&pixels).is_some();
                    let number = number + pixels.len() as u64 + attached;
                    Ok(Response::new(Frame { number, in_parcel, pixels: Bytes::new() }))
                }

                async fn play(
                    &self,
                    _: Request<Frame>,
                ) -> Result<Response<Self::PlayStream>, Status> {
                    Err(Status::unimplemented("nobody asks"))
                }

                async fn store(
                    &self,
                    _: Request<Streaming<Frame>>,
                ) -> Result<Response<Frame>, Status> {
                    Err(Status::unimplemented("nobody asks"))
                }
            }

            pub(super) fn serve(host: &Host) {
                let service = FramesServer::new(Sink).max_decoding_message_size(usize::MAX);
                let server = Server::builder().coordinator(&host.socket).add_service(service);
                tokio::spawn(server.serve("test"));
            }

            pub(super) fn client(channel: Channel) -> FramesClient<Channel> {
                FramesClient::new(channel).max_encoding_message_size(usize::MAX)
            }

            /// How long a call with these pixels takes.
            pub(super) async fn call(
                client: &mut FramesClient<Channel>,
                pixels: Bytes,
            ) -> Duration {
                let len = pixels.len() as u64;
                let begin = now();
                let frame = Frame { number: 1, pixels, in_parcel: false };
                let answer = client.turn(frame).await.unwrap().into_inner();
                let took = now() - begin;
                assert_eq!((answer.number, answer.in_parcel), (len + 1, false));
                took
            }

            /// How long a call takes to which this is attached.
            pub(super) async fn attached(
                client: &mut FramesClient<Channel>,
                owned: &Owned,
            ) -> Duration {
                let frame = Frame { number: 1, pixels: Bytes::new(), in_parcel: false };
                let mut request = Request::new(frame);
                request.attach(owned);
                let begin = now();
                let answer = client.turn(request).await.unwrap().into_inner();
                let took = now() - begin;
                assert_eq!(answer.number, owned.len() as u64 + 1);
                took
            }
        }
    };
}

sink!(native, ours);
sink!(ordinary, tonics);

/// The policy of a host whose parcels cross.
fn host() -> Host {
    Host::with(&OPEN.replace("anyone = ['*']", "anyone = { methods = ['*'], descriptors = 1 }"))
}

async fn channel(host: &Host) -> Channel {
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    endpoint.wait_for_ready(true).connect().await.unwrap()
}

/// A buffer in a parcel of the channel's link.
async fn in_parcel(channel: &Channel, len: usize) -> Bytes {
    let made = async {
        loop {
            let mut buffer = channel.buffer(len).await;
            if buffer.is_in_parcel() {
                buffer.fill(1);
                return buffer.freeze();
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), made).await.expect("no buffer is in a parcel")
}

/// The least time of each way, for short messages and long ones.
#[derive(Clone, Copy, Debug)]
struct Least([Duration; 2]);

impl Least {
    fn see(&mut self, long: usize, took: Duration) {
        self.0[long] = self.0[long].min(took);
    }

    /// By that of another: how many times as long a byte takes.
    fn per_byte_of(self, other: Self) -> f64 {
        let slope = |Self([short, long])| long.saturating_sub(short).as_secs_f64();
        slope(self) / slope(other)
    }
}

/// Settings of the C library's allocator (mallopt(3)): one heap, which never shrinks.
const ALLOCATOR: [(&str, &str); 3] = [
    ("MALLOC_MMAP_MAX_", "0"),
    ("MALLOC_TRIM_THRESHOLD_", "1099511627776"),
    ("MALLOC_ARENA_MAX", "1"),
];

#[test]
fn a_long_message_is_copied_as_often_as_is_said() {
    let name = "a_long_message_is_copied_as_often_as_is_said";
    let Some(said) = in_own_process(module_path!(), name, &ALLOCATOR) else {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(count());
    };
    println!("{}", said.lines().find(|line| line.starts_with("copies:")).unwrap());
}

async fn count() {
    let (host, tonics_host) = (host(), host());
    native::serve(&host);
    ordinary::serve(&tonics_host);
    let (native_channel, ordinary_channel) = (channel(&host).await, channel(&tonics_host).await);
    let mut native = native::client(native_channel.clone());
    let mut ordinary = ordinary::client(ordinary_channel);

    let mut all = [Least([Duration::MAX; 2]); 6];
    let sizes = [SHORT, LONG];
    let bytes = sizes.map(|len| Bytes::from(vec![1; len]));
    let mut to = vec![2; LONG];
    let owned = sizes.map(|len| Owned::new(len).unwrap());
    // A field is in a ring's record when it is short, and has no buffer.
    let field = in_parcel(&native_channel, LONG).await;
    for round in 0..ROUNDS {
        for (long, from) in bytes.iter().enumerate() {
            let begin = now();
            to[..from.len()].copy_from_slice(from);
            let copied = now() - begin;
            std::hint::black_box(&mut to);
            let field = if long == 1 { &field } else { from };
            let took = [
                copied,
                native::call(&mut native, field.clone()).await,
                native::call(&mut native, from.clone()).await,
                ordinary::call(&mut ordinary, from.clone()).await,
                native::attached(&mut native, &owned[long]).await,
                ordinary::attached(&mut ordinary, &owned[long]).await,
            ];
            if round > 2 {
                all.iter_mut().zip(took).for_each(|(least, took)| least.see(long, took));
            }
        }
    }
    drop(field);
    // Memory that is there is used again; there is no more than the process may have.
    let other = channel(&host).await;
    in_parcel(&other, 4 * SHORT).await;
    partywall::parcel::own_at_most(LONG);
    assert!(native_channel.buffer(LONG).await.is_in_parcel());
    assert!(!other.buffer(LONG).await.is_in_parcel());
    partywall::parcel::own_at_most(1 << 30);
    assert!(other.buffer(LONG).await.is_in_parcel());

    let [memcpy, ways @ ..] = all;
    let [field, native, ordinary, attached, tonics] = ways.map(|way| way.per_byte_of(memcpy));
    println!(
        "copies: a field in a parcel {field:.2}, native {native:.2}, tonic's {ordinary:.2}, attached {attached:.4} \
         and {tonics:.4}"
    );
    assert!(field < 1.2, "{field} copies, one where it comes");
    assert!(native < 2.2, "{native} copies, one at each end");
    assert!(ordinary < 4.4, "{ordinary} copies, two at each end");
    // It takes as long as short memory does.
    assert!(attached.max(tonics) < 0.2, "{attached} and {tonics} copies of what is attached, none");
}
