//! UDP on the loopback interface with a layer of its own that makes it reliable: a window, cumulative
//! acknowledgements, and going back to the first packet that is missing when nothing comes for a while.
//!
//! | byte of a packet | |
//! |---|---|
//! | 0 | number of the block, both ways counted together |
//! | 8 | data: index of the packet; acknowledgement: how many packets have come without a gap |
//! | 12 | 0 data, 1 acknowledgement |
//! | from 16 | data: [`PAYLOAD`] bytes of the block, fewer in the last packet |
//!
//! | who | hears | does |
//! |---|---|---|
//! | sender | an acknowledgement of this block | sends on within the window |
//! | sender | data of a later block | has been acknowledged, and that was lost: goes on |
//! | both | data of an earlier block | acknowledges all of that: the last acknowledgement was lost |
//! | sender | nothing for [`PATIENCE`] | sends again from the first packet that is not acknowledged |
//! | receiver | the packet that is next | keeps it; acknowledges the last one and each half of a window |
//! | receiver | another packet of this block | acknowledges what it has: one was lost |
//! | receiver | nothing for [`PATIENCE`] | acknowledges what it has |
//!
//! Who sends and finds no socket any more knows that the other side has gone: a sender then has no more to
//! do, since the other side leaves only with all that it wanted, and a receiver says so.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg, sockopt,
};

use super::drive::{End, measure_pairs, serve_pairs};
use super::turn::{Reader, Turn};
use super::{pairs, sleeping};
use crate::calls::uds_epoll::tune;
use crate::contender::{Contender, Kind};
use crate::error::Result;

/// Datagrams with acknowledgements.
pub const UDP_RELIABLE: Contender = Contender::new(
    Kind::Other,
    "udp-reliable",
    "UDP on the loopback interface with a window and acknowledgements",
    sleeping,
    |seat| measure_pairs(seat, Datagrams::new),
)
.opened(|case| pairs(case, sockets))
.served(|seat| serve_pairs(seat, Datagrams::new));

/// Data of a packet: as many pages as a datagram has room for.
const PAYLOAD: usize = 60 << 10;

/// What the kernel counts for such a packet, at most.
const CHARGE: usize = 128 << 10;

/// Packets on their way, at most.
const WINDOW: usize = 16;

const HEAD: usize = 16;

/// How long either side waits before it repeats itself.
const PATIENCE: Duration = Duration::from_millis(20);

fn sockets() -> Result<(OwnedFd, OwnedFd)> {
    let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
    let (server, client) = (bind()?, bind()?);
    server.connect(client.local_addr()?)?;
    client.connect(server.local_addr()?)?;
    for socket in [&server, &client] {
        tune(socket)?;
        socket.set_read_timeout(Some(PATIENCE))?;
    }
    Ok((server.into(), client.into()))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heard {
    /// So many packets of a block have come.
    Acknowledged { block: u64, packets: usize },
    /// A packet of a block, with so many bytes of it.
    Data { block: u64, index: usize, len: usize },
    /// Nothing in time.
    Nothing,
    /// There is no other side.
    Gone,
}

struct Datagrams {
    socket: OwnedFd,
    block: Vec<u8>,
    /// The number of the last block.
    number: u64,
    window: usize,
}

impl Datagrams {
    fn new(socket: OwnedFd, bytes: usize) -> Result<Self> {
        let room = sockopt::socket_recv_buffer_size(&socket)?;
        let window = (room / CHARGE).clamp(2, WINDOW);
        Ok(Self { socket, block: vec![0; bytes], number: 0, window })
    }

    fn packets(&self) -> usize {
        self.block.len().div_ceil(PAYLOAD)
    }

    fn range(&self, index: usize) -> std::ops::Range<usize> {
        index * PAYLOAD..self.block.len().min((index + 1) * PAYLOAD)
    }

    /// Sends a packet of data. False if the other side has gone.
    fn send_data(&self, index: usize) -> Result<bool> {
        let data = &self.block[self.range(index)];
        send(&self.socket, &[IoSlice::new(&head(self.number, index, false)), IoSlice::new(data)])
    }

    /// Acknowledges so many packets of a block. False if the other side has gone.
    fn acknowledge(&self, block: u64, packets: usize) -> Result<bool> {
        send(&self.socket, &[IoSlice::new(&head(block, packets, true))])
    }

    /// Hears a packet. The data of one goes to the place of packet `index`, whichever it is.
    fn hear(&mut self, index: usize) -> Result<Heard> {
        let range = self.range(index);
        let mut head = [0; HEAD];
        let mut parts = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut self.block[range])];
        let heard = hear(&self.socket, &mut parts)?;
        Ok(heard.map_or_else(|other| other, |len| parse(head, len)))
    }

    /// Hears a packet whose data is of no use.
    fn hear_no_data(&self) -> Result<Heard> {
        let mut head = [0; HEAD];
        let heard = hear(&self.socket, &mut [IoSliceMut::new(&mut head)])?;
        Ok(heard.map_or_else(|other| other, |len| parse(head, len)))
    }
}

