//! Admission to the bare link: the conversation with the coordinator that a program's library has, held
//! by hand, for a link without a channel on top.

use std::path::Path;
use std::time::Instant;

use partywall_abi::control::{LinkMessage, Message, RegistryMessage};
use partywall_abi::name::ServiceName;
use partywall_shm::descriptors::{self, Incoming, Outgoing};
use partywall_shm::link::Link;
use partywall_testkit::{Conversation, PATIENCE};

use crate::calls::partywall::{NAME, SOCKET, settle_waits};
use crate::error::Result;
use crate::seat::Seat;

/// Client: asks the coordinator of the sample in `dir` for a link, and opens it.
pub fn link(dir: &Path) -> Result<(Link, Conversation)> {
    let conversation = Conversation::open(&dir.join(SOCKET))?;
    conversation
        .say(&Message::Link(LinkMessage::Connect { request: 1, name: ServiceName::new(NAME)? }))?;
    let (_, pending) = conversation.fill()?;
    Ok((Link::new(pending.wait(Instant::now() + PATIENCE)?)?, conversation))
}

/// Server: registers, says that it is ready, and opens the first link that it is offered. The
/// conversation is to stay as long as the link.
pub fn serve(seat: &Seat) -> Result<(Link, Conversation)> {
    settle_waits(seat);
    let conversation = Conversation::open(&seat.dir().join(SOCKET))?;
    let name = ServiceName::new(NAME)?;
    conversation.say(&Message::Registry(RegistryMessage::Register {
        request: 1,
        name,
        places: 1,
    }))?;
    match conversation.next()?.0 {
        Message::Registry(RegistryMessage::Registered { .. }) => seat.ready(),
        other => return Err(format!("the coordinator says {other:?}").into()),
    }
    let adopted = conversation.adopt()?;
    let (_, callers) = conversation.opened()?;
    Ok((Link::new(adopted.open(callers)?)?, conversation))
}

/// Either side of an open link: what its descriptors cross on, as the policy lets them.
pub fn granted(conversation: &Conversation) -> Result<(Outgoing, Incoming)> {
    match conversation.next()? {
        (Message::Link(LinkMessage::Granted { .. }), mut descriptors) => {
            let socket = descriptors.pop().ok_or("a grant without a descriptor")?;
            Ok(descriptors::halves(socket))
        }
        (other, _) => Err(format!("the coordinator says {other:?} in place of a grant").into()),
    }
}
