//! iceoryx2's request and response: blocks are set in loaned memory, and read where they were set; its events
//! wake the other side. A connection is a service with one client and one server.

use std::path::PathBuf;

use iceoryx2::active_request::ActiveRequest;
use iceoryx2::pending_response::PendingResponse;
use iceoryx2::port::client::Client;
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::server::Server;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::request_response::PortFactory;

use super::drive::{End, measure, serve};
use super::turn::{PAGE, Reader, Turn, WORDS, Word};
use super::{clients, sleeping};
use crate::calls::iceoryx::config;
use crate::calls::sweep;
use crate::case::Case;
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::seat::Seat;
use crate::target::transfer::LOAN_MAX;

/// Loaned blocks.
pub const ICEORYX2: Contender = Contender::new(
    Kind::Other,
    "iceoryx2",
    "iceoryx2's request and response with blocks in loaned memory, and its events",
    cases,
    |seat| {
        let makers = places(seat).map(|place| move || Caller::new(&place));
        measure(seat, makers.collect())
    },
)
.served(|seat| {
    let makers = places(seat).map(|place| move || Callee::new(&place));
    serve(seat, makers.collect())
})
.swept(sweep);

fn cases() -> Vec<Case> {
    sleeping().into_iter().filter(|case| case.bytes() as u64 <= LOAN_MAX).collect()
}

type Ipc = ipc::Service;

/// What is loaned: a page.
type Page = [Word; WORDS];

type Calls = PortFactory<Ipc, [Page], (), [Page], ()>;

type Pending = PendingResponse<Ipc, [Page], (), [Page], ()>;

type Active = ActiveRequest<Ipc, [Page], (), [Page], ()>;

/// The event by which a side says that it goes.
const GONE: EventId = EventId::new(1);

/// Where a connection is.
struct Place {
    dir: PathBuf,
    label: String,
    client: usize,
    pages: usize,
}

fn places(seat: &Seat) -> impl Iterator<Item = Place> + use<> {
    let (case, dir, label) = (seat.case(), seat.dir().to_owned(), seat.label().to_owned());
    let pages = case.bytes() / PAGE;
    let place = move |client| Place { dir: dir.clone(), label: label.clone(), client, pages };
    (0..clients(&case)).map(place)
}

fn node(place: &Place) -> Result<Node<Ipc>> {
    set_log_level(LogLevel::Fatal);
    Ok(NodeBuilder::new()
        .config(&config(&place.dir, &place.label)?)
        .signal_handling_mode(SignalHandlingMode::Disabled)
        .create::<Ipc>()?)
}

fn calls(node: &Node<Ipc>, place: &Place) -> Result<Calls> {
    Ok(node
        .service_builder(&format!("pass-{}", place.client).as_str().try_into()?)
        .request_response::<[Page], [Page]>()
        .max_clients(1)
        .max_servers(1)
        .max_active_requests_per_client(1)
        .max_loaned_requests(1)
        .max_response_buffer_size(1)
        .open_or_create()?)
}

struct Bells {
    listener: Listener<Ipc>,
    notifier: Notifier<Ipc>,
}

impl Bells {
    fn new(node: &Node<Ipc>, place: &Place, is_client: bool) -> Result<Self> {
        let event = |to: &str| -> Result<_> {
            let name = format!("to-{to}-{}", place.client);
            Ok(node.service_builder(&name.as_str().try_into()?).event().open_or_create()?)
        };
        let (server, client) = (event("server")?, event("client")?);
        let (mine, other) = if is_client { (client, server) } else { (server, client) };
        let listener = mine.listener_builder().create()?;
        Ok(Self { listener, notifier: other.notifier_builder().create()? })
    }

    /// Sleeps until something has come. False if the other side has gone.
    fn wait(&self) -> Result<bool> {
        let mut is_there = true;
        self.listener.blocking_wait(|event| is_there &= event.id != GONE)?;
        Ok(is_there)
    }
}

impl Drop for Bells {
    fn drop(&mut self) {
        // Where the other side has gone first nobody listens.
        let _ = self.notifier.notify_with_custom_event_id(GONE);
    }
}

fn page(turn: Turn) -> impl FnMut(usize) -> Page {
    move |page| [turn.word(page); WORDS]
}

fn bytes(pages: &[Page]) -> &[u8] {
    pages.as_flattened().as_flattened()
}

struct Caller {
    client: Client<Ipc, [Page], (), [Page], ()>,
    bells: Bells,
    pending: Option<Pending>,
    pages: usize,
    _node: Node<Ipc>,
}

impl Caller {
    fn new(place: &Place) -> Result<Self> {
        let node = node(place)?;
        let calls = calls(&node, place)?;
        let client = calls.client_builder().initial_max_slice_len(place.pages).create()?;
        let bells = Bells::new(&node, place, true)?;
        Ok(Self { client, bells, pending: None, pages: place.pages, _node: node })
    }
}

impl End for Caller {
    fn pass(&mut self, turn: Turn) -> Result<()> {
        let loan = self.client.loan_slice_uninit(self.pages)?;
        self.pending = Some(loan.write_from_fn(page(turn)).send()?);
        self.bells.notifier.notify()?;
        Ok(())
    }

    fn receive(&mut self, reader: &mut Reader) -> Result<bool> {
        let pending = self.pending.take().ok_or("nothing was passed")?;
        loop {
            if let Some(block) = pending.receive()? {
                reader.read(bytes(block.payload()));
                return Ok(true);
            }
            if !self.bells.wait()? {
                return Ok(false);
            }
        }
    }
}

struct Callee {
    server: Server<Ipc, [Page], (), [Page], ()>,
    bells: Bells,
    active: Option<Active>,
    pages: usize,
    _node: Node<Ipc>,
}

impl Callee {
    fn new(place: &Place) -> Result<Self> {
        let node = node(place)?;
        let calls = calls(&node, place)?;
        let server = calls.server_builder().initial_max_slice_len(place.pages).create()?;
        let bells = Bells::new(&node, place, false)?;
        Ok(Self { server, bells, active: None, pages: place.pages, _node: node })
    }
}

impl End for Callee {
    fn pass(&mut self, turn: Turn) -> Result<()> {
        let active = self.active.take().ok_or("nothing was received")?;
        active.loan_slice_uninit(self.pages)?.write_from_fn(page(turn)).send()?;
        self.bells.notifier.notify()?;
        Ok(())
    }

    fn receive(&mut self, reader: &mut Reader) -> Result<bool> {
        loop {
            if let Some(active) = self.server.receive()? {
                reader.read(bytes(active.payload()));
                self.active = Some(active);
                return Ok(true);
            }
            if !self.bells.wait()? {
                return Ok(false);
            }
        }
    }
}
