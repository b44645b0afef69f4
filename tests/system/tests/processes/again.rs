//! kill -9 of the coordinator, and of anybody, at random moments under load: links go on, names are
//! served again, and nobody hears anything but a right answer or UNAVAILABLE.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use partywall::operator::LinkInfo;
use partywall_interop::Counts;
use partywall_system_tests::{Blocking, FLOOD, Load, Stubs, is_answer, request, went, with};
use tonic::Code;

use crate::kills::granting_policy;
use crate::{CLIENT, SERVER};
use partywall_testkit::{Held, Process, Random, alone, trials};

/// How long until all is served again.
const AGAIN: Duration = Duration::from_secs(1);

/// A coordinator, a server and a client of which each can be killed; none has anything of this
/// process's.
struct Town {
    dir: tempfile::TempDir,
    socket: PathBuf,
    coordinator: Option<Process>,
    server: Option<Process>,
    client: Option<Process>,
    stubs: Stubs,
    load: Load,
}

impl Town {
    fn new(stubs: Stubs, load: Load) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("c.sock");
        let policy = format!("harden = false\n{}", granting_policy());
        std::fs::write(dir.path().join("policy.toml"), policy).unwrap();
        let (coordinator, server, client) = (None, None, None);
        let mut town = Self { dir, socket, coordinator, server, client, stubs, load };
        town.start();
        town
    }

    fn in_flight(&self) -> PathBuf {
        self.dir.path().join("in-flight")
    }

    /// Whether a call of the client is under way.
    fn is_struck(&self) -> bool {
        std::fs::read(self.in_flight()).is_ok_and(|byte| byte == b"1")
    }

    fn new_coordinator(&self) -> Process {
        let policy = self.dir.path().join("policy.toml");
        let arguments = ["--policy", policy.to_str().unwrap()];
        let program = env!("CARGO_BIN_EXE_st-coordinator");
        let mut coordinator = Process::start(program, &self.socket, &arguments, &[], None);
        coordinator.ready();
        coordinator
    }

    /// Starts who is not there.
    fn start(&mut self) {
        let start = |program, arguments: &[&str]| {
            Process::start(program, &self.socket, arguments, &[], None)
        };
        if self.coordinator.is_none() {
            self.coordinator = Some(self.new_coordinator());
        }
        if self.server.is_none() {
            self.server = Some(start(SERVER, &with(self.stubs, &[])));
        }
        if self.client.is_none() {
            let noted = self.in_flight();
            let noted = ["--mode", "flood", "--in-flight", noted.to_str().unwrap()];
            let mut arguments = with(self.stubs, &noted);
            arguments.extend((self.load == Load::Parcels).then_some("--long"));
            let mut client = start(CLIENT, &arguments);
            client.ready();
            self.client = Some(client);
        }
    }

    /// A call by a link of its own, as soon as there can be one; how long that took.
    fn call(&self) -> Duration {
        let start = Instant::now();
        let endpoint =
            partywall::Endpoint::from_static("partywall:///test").coordinator(&self.socket);
        loop {
            let called = partywall::blocking::Channel::connect(&endpoint)
                .map_err(|error| (error.code(), error.to_string()))
                .and_then(|channel| {
                    let number = start.elapsed().subsec_nanos().into();
                    let asked = request(number, self.load.bytes(number));
                    let reply = Blocking::new(self.stubs, channel).call(asked.clone());
                    let reply = reply.map_err(|status| (status.code(), status.to_string()))?;
                    assert!(is_answer(&asked, &reply), "a wrong answer");
                    Ok(())
                });
            match called {
                Ok(()) => return start.elapsed(),
                // Nobody serves the name yet, or a server has been killed this moment.
                Err((Code::Unavailable, _)) => {}
                Err((_, text)) => panic!("{text}"),
            }
            assert!(start.elapsed() < 10 * AGAIN, "nobody serves");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn links(&self) -> Vec<LinkInfo> {
        partywall::operator::links(Some(&self.socket)).unwrap()
    }

    /// Links that the coordinator lists as open.
    fn open_links(&self) -> usize {
        self.links().iter().filter(|link| link.open).count()
    }
}

#[test]
fn a_killed_coordinator_is_found_again_and_links_go_on() {
    coordinators_are_killed(Stubs::Tonics, Load::Records);
}

#[test]
fn native_links_go_on_when_the_coordinator_is_killed() {
    coordinators_are_killed(Stubs::Native, Load::Records);
}

#[test]
fn links_with_parcels_go_on_when_the_coordinator_is_killed() {
    coordinators_are_killed(Stubs::Native, Load::Parcels);
}

fn coordinators_are_killed(stubs: Stubs, load: Load) {
    let _alone = alone();
    let mut random = Random::of_this_run();
    let mut town = Town::new(stubs, load);
    let (trials, mut struck, mut slowest) = (trials(100), 0, Duration::ZERO);
    let client = town.client.as_ref().unwrap().pid();
    for _ in 0..trials {
        std::thread::sleep(Duration::from_micros(random.draw() % 20_000));
        town.coordinator.take().unwrap().kill();
        struck += usize::from(town.is_struck());
        // Who asks meanwhile waits.
        let asks = std::thread::scope(|s| {
            let asks = s.spawn(|| town.call());
            std::thread::sleep(Duration::from_micros(random.draw() % 50_000));
            let coordinator = town.new_coordinator();
            let since = Instant::now();
            asks.join().unwrap();
            (coordinator, since.elapsed())
        });
        slowest = slowest.max(asks.1);
        town.coordinator = Some(asks.0);
        // Both ends of the client's link report it.
        let start = Instant::now();
        while town.open_links() == 0 {
            assert!(start.elapsed() < 5 * AGAIN, "the coordinator does not list the link");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    println!(
        "{trials} kills of the coordinator, {struck} with a call in flight, slowest {slowest:?}"
    );
    went(Counts::of_busy(&town.links(), FLOOD), stubs);
    // The one that calls without end has had nothing but right answers: it is there still.
    assert!(town.client.as_mut().unwrap().is_running(), "process {client} has ended");
    assert!(slowest < AGAIN, "served again after {slowest:?}");
    assert!(struck * 10 >= trials * 8, "only {struck} of {trials} struck a call");
}

#[test]
fn whoever_is_killed_all_is_served_again_within_a_second() {
    anybody_is_killed(Stubs::Tonics, Load::Records);
}

#[test]
fn whoever_is_killed_native_calls_go_on_within_a_second() {
    anybody_is_killed(Stubs::Native, Load::Records);
}

#[test]
fn whoever_is_killed_parcels_cross_again_within_a_second() {
    anybody_is_killed(Stubs::Native, Load::Parcels);
}

fn anybody_is_killed(stubs: Stubs, load: Load) {
    let _alone = alone();
    let mut random = Random::of_this_run();
    let mut town = Town::new(stubs, load);
    town.call();
    let (trials, mut struck, mut slowest) = (trials(1000), 0, Duration::ZERO);
    let own = Held::by(std::process::id());
    for _ in 0..trials {
        std::thread::sleep(Duration::from_micros(random.draw() % 10_000));
        let victim = match random.draw() % 3 {
            0 => &mut town.coordinator,
            1 => &mut town.server,
            _ => &mut town.client,
        };
        victim.take().unwrap().kill();
        struck += usize::from(town.is_struck());
        let start = Instant::now();
        if town.server.is_none() {
            // The client ends with its server: its calls are UNAVAILABLE.
            town.client = None;
        }
        town.start();
        town.call();
        slowest = slowest.max(start.elapsed());
    }
    println!("{trials} kills of anybody, {struck} with a call in flight, slowest {slowest:?}");
    assert!(slowest < AGAIN, "served again after {slowest:?}");
    assert!(struck * 10 >= trials * 8, "only {struck} of {trials} struck a call");
    // The first call of each link is ordinary.
    let start = Instant::now();
    while stubs == Stubs::Native && Counts::of(&town.links()).native < 200 {
        assert!(start.elapsed() < 10 * AGAIN, "the last client does not call natively");
        std::thread::sleep(Duration::from_millis(10));
    }
    went(Counts::of_busy(&town.links(), FLOOD), stubs);
    town.client = None;
    let free = own.wait_for(std::process::id());
    assert!(free < AGAIN, "something was left for {free:?}");
    let start = Instant::now();
    let held = |p: &Option<Process>| Held::by(p.as_ref().unwrap().pid());
    // The kernel is asked less and less often, at last every 5 s, who has a link's memory.
    while town.open_links() > 0
        || held(&town.coordinator).descriptors_of("partywall-outbox") > 0
        || held(&town.server).descriptors_of("partywall-owned") > 0
    {
        assert!(start.elapsed() < 15 * AGAIN, "the coordinator lists links that nobody has");
        std::thread::sleep(Duration::from_millis(10));
    }
}
