//! Services and their caller in one process, without a coordinator: for tests and mocks.

use partywall_abi::control::{Digest, Identity, Isolation};
use partywall_abi::layout::Geometry;
use partywall_abi::name::MethodSet;

use super::options::Served;
use crate::channel::Channel;
use crate::error::Error;
use crate::link;
use crate::peer::Peer;

/// A channel to these services over rings in this process's own memory.
pub(super) fn channel(served: &Served) -> Result<Channel, Error> {
    let (callers, servers) = partywall_shm::setup::local_pair(Geometry::WIDE)?;
    let number = servers.link;
    let peer = || Peer::new(this_process(), number, Isolation::None);
    let account = served.accounts.open(peer().uid(), peer().pid());
    let caller = (peer(), account);
    link::service::start(servers, served.services.for_one(), caller, MethodSet::all(), None)?;
    let link = link::caller::start(callers, None)?;
    Ok(Channel::on(link, peer()))
}

fn this_process() -> Identity {
    Identity {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        pid: Some(std::process::id()),
        digest: Digest::Unknown,
        cgroup: String::new(),
        principals: Vec::new(),
    }
}
