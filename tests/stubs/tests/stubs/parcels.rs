//! Long messages travel in parcels where the policy lets descriptors cross, and as bytes elsewhere.

use std::pin::Pin;

use partywall::parcel::Sealed;
use partywall::{Channel, Endpoint, Server};
use partywall_stubs_tests::{ours, tonics};
use partywall_testkit::{Host, OPEN, Random};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::codegen::Bytes;
use tonic::{Request, Response, Status, Streaming};

/// From so many bytes on messages travel in parcels here.
const LONG: usize = 256 * 1024;
const MOST: usize = 64 << 20;

/// A policy that lets so many descriptors cross.
fn policy(descriptors: u32) -> String {
    let rule = format!("anyone = {{ methods = ['*'], descriptors = {descriptors} }}");
    OPEN.replace("anyone = ['*']", &rule)
}

fn pixels(len: usize, seed: u64) -> Bytes {
    let mut random = Random::new(seed);
    let pattern: Vec<u8> = (0..4096).map(|_| random.draw() as u8).collect();
    let mut all = pattern.repeat(len.div_ceil(pattern.len()));
    all.truncate(len);
    all.into()
}

/// The same service by the stubs of either generator.
macro_rules! frames {
    ($module:ident, $stubs:ident) => {
        mod $module {
            use super::*;
            use $stubs::frames::Frame;
            use $stubs::frames::frames_client::FramesClient;
            use $stubs::frames::frames_server::{Frames, FramesServer};

            struct Turns;

            #[tonic::async_trait]
            impl Frames for Turns {
                type PlayStream = Pin<Box<dyn Stream<Item = Result<Frame, Status>> + Send>>;

                async fn turn(&self, frame: Request<Frame>) -> Result<Response<Frame>, Status> {
                    let mut frame = frame.into_inner();
                    frame.in_parcel = Sealed::of(&frame.pixels).is_some();
                    frame.number += 1;
                    Ok(Response::new(frame))
                }

                async fn play(
                    &self,
                    frame: Request<Frame>,
                ) -> Result<Response<Self::PlayStream>, Status> {
                    let frame = frame.into_inner();
                    let frames = (0..frame.number).map(move |number| {
                        let mut frame = frame.clone();
                        frame.number = number;
                        // Long ones and short ones take turns.
                        frame.pixels.truncate(frame.pixels.len() >> (8 * (number % 2)));
                        Ok(frame)
                    });
                    Ok(Response::new(Box::pin(tokio_stream::iter(frames))))
                }

                async fn store(
                    &self,
                    frames: Request<Streaming<Frame>>,
                ) -> Result<Response<Frame>, Status> {
                    let (mut frames, mut all) = (frames.into_inner(), Frame::default());
                    let mut pixels = Vec::new();
                    while let Some(frame) = frames.message().await? {
                        assert_eq!(frame.number, all.number, "in order");
                        all.number += 1;
                        pixels.extend_from_slice(&frame.pixels);
                    }
                    all.pixels = pixels.into();
                    Ok(Response::new(all))
                }
            }

            pub(super) fn serve(host: &Host) {
                partywall::parcel::pack_from(LONG);
                let service = FramesServer::new(Turns)
                    .max_decoding_message_size(MOST)
                    .max_encoding_message_size(MOST);
                let server = Server::builder().coordinator(&host.socket).add_service(service);
                tokio::spawn(server.serve("test"));
            }

            pub(super) fn client(channel: Channel) -> FramesClient<Channel> {
                FramesClient::new(channel)
                    .max_decoding_message_size(MOST)
                    .max_encoding_message_size(MOST)
            }

            /// A frame there and back: whether the handler and the caller have it in a parcel.
            pub(super) async fn turn(
                client: &mut FramesClient<Channel>,
                len: usize,
                seed: u64,
            ) -> (bool, bool) {
                let frame = Frame { number: seed, pixels: pixels(len, seed), in_parcel: false };
                let turned = client.turn(frame.clone()).await.unwrap().into_inner();
                assert_eq!(turned.number, seed + 1);
                assert!(turned.pixels == frame.pixels, "{len} other bytes");
                (turned.in_parcel, Sealed::of(&turned.pixels).is_some())
            }

            /// Frames in streams of both directions.
            pub(super) async fn stream(client: &mut FramesClient<Channel>, len: usize) {
                let count = 40;
                let frame = move |number| {
                    let pixels = pixels(len >> (8 * (number % 2)), number);
                    Frame { number, pixels, in_parcel: false }
                };
                let all = client.store(tokio_stream::iter((0..count).map(frame))).await.unwrap();
                let wanted: Vec<_> = (0..count).flat_map(|number| frame(number).pixels).collect();
                assert!(all.into_inner().pixels == wanted, "other bytes were stored");
                let asked = Frame { number: count, pixels: pixels(len, 7), in_parcel: false };
                let mut played = client.play(asked.clone()).await.unwrap().into_inner();
                let mut number = 0;
                while let Some(frame) = played.next().await {
                    let frame = frame.unwrap();
                    assert_eq!(frame.number, number);
                    assert!(frame.pixels == asked.pixels[..len >> (8 * (number % 2))]);
                    number += 1;
                }
                assert_eq!(number, count);
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

/// Calls with so many bytes until they lie in parcels both ways: the two ends have their descriptor sockets,
/// and the coordinators of all tests have been asked for as much memory.
async fn until_in_parcels(
    client: &mut ours::frames::frames_client::FramesClient<Channel>,
    len: usize,
    seed: u64,
) {
    let granted = async { while by_ours::turn(client, len, seed).await != (true, true) {} };
    let within = std::time::Duration::from_secs(20);
    tokio::time::timeout(within, granted).await.expect("no message comes in a parcel");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_messages_come_in_parcels_and_short_ones_do_not() {
    let host = Host::with(&policy(1));
    by_ours::serve(&host);
    let mut client = by_ours::client(channel(&host).await);
    for (seed, len) in (2..).zip([LONG, LONG + 1, 4 << 20, 20 << 20]) {
        until_in_parcels(&mut client, len, seed).await;
    }
    for (seed, len) in (2..).zip([0, 1, 1000, 60_000, LONG / 2, LONG - 1000]) {
        let came = by_ours::turn(&mut client, len, seed).await;
        assert_eq!(came, (false, false), "{len} bytes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_grant_long_messages_travel_as_bytes() {
    let host = Host::with(&policy(0));
    by_ours::serve(&host);
    let mut client = by_ours::client(channel(&host).await);
    for (seed, len) in (0..10).zip([LONG, 4 << 20].into_iter().cycle()) {
        assert_eq!(by_ours::turn(&mut client, len, seed).await, (false, false));
    }
}

/// A call whose frames come when they are sent, and which is under way.
async fn under_way(
    client: &ours::frames::frames_client::FramesClient<Channel>,
) -> (mpsc::Sender<ours::frames::Frame>, JoinHandle<Result<u64, Status>>) {
    let (frames, body) = mpsc::channel(1);
    let mut client = client.clone();
    let call = async move {
        let stored = client.store(ReceiverStream::new(body)).await;
        stored.map(|all| all.into_inner().number)
    };
    let call = tokio::spawn(call);
    for number in 0..3 {
        // The last one finds room when the link has taken one.
        let frame = ours::frames::Frame { number, ..Default::default() };
        frames.send(frame).await.unwrap();
    }
    (frames, call)
}

/// Waits until the coordinator lists one open link. A question that was under way to the one before is
/// answered by its end.
async fn until_listed(socket: &std::path::Path) {
    let links = || match partywall::operator::links(Some(socket)) {
        Err(partywall::Error::CoordinatorGone(_)) => Vec::new(),
        links => links.unwrap(),
    };
    let listed = async {
        while links().iter().filter(|link| link.open).count() != 1 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let within = std::time::Duration::from_secs(10);
    tokio::time::timeout(within, listed).await.expect("the link is reported");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_parcels_cross_by_the_new_policy_only() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("coordinator.sock");
    let host = Host::at(&socket, &policy(1));
    by_ours::serve(&host);
    let mut client = by_ours::client(channel(&host).await);
    until_in_parcels(&mut client, LONG, 1).await;

    let (frames, call) = under_way(&client).await;
    drop(host);
    let host = Host::at(&socket, &policy(1));
    until_listed(&socket).await;
    drop(frames);
    assert_eq!(call.await.unwrap().unwrap(), 3);
    until_in_parcels(&mut client, LONG, 2).await;

    let (_frames, call) = under_way(&client).await;
    drop(host);
    let host = Host::at(&socket, &policy(0));
    let within = std::time::Duration::from_secs(10);
    let ended = tokio::time::timeout(within, call).await.expect("the link is ended");
    let status = ended.unwrap().unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    assert!(status.message().contains("0 by the policy, 1 on this link"), "{status}");
    let mut client = by_ours::client(channel(&host).await);
    assert_eq!(by_ours::turn(&mut client, LONG, 3).await, (false, false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_all_stubs_and_streams_are_what_was_sent() {
    for descriptors in [0, 1] {
        let host = Host::with(&policy(descriptors));
        by_tonics::serve(&host);
        let mut tonics = by_tonics::client(channel(&host).await);
        for (seed, len) in (0..).zip([10, LONG - 20, LONG, 3 << 20, 20 << 20]) {
            // tonic puts a message together in memory of its own.
            assert_eq!(by_tonics::turn(&mut tonics, len, seed).await, (false, false));
        }
        by_tonics::stream(&mut tonics, 1 << 20).await;
        by_ours::stream(&mut by_ours::client(channel(&host).await), 1 << 20).await;
    }
}

/// Messages of so many bytes travel in owned parcels, which are used again.
const OWNED: usize = 200 * 1024;

/// Whether this process has such memory.
fn has_owned() -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains("memfd:partywall-owned")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_in_owned_parcels_are_what_was_sent() {
    let host = Host::with(&policy(1));
    by_tonics::serve(&host);
    let mut tonics = by_tonics::client(channel(&host).await);
    let mut own = by_ours::client(channel(&host).await);
    let begin = std::time::Instant::now();
    let mut seed = 0;
    while !has_owned() || seed < 200 {
        assert!(
            begin.elapsed() < std::time::Duration::from_secs(60),
            "no message is in memory of its link"
        );
        for len in [OWNED, OWNED - 1000, OWNED / 2, OWNED + 10_000] {
            assert_eq!(by_ours::turn(&mut own, len, seed).await, (false, false));
            assert_eq!(by_tonics::turn(&mut tonics, len, seed).await, (false, false));
        }
        seed += 1;
    }
    by_tonics::stream(&mut tonics, OWNED).await;
    by_ours::stream(&mut own, OWNED).await;
    let mut calls = tokio::task::JoinSet::new();
    for lane in 0..32_u64 {
        let mut client = own.clone();
        calls.spawn(async move {
            for n in 0..8 {
                by_ours::turn(&mut client, OWNED - 100 * n, lane << 8 | n as u64).await;
            }
        });
    }
    calls.join_all().await;
}

/// What the caller and the server say of the only link that is listed: descriptors, then parcels and bytes.
async fn said(host: &Host) -> (u32, [[u64; 2]; 2]) {
    let socket = host.socket.clone();
    let list = move || partywall::operator::links(Some(&socket)).unwrap();
    let links = tokio::task::spawn_blocking(list).await.unwrap();
    let [link] = &links[..] else { panic!("{links:?}") };
    let sent = [link.caller_parcels, link.stats.parcels];
    (link.grant.descriptors, sent.map(|sent| [sent.parcels, sent.bytes]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_says_what_each_end_has_sent_in_parcels() {
    let host = Host::with(&policy(2));
    by_ours::serve(&host);
    let mut client = by_ours::client(channel(&host).await);
    until_in_parcels(&mut client, LONG, 1).await;
    let (descriptors, before) = said(&host).await;
    assert_eq!(descriptors, 2);
    let mut seen = [[0; 2]; 2];
    for (seed, len) in (2..).zip([LONG, 1000, 3 << 20, LONG, 4 << 20]) {
        let (there, back) = by_ours::turn(&mut client, len, seed).await;
        for ([parcels, bytes], came) in seen.iter_mut().zip([there, back]) {
            *parcels += u64::from(came);
            *bytes += if came { len as u64 } else { 0 };
        }
    }
    let (_, after) = said(&host).await;
    for ((before, after), [parcels, bytes]) in before.into_iter().zip(after).zip(seen) {
        assert_eq!(after[0] - before[0], parcels);
        let said = after[1] - before[1];
        assert!((bytes..bytes + 100).contains(&said), "{said} of {bytes}");
    }
    let host = Host::with(&policy(0));
    by_ours::serve(&host);
    let mut client = by_ours::client(channel(&host).await);
    by_ours::turn(&mut client, LONG, 2).await;
    assert_eq!(said(&host).await, (0, [[0; 2]; 2]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_long_messages_at_once_all_arrive() {
    let host = Host::with(&policy(1));
    by_ours::serve(&host);
    let mut client = by_ours::client(channel(&host).await);
    until_in_parcels(&mut client, LONG, 1).await;
    let mut calls = tokio::task::JoinSet::new();
    for lane in 0..32_u64 {
        let mut client = client.clone();
        calls.spawn(async move {
            let mut in_parcels = 0;
            for n in 0..8 {
                let len = LONG + (lane * 8 + n) as usize * 1000;
                let (there, back) = by_ours::turn(&mut client, len, lane * 100 + n).await;
                in_parcels += usize::from(there) + usize::from(back);
            }
            in_parcels
        });
    }
    let in_parcels: usize = calls.join_all().await.into_iter().sum();
    // Those that find four unread go as bytes.
    assert!(in_parcels > 32, "{in_parcels} of 512");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_channels_send_and_take_parcels() {
    let host = Host::with(&policy(1));
    by_ours::serve(&host);
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    let endpoint = endpoint.wait_for_ready(true);
    let calls = move || {
        use ours::frames::Frame;
        use ours::frames::frames_blocking::FramesClient;
        let channel = partywall::blocking::Channel::connect(&endpoint).unwrap();
        let mut client = FramesClient::new(channel)
            .max_decoding_message_size(MOST)
            .max_encoding_message_size(MOST);
        let mut turn = |len, seed| {
            let frame = Frame { number: seed, pixels: pixels(len, seed), in_parcel: false };
            let turned = client.turn(frame.clone()).unwrap().into_inner();
            assert!(turned.pixels == frame.pixels, "{len} other bytes");
            (turned.in_parcel, Sealed::of(&turned.pixels).is_some())
        };
        let begin = std::time::Instant::now();
        for (seed, len) in (2..).zip([LONG, 4 << 20, 20 << 20]) {
            let mut turns = 0;
            while turn(len, seed) != (true, true) {
                turns += 1;
                assert!(begin.elapsed().as_secs() < 20, "no message comes in a parcel");
                // Once descriptors cross, a thread of one's own waits for what the coordinator says. A
                // message goes as bytes where those before it have not come back yet.
                assert!(len == LONG || turns < 8, "{len} bytes do not come in a parcel");
            }
        }
        for (seed, len) in (2..).zip([0, 1000, 60_000, LONG / 2]) {
            assert_eq!(turn(len, seed), (false, false), "{len} bytes");
        }
        for n in 0..100 {
            assert_eq!(turn(OWNED - 700 * n, n as u64), (false, false));
        }
        assert!(has_owned());
    };
    tokio::task::spawn_blocking(calls).await.unwrap();
    // Its last word was said when it was dropped.
    let (_, [[parcels, bytes], _]) = said(&host).await;
    assert!(parcels >= 3 && bytes > (24 << 20) + LONG as u64, "{parcels} {bytes}");
}

/// A buffer in a parcel of the channel's link, as soon as descriptors cross.
async fn in_parcel(channel: &Channel, len: usize, with: u8) -> Bytes {
    let written = async {
        loop {
            let mut buffer = channel.buffer(len).await;
            if buffer.is_in_parcel() {
                buffer.fill(with);
                return buffer.freeze();
            }
        }
    };
    let within = std::time::Duration::from_secs(10);
    tokio::time::timeout(within, written).await.expect("no buffer is in a parcel")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_field_that_lies_in_a_parcel_travels_there_uncopied() {
    use ours::frames::Frame;

    let host = Host::with(&policy(1));
    by_ours::serve(&host);
    let channel = channel(&host).await;
    let mut client = by_ours::client(channel.clone());
    until_in_parcels(&mut client, LONG, 1).await;
    let mut fields = Vec::new();
    for with in 1..=4 {
        fields.push(in_parcel(&channel, OWNED, with).await);
    }
    assert!(!channel.buffer(OWNED).await.is_in_parcel(), "four at a time");
    // No place of the link is left that a message could be copied into.
    let sent = async || said(&host).await.1[0];
    let mut before = sent().await;
    let mut turn = async |pixels: Bytes, number, parcels| {
        let frame = Frame { number, pixels, in_parcel: true };
        let turned = client.turn(frame.clone()).await.unwrap().into_inner();
        assert_eq!((turned.number, turned.in_parcel), (number + 1, false));
        assert!(turned.pixels == frame.pixels, "other bytes");
        let after = sent().await;
        assert_eq!(after[0] - before[0], parcels);
        before = after;
    };
    for (field, with) in fields.iter().zip(1..) {
        assert_eq!(field[..], [with; OWNED]);
        turn(field.clone(), u64::from(with) << 40, 1).await;
    }
    turn(pixels(OWNED, 9), 9, 0).await;
    turn(fields[0].slice(1..), 10, 0).await;
    // Longer, shorter and no numbers before it, and one field behind it.
    for (field, number) in fields.iter().zip([0, 1, u64::MAX - 1, 1 << 20]) {
        turn(field.clone(), number, 1).await;
    }
    let messages = fields.iter().cycle().take(200).zip(0..).map(|(field, n)| {
        let (mut client, field) = (by_ours::client(channel.clone()), field.clone());
        async move {
            // What comes before the field has another length each time.
            let frame = Frame { number: 1 << (n % 64), pixels: field.clone(), in_parcel: false };
            let turned = client.turn(frame).await.unwrap().into_inner();
            assert_eq!(turned.number, (1 << (n % 64)) + 1);
            assert!(turned.pixels == field);
        }
    });
    messages.collect::<tokio::task::JoinSet<()>>().join_all().await;
    drop(fields);
    in_parcel(&channel, OWNED, 1).await;
}
