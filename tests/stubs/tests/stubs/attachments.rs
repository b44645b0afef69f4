//! Memory and files that are attached to requests and answers.

use std::io::{Read as _, Seek as _, Write as _};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use partywall::parcel::{Attach, Attachment, Draft, Lease, Owned, Sealed};
use partywall::{Channel, Endpoint, Peer, Server, blocking};
use partywall_stubs_tests::{ours, tonics};
use partywall_testkit::{Host, OPEN};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Code, Request, Response, Status, Streaming};

use ours::frames::frames_blocking;

const MIB: usize = 1 << 20;
/// More than any step takes on a busy machine.
const WITHIN: Duration = Duration::from_secs(20);

fn policy(descriptors: u32, leases: bool) -> String {
    let leases = if leases { ", leases = true" } else { "" };
    let rule = format!("anyone = {{ methods = ['*'], descriptors = {descriptors}{leases} }}");
    OPEN.replace("anyone = ['*']", &rule)
}

fn sealed(byte: u8, len: usize) -> Sealed {
    let mut draft = Draft::new(len).unwrap();
    draft.fill(byte);
    draft.seal().unwrap()
}

fn owned(byte: u8, len: usize) -> Owned {
    let mut owned = Owned::new(len).unwrap();
    owned.write(|bytes| bytes.fill(byte));
    owned
}

fn lease(word: u64, len: usize) -> Lease {
    let lease = Lease::new(len).unwrap();
    set_all(&lease, word);
    lease
}

fn set_all(lease: &Lease, word: u64) {
    lease.words().iter().for_each(|one| one.store(word, Relaxed));
}

fn file(text: &str) -> std::fs::File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn read(descriptor: partywall::parcel::Descriptor) -> String {
    let mut file = std::fs::File::from(descriptor.into_fd());
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

/// The first byte or word of each, as all of it is the same.
fn first(attachment: &Attachment) -> u64 {
    match attachment {
        Attachment::Sealed(sealed) => {
            assert!(sealed.iter().all(|byte| *byte == sealed[0]));
            sealed[0].into()
        }
        Attachment::Owned(view) => {
            let mut bytes = vec![0; view.len()];
            view.read_at(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == bytes[0]));
            bytes[0].into()
        }
        Attachment::Lease(lease) => {
            let mut words = lease.words().iter().map(|word| word.load(Relaxed));
            let first = words.next().unwrap();
            assert!(words.all(|word| word == first));
            first
        }
        other => panic!("{other:?}"),
    }
}

/// Answers with one more than what came, in something of the same kind; a number of a request that says so
/// asks for more.
fn answered(attachment: Attachment) -> Attachment {
    match attachment {
        Attachment::Sealed(_) => sealed(first(&attachment) as u8 + 1, MIB).into(),
        Attachment::Owned(_) => (&owned(first(&attachment) as u8 + 1, MIB)).into(),
        Attachment::Lease(lease) => {
            let word = lease.words()[0].load(Relaxed);
            set_all(&lease, word + 1);
            lease.into()
        }
        Attachment::File(descriptor) => file(&format!("{}+1", read(descriptor))).into(),
        other => panic!("{other:?}"),
    }
}

/// Keeps requests with what is attached to them untouched for as long as it is told.
const HOLD: u64 = 1000;
/// Attaches a file to an answer whose request has none.
const SURPRISE: u64 = 1001;

