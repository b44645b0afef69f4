//! iceoryx2's request-response, with busy polling on both sides or with its events.
//!
//! Payloads are copied into loaned memory and out of received memory, as everyone else's are. Each
//! sample has its own root directory and file prefix, so samples neither meet nor outlive each
//! other.

use std::collections::VecDeque;
use std::path::Path as StdPath;

use iceoryx2::pending_response::PendingResponse;
use iceoryx2::port::client::Client;
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::server::Server;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::{event, request_response};

use super::{prefix, spinning_or_sleeping, sweep};
use crate::case::{Case, Mode};
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::meter::Duplex;
use crate::pattern::copy;
use crate::row::Figures;
use crate::seat::Seat;

/// The request-response of iceoryx2.
pub const ICEORYX2: Contender = Contender::new(
    Kind::Other,
    "iceoryx2",
    "iceoryx2's request and response, polling (spin) or with its events (block)",
    spinning_or_sleeping,
    call,
)
.served(serve)
.swept(sweep);

type Ipc = ipc::Service;

/// After so many empty looks a polling server looks whether its client has gone.
const LOOKS: u32 = 1 << 14;

/// The event by which a client says that it goes.
const GONE: EventId = EventId::new(1);

fn serve(seat: &mut Seat) -> Result<()> {
    let services = Services::open(seat, true)?;
    let server =
        services.calls.server_builder().initial_max_slice_len(seat.case().bytes()).create()?;
    let bells = services.bells(seat.case().sleeps(), true)?;
    let lifeline = seat.lifeline()?;
    let mut private = Vec::new();
    let mut empty = 0;
    seat.ready();
    loop {
        let Some(bells) = &bells else {
            empty = if echo(&server, &mut private)? { 0 } else { empty + 1 };
            if empty >= LOOKS && has_ended(&lifeline)? {
                return Ok(());
            }
            empty %= LOOKS;
            continue;
        };
        let mut gone = false;
        bells.listener.blocking_wait(|event| gone |= event.id == GONE)?;
        if gone {
            return Ok(());
        }
        if echo(&server, &mut private)? {
            bells.notifier.notify()?;
        }
    }
}

fn call(seat: &mut Seat) -> Result<Figures> {
    let services = Services::open(seat, false)?;
    let case = seat.case();
    let size = case.bytes();
    let client = services.calls.client_builder().initial_max_slice_len(size).create()?;
    let bells = services.bells(case.sleeps(), false)?;
    let mut link = Link { client, bells, pending: VecDeque::new() };
    let meter = seat.meter()?;
    let figures = match (case.is_pipelined(), case.sleeps()) {
        (true, false) => meter.sliding(&mut link)?,
        (true, true) => meter.by_window(|requests, replies| {
            requests.chunks_exact(size).try_for_each(|request| link.put(request))?;
            link.ring()?;
            replies.chunks_exact_mut(size).try_for_each(|reply| link.receive(reply))
        })?,
        (false, _) => meter.one_by_one(|request, reply| {
            link.send(request)?;
            link.receive(reply)
        })?,
    };
    if let Some(bells) = &link.bells {
        bells.notifier.notify_with_custom_event_id(GONE)?;
    }
    Ok(figures)
}

/// Whether the client's end of the lifeline has closed.
fn has_ended(lifeline: &std::os::fd::OwnedFd) -> Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(lifeline, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut fds, Some(&now))? > 0)
}

/// Answers what has come; false if there was nothing.
fn echo(server: &Server<Ipc, [u8], (), [u8], ()>, private: &mut Vec<u8>) -> Result<bool> {
    let mut any = false;
    while let Some(request) = server.receive()? {
        private.clear();
        private.extend_from_slice(request.payload());
        let reply = request.loan_slice_uninit(private.len())?;
        reply.write_from_slice(private).send()?;
        any = true;
    }
    Ok(any)
}

struct Services {
    _node: Node<Ipc>,
    calls: request_response::PortFactory<Ipc, [u8], (), [u8], ()>,
    to_server: event::PortFactory<Ipc>,
    to_client: event::PortFactory<Ipc>,
}

struct Bells {
    listener: Listener<Ipc>,
    notifier: Notifier<Ipc>,
}

impl Services {
    fn open(seat: &Seat, server: bool) -> Result<Self> {
        set_log_level(LogLevel::Fatal);
        let config = config(seat.dir(), seat.label())?;
        let node = NodeBuilder::new()
            .config(&config)
            .signal_handling_mode(SignalHandlingMode::Disabled)
            .create::<Ipc>()?;
        let window = Case { mode: Some(Mode::Pipelined), ..seat.case() }.window();
        let event = |name: &str| -> Result<_> {
            Ok(node.service_builder(&name.try_into()?).event().open_or_create()?)
        };
        let (to_server, to_client) = (event("to-server")?, event("to-client")?);
        let calls = node
            .service_builder(&"echo".try_into()?)
            .request_response::<[u8], [u8]>()
            .max_clients(1)
            .max_servers(1)
            .max_active_requests_per_client(window)
            .max_loaned_requests(window);
        let calls = if server { calls.create()? } else { calls.open()? };
        Ok(Self { _node: node, calls, to_server, to_client })
    }

    fn bells(&self, wanted: bool, server: bool) -> Result<Option<Bells>> {
        if !wanted {
            return Ok(None);
        }
        let (mine, other) = if server {
            (&self.to_server, &self.to_client)
        } else {
            (&self.to_client, &self.to_server)
        };
        let listener = mine.listener_builder().create()?;
        Ok(Some(Bells { listener, notifier: other.notifier_builder().create()? }))
    }
}

/// What keeps the services of a sample apart from others.
pub fn config(dir: &StdPath, label: &str) -> Result<Config> {
    let mut config = Config::default();
    let root = dir.to_str().ok_or("the directory's name is not text")?;
    config.global.set_root_path(&Path::new(root.as_bytes())?);
    config.global.prefix = FileName::new(prefix(label).as_bytes())?;
    Ok(config)
}

type Pending = PendingResponse<Ipc, [u8], (), [u8], ()>;

struct Link {
    client: Client<Ipc, [u8], (), [u8], ()>,
    bells: Option<Bells>,
    pending: VecDeque<Pending>,
}

impl Link {
    fn put(&mut self, request: &[u8]) -> Result<()> {
        let loan = self.client.loan_slice_uninit(request.len())?;
        self.pending.push_back(loan.write_from_slice(request).send()?);
        Ok(())
    }

    fn ring(&self) -> Result<()> {
        if let Some(bells) = &self.bells {
            bells.notifier.notify()?;
        }
        Ok(())
    }
}

impl Duplex for Link {
    fn send(&mut self, request: &[u8]) -> Result<()> {
        self.put(request)?;
        self.ring()
    }

    fn receive(&mut self, reply: &mut [u8]) -> Result<()> {
        let pending = self.pending.pop_front().ok_or("nothing is in flight")?;
        loop {
            if let Some(response) = pending.receive()? {
                return copy(response.payload(), reply);
            }
            if let Some(bells) = &self.bells {
                bells.listener.blocking_wait(|_| {})?;
            }
        }
    }
}
