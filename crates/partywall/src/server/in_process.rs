//! Services and their caller in one process, without a coordinator: for tests and mocks.

use partywall_abi::control::Identity;
use partywall_abi::layout::Geometry;
use partywall_abi::name::MethodSet;
use partywall_abi::security::Security;

use super::options::Served;
use crate::channel::Channel;
use crate::error::Error;
use crate::http_calls::service::HttpCalls;
use crate::link;
use crate::peer::Peer;

/// A channel to these services over rings in this process's own memory.
pub(super) fn channel(served: &Served) -> Result<Channel, Error> {
    let (callers, servers) = partywall_shm::setup::local_pair(Geometry::WIDE)?;
    let number = servers.link;
    let peer = || Peer::new(this_process(), number, Security::IN_PROCESS);
    let account = served.accounts.open(peer().uid(), peer().pid());
    let caller = (peer(), account);
    let calls = HttpCalls::of(&served.services);
    link::service::start(servers, calls, caller, MethodSet::all(), None)?;
    let link = link::caller::start(callers, None)?;
    Ok(Channel::on(link, peer()))
}

fn this_process() -> Identity {
    let own = (rustix::process::geteuid(), rustix::process::getegid());
    let mut identity = Identity::new(own.0.as_raw(), own.1.as_raw());
    identity.pid = Some(std::process::id());
    identity
}