macro_rules! frames {
    ($module:ident, $stubs:ident) => {
        mod $module {
            use super::*;
            use $stubs::frames::Frame;
            use $stubs::frames::frames_client::FramesClient;
            use $stubs::frames::frames_server::{Frames, FramesServer};

            #[derive(Clone, Default)]
            pub(super) struct Turns {
                pub(super) hold: std::sync::Arc<tokio::sync::Notify>,
                pub(super) calls: std::sync::Arc<AtomicU32>,
            }

            #[tonic::async_trait]
            impl Frames for Turns {
                type PlayStream = Pin<Box<dyn Stream<Item = Result<Frame, Status>> + Send>>;

                async fn turn(
                    &self,
                    mut request: Request<Frame>,
                ) -> Result<Response<Frame>, Status> {
                    self.calls.fetch_add(1, Relaxed);
                    if request.get_ref().number == HOLD {
                        self.hold.notified().await;
                    }
                    let came = request.attachments();
                    let came = came.map_err(|why| Status::invalid_argument(why.to_string()))?;
                    let mut frame = request.into_inner();
                    let surprise = frame.number == SURPRISE;
                    frame.number = came.len() as u64;
                    let mut response = Response::new(frame);
                    came.into_iter().for_each(|one| response.attach(answered(one)));
                    if surprise {
                        response.attach(file("surprise"));
                    }
                    Ok(response)
                }

                async fn play(
                    &self,
                    mut request: Request<Frame>,
                ) -> Result<Response<Self::PlayStream>, Status> {
                    let came = request.attachments().unwrap();
                    let frame = request.into_inner();
                    let frames = (0..3).map(move |number| Ok(Frame { number, ..frame.clone() }));
                    let stream: Self::PlayStream = Box::pin(tokio_stream::iter(frames));
                    let mut response = Response::new(stream);
                    came.into_iter().for_each(|one| response.attach(answered(one)));
                    Ok(response)
                }

                async fn store(
                    &self,
                    mut request: Request<Streaming<Frame>>,
                ) -> Result<Response<Frame>, Status> {
                    let came = request.attachments().unwrap();
                    let mut frames = request.into_inner();
                    while frames.message().await?.is_some() {}
                    let mut response = Response::new(Frame::default());
                    came.into_iter().for_each(|one| response.attach(answered(one)));
                    Ok(response)
                }
            }

            pub(super) fn serve(host: &Host) -> Turns {
                let turns = Turns::default();
                serve_by(host, turns.clone());
                turns
            }

            pub(super) fn serve_by(host: &Host, service: impl Frames) {
                let service = FramesServer::new(service);
                let server = Server::builder().coordinator(&host.socket).add_service(service);
                tokio::spawn(server.serve("test"));
            }

            /// Gives its requests away as they came, and answers with what another service answers.
            pub(super) struct Front {
                pub(super) requests: UnboundedSender<Request<Frame>>,
                pub(super) next: Channel,
            }

            #[tonic::async_trait]
            impl Frames for Front {
                type PlayStream = Pin<Box<dyn Stream<Item = Result<Frame, Status>> + Send>>;

                async fn turn(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
                    let frame = Frame { number: request.get_ref().number, ..Default::default() };
                    let _nobody_asks = self.requests.send(request);
                    FramesClient::new(self.next.clone()).turn(frame).await
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

            /// What comes back for what is attached.
            pub(super) async fn turn(
                client: &mut FramesClient<Channel>,
                pixels: usize,
                attach: impl FnOnce(&mut Request<Frame>),
            ) -> Result<Vec<Attachment>, Status> {
                let pixels = vec![7; pixels].into();
                let mut request = Request::new(Frame { pixels, ..Frame::default() });
                attach(&mut request);
                let mut response = client.turn(request).await?;
                let came = response.attachments().unwrap();
                assert!(response.attachments().unwrap().is_empty(), "they are taken once");
                let frame = response.into_inner();
                assert_eq!(frame.number, came.len() as u64, "each is answered");
                assert!(frame.pixels.iter().all(|pixel| *pixel == 7));
                Ok(came)
            }

            /// All kinds at once, there and back, by calls of all shapes.
            pub(super) async fn all_kinds(channel: Channel) {
                let mut client = FramesClient::new(channel);
                let attach = |extensions: &mut dyn FnMut(Attachment)| {
                    extensions(sealed(1, MIB + 5).into());
                    extensions((&owned(2, 3 * MIB)).into());
                    extensions(lease(3, MIB).into());
                    extensions(file("four").into());
                };
                let check = |came: Vec<Attachment>| {
                    let [sealed, owned, lease, Attachment::File(_)] = &came[..] else {
                        panic!("{came:?}")
                    };
                    let kinds = [first(sealed), first(owned), first(lease)];
                    assert_eq!(kinds, [2, 3, 4]);
                    let Some(Attachment::File(descriptor)) = came.into_iter().nth(3) else {
                        panic!()
                    };
                    assert_eq!(read(descriptor), "four+1");
                };
                for pixels in [0, 10, 100_000, MIB] {
                    let came = turn(&mut client, pixels, |request| {
                        attach(&mut |one| request.attach(one));
                    });
                    check(came.await.unwrap());
                    assert!(turn(&mut client, pixels, |_| {}).await.unwrap().is_empty());
                }
                let mut request = Request::new(Frame::default());
                attach(&mut |one| request.attach(one));
                let mut response = client.play(request).await.unwrap();
                check(response.attachments().unwrap());
                assert_eq!(response.into_inner().collect::<Vec<_>>().await.len(), 3);
                let frames = tokio_stream::iter((0..5).map(|_| Frame::default()));
                let mut request = Request::new(frames);
                attach(&mut |one| request.attach(one));
                check(client.store(request).await.unwrap().attachments().unwrap());
            }
        }
    };
}

frames!(by_ours, ours);
frames!(by_tonics, tonics);

async fn channel(host: &Host) -> Channel {
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    endpoint.wait_for_ready(true).connect().await.unwrap()
}

type Client = ours::frames::frames_client::FramesClient<Channel>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_kinds_cross_both_ways_by_all_stubs() {
    for native in [true, false] {
        let host = Host::with(&policy(4, true));
        match native {
            true => drop(by_ours::serve(&host)),
            false => drop(by_tonics::serve(&host)),
        }
        // The first call of each channel waits for its grant.
        for _ in 0..2 {
            by_ours::all_kinds(channel(&host).await).await;
            by_tonics::all_kinds(channel(&host).await).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_attached_counts_among_the_parcels_of_its_link() {
    let host = Host::with(&policy(4, true));
    by_ours::serve(&host);
    let mut client = Client::new(channel(&host).await);
    for calls in 1..=2 {
        let came = by_ours::turn(&mut client, 0, |request| {
            request.attach(sealed(1, 3 * MIB));
            request.attach(&owned(2, 2 * MIB));
            request.attach(lease(3, MIB));
            request.attach(file("four"));
        });
        came.await.unwrap();
        let [link] = &crate::links::links(&host.socket).await[..] else { panic!() };
        let sent = [link.caller_parcels, link.stats.parcels].map(|sent| (sent.parcels, sent.bytes));
        // A file is no parcel.
        let mib = MIB as u64;
        assert_eq!(sent, [(3 * calls, 6 * mib * calls), (3 * calls, 3 * mib * calls)]);
    }
}

#[test]
fn all_kinds_cross_by_blocking_clients() {
    let host = Host::with(&policy(4, true));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let entered = runtime.enter();
    by_ours::serve(&host);
    drop(entered);
    for _ in 0..2 {
        let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
        let connect = || blocking::Channel::connect(endpoint.clone().wait_for_ready(true)).unwrap();
        let mut client = frames_blocking::FramesClient::new(connect());
        let mut channel = connect();
        for round in 0..4_u8 {
            let attach = |request: &mut Request<ours::frames::Frame>| {
                request.attach(sealed(round, MIB));
                request.attach(&owned(round + 1, MIB));
                request.attach(lease(u64::from(round), MIB));
                request.attach(file("4"));
            };
            let frame =
                || ours::frames::Frame { pixels: vec![7; MIB].into(), ..Default::default() };
            let mut request = Request::new(frame());
            attach(&mut request);
            let mut by_stubs = client.turn(request).unwrap();
            let mut request = Request::new(frame());
            attach(&mut request);
            let mut by_path: Response<ours::frames::Frame> =
                channel.unary("/frames.v1.Frames/Turn", request).unwrap();
            for response in [&mut by_stubs, &mut by_path] {
                let mut came = response.attachments().unwrap();
                let Some(Attachment::File(last)) = came.pop() else { panic!("{came:?}") };
                assert_eq!(read(last), "4+1");
                let [sealed, owned, lease] = &came[..] else { panic!("{came:?}") };
                let round = u64::from(round);
                assert_eq!(
                    [first(sealed), first(owned), first(lease)],
                    [round + 1, round + 2, round + 1]
                );
            }
            // Answers that nobody opens hold nothing up.
            let mut request = Request::new(frame());
            attach(&mut request);
            drop(client.turn(request).unwrap());
        }
    }
}

/// Mappings of leases of this length in this process.
fn mapped_leases(len: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_one = |line: &&str| {
        let (begin, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [begin, end] = [begin, end].map(|at| usize::from_str_radix(at, 16).unwrap());
        end - begin == len && line.contains("memfd:partywall-lease")
    };
    maps.lines().filter(is_one).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_lease_goes_back_and_forth_and_is_mapped_once() {
    let host = Host::with(&policy(1, true));
    by_ours::serve(&host);
    let mut client = Client::new(channel(&host).await);
    // No other test has one as long.
    let len = 17 * MIB;
    let mut held = lease(0, len);
    for round in 1..=300 {
        let came = by_ours::turn(&mut client, 0, |request| request.attach(held)).await.unwrap();
        let [Attachment::Lease(back)] = <[_; 1]>::try_from(came).unwrap() else { panic!() };
        assert_eq!([0, MIB].map(|number| back.words()[number].load(Relaxed)), [round; 2]);
        held = back;
        assert_eq!(mapped_leases(len), 1, "it is mapped each time");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_policy_does_not_let_cross_fails_before_it_is_sent() {
    let refused = async |policy: &str, attach: &dyn Fn(&mut Request<ours::frames::Frame>)| {
        let host = Host::with(policy);
        by_ours::serve(&host);
        let mut client = Client::new(channel(&host).await);
        let status = by_ours::turn(&mut client, 0, |request| attach(request)).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        // The link is as good as before.
        assert!(by_ours::turn(&mut client, 10, |_| {}).await.unwrap().is_empty());
        status.message().to_owned()
    };
    let text = refused(&policy(0, false), &|request| request.attach(file("a"))).await;
    assert!(
        text.contains("no descriptor crosses on this link") && text.contains("remedy"),
        "{text}"
    );
    let three = |request: &mut Request<_>| (0..3).for_each(|_| request.attach(file("a")));
    let text = refused(&policy(2, true), &three).await;
    assert!(text.starts_with("3 descriptors are attached, and the policy lets 2 cross"), "{text}");
    let text = refused(&policy(2, false), &|request| request.attach(lease(1, MIB))).await;
    assert!(text.starts_with("a lease is attached, and the policy lets none cross"), "{text}");

    // An answer's caller hears the same.
    let host = Host::with(&policy(0, false));
    by_ours::serve(&host);
    let frame = ours::frames::Frame { number: SURPRISE, ..Default::default() };
    let status = Client::new(channel(&host).await).turn(frame).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_attached_over_http2() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let service = ours::frames::frames_server::FramesServer::new(by_ours::Turns::default());
    tokio::spawn(Server::builder().add_service(service).serve(address));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = Client::new(endpoint.wait_for_ready(true).connect().await.unwrap());
    let attach = |request: &mut Request<_>| request.attach(file("a"));
    let status = by_ours::turn(&mut client, 0, attach).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    let text =
        "no descriptor crosses over HTTP/2; remedy: call the service by its name, over a ring";
    assert!(status.message().contains(text), "{status}");
    let frame = ours::frames::Frame { number: SURPRISE, ..Default::default() };
    let status = client.turn(frame).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains(text), "{status}");
    assert!(by_ours::turn(&mut client, 10, |_| {}).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_messages_with_descriptors_are_unread_and_the_fifth_waits() {
    let host = Host::with(&policy(1, false));
    let turns = by_ours::serve(&host);
    let client = Client::new(channel(&host).await);
    let call = |number: u64| {
        let mut client = client.clone();
        tokio::spawn(async move {
            let mut request = Request::new(ours::frames::Frame { number, ..Default::default() });
            request.attach(file("a"));
            client.turn(request).await.map(|mut response| response.attachments().unwrap().len())
        })
    };
    let mut held: Vec<_> = (0..4).map(|_| call(HOLD)).collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let fifth = call(0);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!fifth.is_finished(), "five are unread");
    // Others are not kept.
    assert!(by_ours::turn(&mut client.clone(), 10, |_| {}).await.unwrap().is_empty());
    // One that is cancelled is not read, and makes room as well.
    held.pop().unwrap().abort();
    let fifth = tokio::time::timeout(WITHIN, fifth).await.expect("there is room");
    assert_eq!(fifth.unwrap().unwrap(), 1);
    for _ in 0..10 {
        turns.hold.notify_waiters();
        tokio::task::yield_now().await;
    }
    for call in held {
        let begin = Instant::now();
        while !call.is_finished() {
            assert!(begin.elapsed() < WITHIN, "a call hangs");
            turns.hold.notify_waiters();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(call.await.unwrap().unwrap(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_writes_again_is_told_to_its_reader() {
    let host = Host::with(&policy(1, false));
    by_ours::serve(&host);
    let mut client = Client::new(channel(&host).await);
    let mut own = owned(1, MIB);
    let view = own.view();
    own.write(|bytes| bytes.fill(2));
    // A view that is not current any more: whoever reads it is told.
    let stale = by_ours::turn(&mut client, 0, |request| request.attach(&own)).await.unwrap();
    assert_eq!(first(&stale[0]), 3);
    assert!(matches!(view.read_at(0, &mut [0; 8]), Err(partywall::parcel::ParcelError::Changed)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_went_with_an_earlier_copy_is_missed() {
    let host = Host::with(&policy(1, false));
    by_ours::serve(&host);
    // The stubs of either generator.
    for native in [true, false] {
        let mut first = Request::new(ours::frames::Frame::default());
        first.attach(file("a"));
        let second = Request::from_parts(
            first.metadata().clone(),
            first.extensions().clone(),
            ours::frames::Frame::default(),
        );
        let channel = channel(&host).await;
        let (sent, missed) = match native {
            true => {
                let mut client = Client::new(channel);
                (client.turn(first).await.map(drop), client.turn(second).await.map(drop))
            }
            false => {
                let mut client = tonics::frames::frames_client::FramesClient::new(channel);
                let theirs = |request: Request<ours::frames::Frame>| {
                    request.map(|_| tonics::frames::Frame::default())
                };
                let sent = client.turn(theirs(first)).await.map(drop);
                (sent, client.turn(theirs(second)).await.map(drop))
            }
        };
        sent.unwrap();
        let missed = missed.unwrap_err();
        assert_eq!(missed.code(), Code::FailedPrecondition, "{missed}");
        assert!(missed.message().contains("an earlier copy"), "{missed}");
    }
}

/// What has come with a message would be lost.
fn refused_as_it_came<T: std::fmt::Debug>(handed_on: Result<T, Status>) {
    let status = handed_on.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("come with it from elsewhere"), "{status}");
    assert!(status.message().contains("remedy: take it"), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_handed_on_as_it_came_is_refused() {
    use ours::frames::Frame;
    let [host, front] = [(); 2].map(|()| Host::with(&policy(1, false)));
    let turns = by_ours::serve(&host);
    let next = channel(&host).await;
    let (requests, mut came) = unbounded_channel();
    by_ours::serve_by(&front, by_ours::Front { requests, next: next.clone() });
    let mut client = Client::new(channel(&front).await);
    let mut request = async || {
        let mut request = Request::new(Frame::default());
        request.attach(file("a"));
        client.turn(request).await.unwrap();
        came.recv().await.unwrap()
    };
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    let blocking = || blocking::Channel::connect(endpoint.clone()).unwrap();
    for way in 0..5 {
        let mut request = request().await;
        let calls = turns.calls.load(Relaxed);
        match way {
            0 => refused_as_it_came(Client::new(next.clone()).turn(request).await),
            1 => {
                assert!(request.extensions_mut().remove::<Peer>().is_some());
                refused_as_it_came(Client::new(next.clone()).turn(request).await);
            }
            2 => {
                let request = request.map(|_| tonics::frames::Frame::default());
                let mut client = tonics::frames::frames_client::FramesClient::new(next.clone());
                refused_as_it_came(client.turn(request).await);
            }
            3 => tokio::task::block_in_place(|| {
                refused_as_it_came(frames_blocking::FramesClient::new(blocking()).turn(request));
            }),
            _ => tokio::task::block_in_place(|| {
                let path = "/frames.v1.Frames/Turn";
                refused_as_it_came(blocking().unary::<_, Frame>(path, request));
            }),
        }
        assert_eq!(turns.calls.load(Relaxed), calls, "it is sent");
    }
    // The remedy.
    let mut request = request().await;
    let came = request.attachments().unwrap();
    came.into_iter().for_each(|one| request.attach(one));
    let mut response = Client::new(next).turn(request).await.unwrap();
    assert_eq!(response.attachments().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_handed_on_as_it_came_is_refused() {
    let host = Host::with(&policy(1, false));
    by_ours::serve(&host);
    let next = channel(&host).await;
    for native in [true, false] {
        let front = Host::with(&policy(1, false));
        match native {
            true => {
                let requests = unbounded_channel().0;
                by_ours::serve_by(&front, by_ours::Front { requests, next: next.clone() });
            }
            false => {
                let requests = unbounded_channel().0;
                by_tonics::serve_by(&front, by_tonics::Front { requests, next: next.clone() });
            }
        }
        let mut client = Client::new(channel(&front).await);
        let frame = |number| ours::frames::Frame { number, ..Default::default() };
        // The first call goes the ordinary way.
        for _ in 0..2 {
            client.turn(frame(0)).await.unwrap();
            refused_as_it_came(client.turn(frame(SURPRISE)).await);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_no_grant_ever_comes_nobody_waits_for_it() {
    let service = ours::frames::frames_server::FramesServer::new(by_ours::Turns::default());
    let channel = Server::builder().add_service(service).in_process().unwrap();
    let mut client = Client::new(channel);
    let attach = |request: &mut Request<_>| request.attach(file("a"));
    let status = by_ours::turn(&mut client, 0, attach);
    let status = tokio::time::timeout(WITHIN, status).await.expect("it waits").unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    let frame = ours::frames::Frame { number: SURPRISE, ..Default::default() };
    let status = tokio::time::timeout(WITHIN, client.turn(frame)).await.expect("it waits");
    assert_eq!(status.unwrap_err().code(), Code::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attached_to_an_answer_it_does_not_vanish_in_tonics_channel() {
    let host = Host::with(&policy(1, false));
    by_ours::serve(&host);
    let channel = channel(&host).await.into_tonic();
    let mut client = tonics::frames::frames_client::FramesClient::new(channel);
    let frame = |number| tonics::frames::Frame { number, ..Default::default() };
    client.turn(frame(1)).await.unwrap();
    let status = client.turn(frame(SURPRISE)).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
}

#[test]
fn a_blocked_caller_hears_that_another_thread_has_read_an_answer() {
    let host = Host::with(&policy(1, false));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let entered = runtime.enter();
    by_ours::serve(&host);
    drop(entered);
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    let channel = blocking::Channel::connect(endpoint.wait_for_ready(true)).unwrap();
    let mut client = frames_blocking::FramesClient::new(channel);
    let mut call = || {
        let frame = ours::frames::Frame { number: SURPRISE, ..Default::default() };
        client.turn(frame).unwrap()
    };
    // The first answer waits for this end's grant.
    let mut held: Vec<_> = (0..4).map(|_| call()).collect();
    let begin = Instant::now();
    let reader = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        held.pop().unwrap().attachments().unwrap().len()
    });
    let mut fifth = call();
    assert!(begin.elapsed() >= Duration::from_millis(200), "five are unread");
    assert_eq!((fifth.attachments().unwrap().len(), reader.join().unwrap()), (1, 1));
}
