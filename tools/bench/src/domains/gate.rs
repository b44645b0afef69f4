//! The call gate as services use it, through functions over bytes ([`partywall_guest::bytes`]): the
//! calling thread armed, a recovery point, a limit, the time inside accounted, and the arena.
//!
//! The client tells the server its process number over a socket pair, and the server offers it the
//! link and says so. The server stays until the socket ends.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use partywall_abi::domain::GateStatus;
use partywall_abi::security::Isolation;
use partywall_guest::Guest;
use partywall_guest::bytes::{CallError, Function, Reply};

use super::{bulk, echoes};
use crate::case::{Case, ECHO_SIZES, Mode, Placement};
use crate::contender::{Contender, Ends, Kind, Side};
use crate::error::Result;
use crate::meter::{ENDS, ends};
use crate::pattern::copy;
use crate::row::Figures;
use crate::seat::Seat;

/// Without protection keys.
pub const GATE: Contender = Contender::new(
    Kind::Ours,
    "gate",
    "a function over bytes in another domain, through the call gate, without protection keys",
    || [echoes(Placement::SameCore, None), bulk(None)].concat(),
    call,
)
.opened(pair)
.served(|seat| {
    let long = seat.case().mode == Some(Mode::Bulk);
    serve(seat, if long { answer_ends } else { echo })
})
.in_domains(Isolation::None);

/// With protection keys, where the machine has them.
pub const GATE_KEYS: Contender = Contender {
    name: "gate-keys",
    about: "the same with protection keys",
    domains: Some(Isolation::ProtectionKeys),
    ..GATE
};

/// How long a call may last; the default of services.
const LIMIT: Duration = Duration::from_millis(10);

/// How the client finds the offer.
const NUMBER: u64 = 1;

/// The socket pair of the two sides: 0 the server's, 1 the client's.
pub fn pair(_: &Case) -> Result<Ends> {
    let (server, client) = UnixStream::pair()?;
    Ok(Ends(vec![(Side::Server, server.into()), (Side::Client, client.into())]))
}

/// Serves `function` to the client until it has gone.
///
/// # Errors
/// If this is no domain, and those of the launcher and the socket.
pub fn serve(
    seat: &mut Seat,
    function: impl Fn(&[u8], &mut Reply<'_>) + Send + Sync + 'static,
) -> Result<()> {
    let guest = Guest::here()?.ok_or("this process is no domain")?;
    let mut socket = UnixStream::from(seat.take(0)?);
    guest.serve(move |entered| entered.bytes(&function));
    std::thread::spawn(move || guest.lend());
    seat.ready();
    let mut pid = [0; 4];
    socket.read_exact(&mut pid)?;
    guest.offer(u32::from_le_bytes(pid), NUMBER, 0)?;
    socket.write_all(&[1])?;
    // Ends with the client.
    let _ = socket.read(&mut [0]);
    Ok(())
}

/// The function of the other domain, and what keeps the server there.
pub fn connect(socket: OwnedFd) -> Result<(Function, UnixStream)> {
    let guest = Guest::here()?.ok_or("this process is no domain")?;
    let mut socket = UnixStream::from(socket);
    socket.write_all(&std::process::id().to_le_bytes())?;
    socket.read_exact(&mut [0])?;
    let mut function = Function::take(guest, NUMBER)?;
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        match function.call(&[], LIMIT, |_| ()) {
            // The thread that is lent is not there yet.
            Err(CallError::Gate(GateStatus::Busy)) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1));
            }
            done => break done?,
        }
    }
    Ok((function, socket))
}

/// Answers with the request. An answer that has no room stays empty, and is found wrong.
fn echo(request: &[u8], reply: &mut Reply<'_>) {
    if let Ok(room) = reply.take(request.len()) {
        room.copy_from_slice(request);
    }
}

/// Answers with the request's ends.
fn answer_ends(request: &[u8], reply: &mut Reply<'_>) {
    if let (Some(ends), Ok(room)) = (ends(request), reply.take(ENDS)) {
        room.copy_from_slice(&ends);
    }
}

fn call(seat: &mut Seat) -> Result<Figures> {
    let socket = seat.take(1)?;
    let (mut function, _socket) = seat.admitted(|_| connect(socket))?;
    let (case, meter) = (seat.case(), seat.meter()?);
    if case.mode == Some(Mode::Bulk) {
        return meter.bulk(|request| {
            let answer = |reply: &[u8]| <[u8; ENDS]>::try_from(reply);
            Ok(function.call(request, LIMIT, answer)??)
        });
    }
    if case.size == Some(ECHO_SIZES[0]) {
        return meter.one_by_one(|request, reply| {
            function.call(request, LIMIT, |answer| copy(answer, reply))?
        });
    }
    let size = meter.size();
    meter.in_place(|write, check| {
        Ok(function.call_with(size, |room| write(room), LIMIT, |reply| check(reply))?)
    })
}
