//! The launcher of a sample: one process in whose address space both sides run as domains.
//!
//! The driver starts it in place of the two processes, with the orders of both. It hands each domain
//! the descriptors of its order, waits for both, and reports what the client has reported. It stays
//! on the client's CPU: what a launcher does beside the calls (watching their time) costs the calls.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::process::ExitCode;
use std::time::Instant;

use partywall_abi::security::Isolation;
use partywall_domain::address_space::AddressSpace;
use partywall_domain::task::{Domain, Program};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};

use crate::case::Clock;
use crate::child::{self, Order, Report};
use crate::control::{Control, GRACE};
use crate::error::Result;
use crate::process::{Process, SLICE, await_exit, with_cause};
use crate::sys::{cpu, parent};

/// What the driver tells a launcher, as its one argument.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Launch {
    image: RawFd,
    keys: bool,
    server: Order,
    client: Order,
}

impl Launch {
    /// For both sides, with the sealed program file `image`.
    pub fn new(image: RawFd, isolation: Isolation, server: Order, client: Order) -> Self {
        Self { image, keys: isolation == Isolation::ProtectionKeys, server, client }
    }

    /// Starts this program again as the launcher, without restartable sequences, which an address
    /// space of domains cannot have.
    pub fn start(&self) -> Result<Process> {
        Process::start("launch", self, &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")])
    }
}

/// Runs the order in `json`.
pub fn run(json: &str) -> ExitCode {
    child::tell(follow(json))
}

fn follow(json: &str) -> Result<Report> {
    let launch: Launch = serde_json::from_str(json)?;
    parent::end_with(launch.client.driver)?;
    if let Some(cpu) = launch.client.cpu {
        cpu::pin(cpu)?;
    }
    let inherited = Inherited::take(&launch)?;
    let control = Control::map(inherited.get(launch.client.control)?)?;
    control.set_launcher();
    let isolation = if launch.keys { Isolation::ProtectionKeys } else { Isolation::None };
    let space = AddressSpace::new(isolation)?;
    let mut server = start(&space, &inherited, &launch.server)?;
    if launch.client.sample.case.clock == Some(Clock::A) {
        // A server that fails here shows up below.
        let _ = control.await_ready(child::START);
    }
    let begun = Instant::now();
    let mut client = start(&space, &inherited, &launch.client)?;
    // From here on each side sees the other one go.
    drop(inherited);
    watch(&mut client, &mut server, begun)
}

/// Waits until both sides have ended.
fn watch(client: &mut Process, server: &mut Process, begun: Instant) -> Result<Report> {
    let mut done: Option<(Report, Instant)> = None;
    while !client.is_over() || !server.is_over() {
        if done.as_ref().is_some_and(|(_, ended)| ended.elapsed() > GRACE) {
            return Err("the server has not ended".into());
        }
        await_exit(&[&*client, &*server], SLICE)?;
        let woke = Instant::now();
        if done.is_none() && client.ended()?.is_some() {
            let report = client.report()?;
            if let Some(error) = report.error {
                return Err(with_cause(server, &format!("client: {error}"))?.into());
            }
            let wall_ns = Some((woke - begun).as_nanos() as u64);
            done = Some((Report { wall_ns, ..report }, woke));
        }
        if !server.is_over()
            && server.ended()?.is_some()
            && let Some(error) = server.report()?.error
        {
            return Err(format!("server: {error}").into());
        }
    }
    Ok(done.ok_or("the client ended without a result")?.0)
}

/// The descriptors that this process has from the driver, by number.
struct Inherited {
    image: OwnedFd,
    others: BTreeMap<RawFd, OwnedFd>,
}

impl Inherited {
    fn take(launch: &Launch) -> Result<Self> {
        let mut others = BTreeMap::new();
        for number in [&launch.server, &launch.client].into_iter().flat_map(Order::numbers) {
            if let Entry::Vacant(place) = others.entry(number) {
                place.insert(child::own(number)?);
            }
        }
        Ok(Self { image: child::own(launch.image)?, others })
    }

    fn get(&self, number: RawFd) -> Result<&OwnedFd> {
        Ok(self.others.get(&number).ok_or("no such descriptor")?)
    }
}

/// Starts one side as a domain.
fn start(space: &AddressSpace, inherited: &Inherited, order: &Order) -> Result<Process> {
    let (says, output) = pipe_with(PipeFlags::CLOEXEC)?;
    let error = std::io::stderr().as_fd().try_clone_to_owned()?;
    let mut descriptors = vec![File::open("/dev/null")?.into(), output, error];
    for number in order.numbers() {
        descriptors.push(inherited.get(number)?.try_clone()?);
    }
    // They follow the standard ones.
    let numbers: Vec<RawFd> = (3..).take(descriptors.len() - 3).collect();
    let order = serde_json::to_string(&order.renumbered(std::process::id(), &numbers)?)?;
    let program = Program {
        image: inherited.image.try_clone()?,
        args: vec!["partywall-bench".into(), "child".into(), order.into()],
        environment: std::env::vars_os().collect(),
        directory: std::env::current_dir()?,
        descriptors,
    };
    Process::of_domain(Domain::start(space, program)?, says)
}