fn head(block: u64, index: usize, is_ack: bool) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&block.to_le_bytes());
    head[8..12].copy_from_slice(&(index as u32).to_le_bytes());
    head[12] = u8::from(is_ack);
    head
}

fn parse(head: [u8; HEAD], len: usize) -> Heard {
    let [block @ .., i0, i1, i2, i3, kind, _, _, _] = head;
    let (block, index) = (u64::from_le_bytes(block), u32::from_le_bytes([i0, i1, i2, i3]) as usize);
    match (len.checked_sub(HEAD), kind) {
        (Some(len), 0) => Heard::Data { block, index, len },
        (Some(_), 1) => Heard::Acknowledged { block, packets: index },
        _ => Heard::Nothing,
    }
}

/// Sends a packet. False if nobody is left to hear it.
fn send(socket: &OwnedFd, parts: &[IoSlice<'_>]) -> Result<bool> {
    loop {
        match sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), SendFlags::empty()) {
            Ok(_) => return Ok(true),
            Err(Errno::CONNREFUSED) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives a packet and returns its length, or what else has happened.
fn hear(socket: &OwnedFd, parts: &mut [IoSliceMut<'_>]) -> Result<Result<usize, Heard>> {
    let mut control = RecvAncillaryBuffer::default();
    match recvmsg(socket, parts, &mut control, RecvFlags::empty()) {
        Ok(found) => Ok(Ok(found.bytes)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Err(Heard::Nothing)),
        Err(Errno::CONNREFUSED) => Ok(Err(Heard::Gone)),
        Err(error) => Err(error.into()),
    }
}

impl End for Datagrams {
    fn pass(&mut self, turn: Turn) -> Result<()> {
        turn.fill(&mut self.block);
        self.number += 1;
        let all = self.packets();
        let (mut acknowledged, mut next, mut is_there) = (0, 0, true);
        while acknowledged < all && is_there {
            if next < all.min(acknowledged + self.window) {
                is_there = self.send_data(next)?;
                next += 1;
                continue;
            }
            match self.hear_no_data()? {
                Heard::Acknowledged { block, packets } if block == self.number => {
                    acknowledged = acknowledged.max(packets.min(all));
                    next = next.max(acknowledged);
                }
                Heard::Data { block, .. } if block > self.number => acknowledged = all,
                Heard::Data { block, .. } if block < self.number => {
                    is_there = self.acknowledge(block, all)?;
                }
                Heard::Nothing => next = acknowledged,
                Heard::Gone => is_there = false,
                Heard::Acknowledged { .. } | Heard::Data { .. } => {}
            }
        }
        Ok(())
    }

    fn receive(&mut self, reader: &mut Reader) -> Result<bool> {
        self.number += 1;
        let (all, mut next, mut is_there) = (self.packets(), 0, true);
        while next < all && is_there {
            match self.hear(next)? {
                Heard::Data { block, index, len }
                    if (block, index, len) == (self.number, next, self.range(next).len()) =>
                {
                    next += 1;
                    if next == all || next.is_multiple_of(self.window / 2) {
                        // Who has all of a block learns with the next one that nobody is left.
                        is_there = self.acknowledge(block, next)? || next == all;
                    }
                }
                Heard::Data { block, .. } if block < self.number => {
                    is_there = self.acknowledge(block, all)?;
                }
                Heard::Data { .. } | Heard::Nothing => {
                    is_there = self.acknowledge(self.number, next)?;
                }
                Heard::Gone => is_there = false,
                Heard::Acknowledged { .. } => {}
            }
        }
        if is_there {
            reader.read(&self.block);
        }
        Ok(is_there)
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::transfer::turn::PAGE;
    use partywall_testkit::Random;

    const BYTES: usize = 70 * 15 * PAGE + PAGE;

    fn ends(server: OwnedFd, client: OwnedFd) -> [Datagrams; 2] {
        [server, client].map(|socket| Datagrams::new(socket, BYTES).expect("an end"))
    }

    /// Passes blocks to and fro; how many came out right at the client.
    fn pass(mut server: Datagrams, client: Datagrams, blocks: usize) -> usize {
        std::thread::scope(|scope| {
            // The server learns that there is nobody when this socket is closed, by a panic too.
            let mut client = client;
            let serving = scope.spawn(move || {
                let mut turn = Turn::first(0);
                loop {
                    let mut reader = Reader::new(turn, BYTES);
                    if !server.receive(&mut reader).expect("received") {
                        return;
                    }
                    let answer = turn.next();
                    server
                        .pass(if reader.is_right() { answer } else { answer.spoilt() })
                        .expect("passed");
                    turn = answer.next();
                }
            });
            let mut turn = Turn::first(0);
            let right = (0..blocks).filter(|_| {
                client.pass(turn).expect("passed");
                let mut reader = Reader::new(turn.next(), BYTES);
                assert!(client.receive(&mut reader).expect("received"), "the server is there");
                turn = turn.next().next();
                reader.is_right()
            });
            let right = right.count();
            drop(client);
            serving.join().expect("the server ends");
            right
        })
    }

    #[test]
    fn blocks_arrive_whole_and_the_end_is_seen() {
        let (server, client) = sockets().expect("sockets");
        let [server, client] = ends(server, client);
        assert_eq!(pass(server, client, 5), 5);
    }

    #[test]
    fn a_side_that_is_alone_passes_and_receives_nothing() {
        let (server, client) = sockets().expect("sockets");
        let [mut server, client] = ends(server, client);
        drop(client);
        // An even number of packets in a window, of which each second one is refused.
        server.window = 4;
        server.pass(Turn::first(0)).expect("no more to do");
        let mut reader = Reader::new(Turn::first(0), BYTES);
        assert!(!server.receive(&mut reader).expect("no error"));
    }

    /// A socket between the two ends that loses and repeats packets of either, until both have gone.
    fn lossy() -> (OwnedFd, OwnedFd, std::thread::JoinHandle<()>) {
        let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let (server, client, middle) = (bind(), bind(), [bind(), bind()]);
        let of = |socket: &UdpSocket| socket.local_addr().expect("bound");
        for (end, middle) in [&server, &client].into_iter().zip(&middle) {
            end.connect(of(middle)).expect("connected");
            middle.connect(of(end)).expect("connected");
            tune(middle).expect("room");
            tune(end).expect("room");
            end.set_read_timeout(Some(PATIENCE)).expect("set");
            middle.set_read_timeout(Some(PATIENCE)).expect("set");
        }
        let [to_server, to_client] = middle;
        // That an end has gone is told once, to whichever of the two uses its socket next.
        let is_over = Arc::new(AtomicBool::new(false));
        let forward = |from: UdpSocket, to: UdpSocket, seed| {
            let is_over = is_over.clone();
            move || {
                let mut random = Random::new(seed);
                let mut packet = vec![0; HEAD + PAYLOAD];
                while !is_over.load(Relaxed) {
                    let passed = from.recv(&mut packet).and_then(|len| {
                        let times = [1, 1, 1, 1, 1, 1, 1, 1, 0, 2][random.below(10)];
                        (0..times).try_for_each(|_| to.send(&packet[..len]).map(drop))
                    });
                    match passed {
                        Err(error) if error.kind() != ErrorKind::WouldBlock => {
                            is_over.store(true, Relaxed)
                        }
                        Ok(()) | Err(_) => {}
                    }
                }
            }
        };
        let clone = |socket: &UdpSocket| socket.try_clone().expect("a descriptor");
        let back = forward(clone(&to_server), clone(&to_client), 1);
        let forth = forward(to_client, to_server, 2);
        let both = std::thread::spawn(move || {
            std::thread::scope(|scope| {
                scope.spawn(back);
                scope.spawn(forth);
            });
        });
        (server.into(), client.into(), both)
    }

    #[test]
    fn lost_and_repeated_packets_change_nothing() {
        let (server, client, _forwarding) = lossy();
        let [server, client] = ends(server, client);
        assert_eq!(pass(server, client, 5), 5);
    }
}
