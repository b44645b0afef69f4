//! The camera: makes a frame at each sixtieth of a second and sends it to the processor.
//!
//! Ways take turns. A way has a few frames' memory, which is used again when its call is answered. A frame
//! that is due while all of it is under way is dropped, and so is one whose time has passed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::BytesMut;
use clap::Args;
use partywall::parcel::{Attach, Owned};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tonic::Request;

use crate::processor_client::ProcessorClient;
use crate::{Error, Frame, MOST, picture};

/// Frames' memory of each way.
const POOL: usize = 3;

#[derive(Debug, Args)]
pub struct Options {
    /// The processor's name
    #[arg(long, default_value = "partywall:///processor")]
    to: String,
    /// The Unix socket at which the processor serves gRPC: every other turn goes this way
    #[arg(long, value_name = "PATH")]
    grpc: Option<PathBuf>,
    /// Frames a second
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rate: u32,
    /// Seconds of a turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    turn: u64,
}

/// Films until Ctrl-C.
///
/// # Errors
/// A call has failed.
pub async fn run(options: Options) -> Result<(), Error> {
    tokio::select! {
        filmed = film(options) => filmed,
        stopped = crate::stopped() => Ok(stopped?),
    }
}

async fn film(options: Options) -> Result<(), Error> {
    let channel =
        partywall::Endpoint::new(options.to.as_str())?.wait_for_ready(true).connect().await;
    let channel = channel.map_err(|error| format!("no link to {}: {error}", options.to))?;
    let mut ways = vec![Way::parcels(ProcessorClient::new(channel))?];
    if let Some(path) = &options.grpc {
        ways.push(Way::messages(grpc(path).await?));
    }
    let (mut turn, mut number) = (0, 0);
    loop {
        for way in &mut ways {
            turn += 1;
            number = way.take_turn(turn, number, &options).await?;
        }
    }
}

async fn grpc(path: &Path) -> Result<ProcessorClient<tonic::transport::Channel>, Error> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("unix:{}", path.display()))?;
    let channel = endpoint.connect().await;
    let channel = channel.map_err(|error| {
        format!("no gRPC at {}: {error}; remedy: `process --grpc` with this path", path.display())
    })?;
    Ok(ProcessorClient::new(channel).max_encoding_message_size(MOST))
}

/// How frames go to the processor, and their memory.
#[derive(Debug)]
struct Way {
    client: Client,
    pool: Vec<Memory>,
}

#[derive(Clone, Debug)]
enum Client {
    Parcels(ProcessorClient<partywall::Channel>),
    Messages(ProcessorClient<tonic::transport::Channel>),
}

/// Memory of a frame, and the number of the one that is drawn there.
#[derive(Debug)]
struct Memory {
    pixels: Pixels,
    drawn: Option<u64>,
}

#[derive(Debug)]
enum Pixels {
    Parcel(Owned),
    Message(BytesMut),
}

impl Way {
    fn parcels(client: ProcessorClient<partywall::Channel>) -> Result<Self, Error> {
        let parcel =
            |_| Ok(Memory { pixels: Pixels::Parcel(Owned::new(picture::BYTES)?), drawn: None });
        let pool = (0..POOL).map(parcel).collect::<Result<_, Error>>()?;
        Ok(Self { client: Client::Parcels(client), pool })
    }

    fn messages(client: ProcessorClient<tonic::transport::Channel>) -> Self {
        let message =
            |_| Memory { pixels: Pixels::Message(BytesMut::zeroed(picture::BYTES)), drawn: None };
        Self { client: Client::Messages(client), pool: (0..POOL).map(message).collect() }
    }

    /// Sends frames for the time of a turn, from the number after this one on; the last number.
    async fn take_turn(&mut self, turn: u64, number: u64, options: &Options) -> Result<u64, Error> {
        let period = Duration::from_secs(1) / options.rate;
        let begin = Instant::now() + period;
        let mut times = interval_at(begin, period);
        times.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut calls = JoinSet::new();
        let (mut last, mut round_trip) = (0, Duration::ZERO);
        loop {
            let due = times.tick().await - begin;
            if due >= Duration::from_secs(options.turn) {
                break;
            }
            // The number of the time, so that what has passed counts.
            last = 1 + (due.as_nanos() / period.as_nanos()) as u64;
            while let Some(answered) = calls.try_join_next() {
                let (memory, took) = answered??;
                self.pool.push(memory);
                round_trip = took;
            }
            let Some(mut memory) = self.pool.pop() else { continue };
            memory.draw(number + last);
            let frame = Frame {
                number: number + last,
                turn,
                due_us: due.as_micros() as u64,
                cpu_us: crate::cpu().as_micros() as u64,
                round_trip_us: round_trip.as_micros() as u64,
                ..Frame::default()
            };
            calls.spawn(self.client.clone().send(frame, memory));
        }
        while let Some(answered) = calls.join_next().await {
            self.pool.push(answered??.0);
        }
        Ok(number + last)
    }
}

impl Memory {
    /// A camera's own memory is written by the device; here as little as possible is.
    fn draw(&mut self, number: u64) {
        let before = self.drawn.replace(number);
        match &mut self.pixels {
            Pixels::Parcel(owned) => owned.write(|pixels| picture::draw(pixels, before, number)),
            Pixels::Message(pixels) => picture::draw(pixels, before, number),
        }
    }
}

impl Client {
    /// The memory back, and how long the call took.
    async fn send(self, mut frame: Frame, mut memory: Memory) -> Result<(Memory, Duration), Error> {
        let (number, begin) = (frame.number, Instant::now());
        let answered = match (self, &mut memory.pixels) {
            (Self::Parcels(mut client), Pixels::Parcel(owned)) => {
                let mut request = Request::new(frame);
                request.attach(&*owned);
                client.process(request).await
            }
            (Self::Messages(mut client), Pixels::Message(pixels)) => {
                let shared = std::mem::take(pixels).freeze();
                frame.pixels = shared.clone();
                let answered = client.process(frame).await;
                // Nobody else has it now; otherwise it is copied.
                *pixels = shared.into();
                answered
            }
            (client, pixels) => unreachable!("{client:?} has no {pixels:?}"),
        };
        answered.map_err(|status| {
            format!("frame {number}: {:?}: {}", status.code(), status.message())
        })?;
        Ok((memory, begin.elapsed()))
    }
}
