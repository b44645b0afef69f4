//! The addresses of a name over the network, and the connections to them.
//!
//! ```text
//! addresses    as the policy has them; one with a host's name stands for all that this has, which is asked
//!              for again every REFRESH. One that its host has no more gets no new calls
//! connection   one to each: dialled -> up, until it is over -> dialled again
//!                                  \> failed: left out for a pause, which is longer each time
//! call         the next connection that is up. Where none is, all addresses are dialled at once, whatever
//!              their pauses, and the call waits: until one is up, or all have failed
//! ```
//!
//! One task, the keeper, dials and keeps; it ends with the channel's connection to the name. Calls tell it
//! that they want a connection by a number, and it tells them up to which number it has tried in vain.
//!
//! Each connection is proven by itself: over TLS whoever answers has to be certified for the name, at each
//! address (`dial`). One who is not is an address that fails.
//!
//! tonic's own balanced channel takes no connector, and so no proof of ours; and it sends calls to addresses
//! that cannot be reached.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use partywall_abi::name::ServiceName;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tonic::transport::Channel as Transport;
use tonic::{Code, Status};

use super::Endpoint;
use super::balance::{Balance, Link, Links};
use super::dial::{Address, host_of};
use super::over::Over;
use crate::backoff::Backoff;
use crate::error::Error;
use crate::target::Target;
use crate::time;

/// How often the addresses of hosts are asked for.
const REFRESH: Duration = Duration::from_secs(10);
/// The same while no address can be reached.
const REFRESH_IN_NEED: Duration = Duration::from_secs(1);
/// Most addresses of one name, those of all its hosts together.
const MOST: usize = 64;
/// A connection that was over sooner has failed.
const LASTING: Duration = Duration::from_secs(1);

/// The connections to the addresses of a name.
pub(crate) struct Remotes {
    shared: Arc<Shared>,
    keeper: AbortHandle,
}

impl Drop for Remotes {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// What calls and the keeper have in common.
struct Shared {
    links: Links<Up>,
    /// How many calls have found no connection.
    asked: AtomicU64,
    news: watch::Sender<News>,
    /// Whether calls wait until there is a connection.
    waits: bool,
}

/// What the keeper tells the calls that wait; also that a connection is up.
#[derive(Default)]
struct News {
    /// All addresses have failed for the calls up to this one.
    in_vain: u64,
    why: Option<Status>,
}

/// Says that a call is under way.
pub(super) struct Under(#[allow(dead_code, reason = "it is counted")] Arc<()>);

/// A connection that is up.
struct Up {
    transport: Transport,
    over: Arc<Over>,
    calls: Arc<()>,
    place: Place,
}

impl Link for Up {
    fn usable(&self) -> bool {
        !self.over.is()
    }

    fn outstanding(&self) -> usize {
        Arc::strong_count(&self.calls) - 1
    }

    fn is_to_the_instance_of(&self, other: &Self) -> bool {
        self.place == other.place
    }
}

impl Remotes {
    /// Connects to one of the addresses, and goes on with the others.
    ///
    /// # Errors
    /// Why the last of them has failed.
    pub(super) async fn connect(
        endpoint: &Endpoint,
        name: &ServiceName,
        targets: Vec<Target>,
    ) -> Result<Self, Error> {
        let balance = endpoint.balance.unwrap_or(Balance::RoundRobin);
        let shared = Arc::new(Shared {
            links: Links::new(Some(balance)),
            asked: AtomicU64::new(0),
            news: watch::Sender::default(),
            waits: endpoint.wait_for_ready,
        });
        let mut keeper = Keeper {
            shared: Arc::clone(&shared),
            endpoint: endpoint.clone(),
            name: name.clone(),
            targets,
            spots: Vec::new(),
            tasks: JoinSet::new(),
            asked_at: None,
            begun: 0,
            failure: None,
            many: false,
        };
        keeper.first().await?;
        let keeper = tokio::spawn(keeper.run()).abort_handle();
        Ok(Self { shared, keeper })
    }

    /// The connection for a call.
    pub(super) async fn pick(&self) -> Result<(Transport, Under), Status> {
        let Shared { links, asked, news, waits } = &*self.shared;
        let picked = |up: Arc<Up>| (up.transport.clone(), Under(Arc::clone(&up.calls)));
        if let Some(up) = links.pick() {
            return Ok(picked(up));
        }
        let mut news = news.subscribe();
        let own = asked.fetch_add(1, Ordering::SeqCst) + 1;
        links.wanted.notify_one();
        loop {
            let in_vain = {
                let news = news.borrow_and_update();
                news.why.clone().filter(|_| news.in_vain >= own)
            };
            if let Some(up) = links.pick() {
                return Ok(picked(up));
            }
            match in_vain {
                Some(why) if !waits || why.code() != Code::Unavailable => return Err(why),
                _ => {}
            }
            if news.changed().await.is_err() {
                return Err(Status::unavailable("nobody keeps the connections any more"));
            }
        }
    }
}

/// Which address: which one of the policy's, and which of its host's.
type Place = (usize, Option<SocketAddr>);

/// One address.
struct Spot {
    place: Place,
    address: Address,
    state: State,
    pause: Backoff,
    /// Whether the log has that it is left out.
    told: bool,
}

enum State {
    /// Until then it is left out.
    Down(Instant),
    Dialled,
    /// Since then.
    Up(Arc<Over>, Instant),
}

/// What a task of the keeper has come to.
enum Ended {
    Dialled(Place, Result<Up, Error>),
    /// What each of the policy's addresses stands for.
    Found(Vec<io::Result<Vec<Option<SocketAddr>>>>),
}

/// Dials the addresses and keeps the connections.
struct Keeper {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    name: ServiceName,
    targets: Vec<Target>,
    spots: Vec<Spot>,
    tasks: JoinSet<Ended>,
    /// When the hosts' addresses were asked for.
    asked_at: Option<Instant>,
    /// Up to which call all addresses are being tried.
    begun: u64,
    /// The last one.
    failure: Option<Error>,
    /// Whether the log has that there are more addresses than MOST.
    many: bool,
}

impl Keeper {
    /// Until one is up, or all have failed.
    async fn first(&mut self) -> Result<(), Error> {
        self.find();
        while let Some(ended) = self.tasks.join_next().await {
            let found = matches!(ended, Ok(Ended::Found(_)));
            self.take(ended);
            if found {
                self.dial(true);
            }
            if self.shared.links.peek().is_some() {
                return Ok(());
            }
        }
        let none = || Error::Http2("the name has no address".into());
        Err(self.failure.take().unwrap_or_else(none))
    }

    async fn run(mut self) {
        loop {
            let wanted = Arc::clone(&self.shared.links.wanted);
            let next = self.next();
            tokio::select! {
                Some(ended) = self.tasks.join_next() => self.take(ended),
                () = wanted.notified() => {}
                () = tokio::time::sleep_until(next.into()) => {}
            }
            self.look();
            let asked = self.shared.asked.load(Ordering::SeqCst);
            let in_need = self.shared.links.peek().is_none();
            let all = in_need && asked > self.begun;
            if all {
                self.begun = asked;
            }
            if self.is_to_find(all) {
                self.find();
            }
            self.dial(all);
            if in_need && self.tasks.is_empty() {
                self.tell_failure();
            }
        }
    }

    /// When there is something to do, if nobody asks before.
    fn next(&self) -> Instant {
        let again = self.spots.iter().filter_map(|spot| match spot.state {
            State::Down(until) => Some(until),
            _ => None,
        });
        let hosts = self.targets.iter().any(|target| host_of(target).is_some());
        let find = self.asked_at.filter(|_| hosts).map(|at| at + REFRESH);
        again.chain(find).min().unwrap_or_else(|| time::after(time::FAR))
    }

    /// Whether it is time to ask for the hosts' addresses.
    fn is_to_find(&self, in_need: bool) -> bool {
        let after = if in_need { REFRESH_IN_NEED } else { REFRESH };
        let hosts = self.targets.iter().any(|target| host_of(target).is_some());
        hosts && self.asked_at.is_none_or(|at| at.elapsed() >= after)
    }

    /// Has all hosts' addresses asked for.
    fn find(&mut self) {
        self.asked_at = Some(Instant::now());
        let within = self.endpoint.connect_timeout;
        let hosts: Vec<_> = self.targets.iter().map(host_of).collect();
        self.tasks.spawn(async move {
            let mut asked = JoinSet::new();
            let mut found: Vec<_> = hosts.iter().map(|_| Ok(vec![None])).collect();
            for (n, host) in hosts.into_iter().enumerate() {
                let Some((host, port)) = host else { continue };
                asked.spawn(async move {
                    let looked = tokio::net::lookup_host((host, port));
                    let addresses = tokio::time::timeout(within, looked).await;
                    let addresses = addresses.unwrap_or_else(|_| {
                        let text = format!("no address of it within {within:?}");
                        Err(io::Error::new(io::ErrorKind::TimedOut, text))
                    });
                    (n, addresses.map(|all| all.map(Some).collect()))
                });
            }
            while let Some(Ok((n, addresses))) = asked.join_next().await {
                found[n] = addresses;
            }
            Ended::Found(found)
        });
    }

    fn take(&mut self, ended: Result<Ended, tokio::task::JoinError>) {
        match ended {
            Ok(Ended::Found(found)) => self.found(found),
            Ok(Ended::Dialled(place, connected)) => self.dialled(place, connected),
            Err(error) => {
                tracing::error!(name = %self.name, %error, "a task of a connection has ended");
                self.failure = Some(Error::Http2(error.into()));
                // Whose it was is not known.
                let due = Instant::now() + LASTING;
                let tried = |spot: &&mut Spot| matches!(spot.state, State::Dialled);
                self.spots.iter_mut().filter(tried).for_each(|s| s.state = State::Down(due));
            }
        }
    }

    /// Has the addresses that the hosts have now. Of a host that cannot be asked the old ones are kept.
    fn found(&mut self, found: Vec<io::Result<Vec<Option<SocketAddr>>>>) {
        let mut of_targets: Vec<Vec<Place>> = Vec::new();
        for (n, found) in found.into_iter().enumerate() {
            let old = self.spots.iter().map(|spot| spot.place).filter(|place| place.0 == n);
            let mut places: Vec<Place> = old.collect();
            match found {
                Ok(found) => {
                    // Those that are there already come first: they stay, if there are too many.
                    places.retain(|(_, at)| found.contains(at));
                    for place in found.into_iter().map(|at| (n, at)) {
                        if !places.contains(&place) {
                            places.push(place);
                        }
                    }
                }
                Err(error) => {
                    let url = self.targets[n].to_string();
                    tracing::warn!(name = %self.name, url, %error, "the host has no address now");
                    let text = format!("{url}: {error}");
                    self.failure = Some(Error::Http2(io::Error::new(error.kind(), text).into()));
                }
            }
            of_targets.push(places);
        }
        // Each of the policy's addresses has its part.
        let longest = of_targets.iter().map(Vec::len).max().unwrap_or(0);
        let mut places: Vec<Place> = Vec::new();
        let turns = (0..longest).flat_map(|n| of_targets.iter().filter_map(move |all| all.get(n)));
        for place in turns {
            let same = |other: &Place| place.1.is_some() && place.1 == other.1;
            if !places.iter().any(same) {
                places.push(*place);
            }
        }
        if places.len() > MOST && !std::mem::replace(&mut self.many, true) {
            let (name, found) = (&self.name, places.len());
            tracing::warn!(%name, found, "the hosts of this name have more addresses than {MOST}; these get calls");
        }
        places.truncate(MOST);
        self.spots.retain(|spot| {
            let stays = places.contains(&spot.place);
            if let (State::Up(over, _), false) = (&spot.state, stays) {
                over.set();
            }
            stays
        });
        for place in places {
            if self.spots.iter().any(|spot| spot.place == place) {
                continue;
            }
            match self.endpoint.address_of(&self.targets[place.0], place.1) {
                Ok(address) => self.spots.push(Spot {
                    place,
                    address: address.certified_for(self.name.as_str()),
                    state: State::Down(Instant::now()),
                    pause: Backoff::new(),
                    told: false,
                }),
                Err(error) => self.failure = Some(error.into()),
            }
        }
    }

    fn dialled(&mut self, place: Place, connected: Result<Up, Error>) {
        // It may have been taken out meanwhile.
        let Some(spot) = self.spots.iter_mut().find(|spot| spot.place == place) else { return };
        let (name, url) = (&self.name, spot.address.url());
        match connected {
            Ok(up) => {
                spot.state = State::Up(Arc::clone(&up.over), Instant::now());
                if std::mem::take(&mut spot.told) {
                    tracing::info!(%name, url, "this address of the name answers again");
                }
                self.shared.links.add(up);
                self.shared.news.send_modify(|_| {});
            }
            Err(error) => {
                spot.state = State::Down(Instant::now() + spot.pause.pause());
                if !std::mem::replace(&mut spot.told, true) {
                    tracing::warn!(%name, url, %error, "this address of the name is left out for now");
                }
                self.failure = Some(error);
            }
        }
    }

    /// Notes what is over.
    fn look(&mut self) {
        for spot in &mut self.spots {
            let State::Up(over, since) = &spot.state else { continue };
            if !over.is() {
                continue;
            }
            let mut due = Instant::now();
            if since.elapsed() >= LASTING {
                spot.pause = Backoff::new();
            } else {
                due += spot.pause.pause();
            }
            spot.state = State::Down(due);
        }
    }

    /// Dials what is due, or all that is down.
    fn dial(&mut self, all: bool) {
        let (now, within) = (Instant::now(), self.endpoint.connect_timeout);
        for spot in &mut self.spots {
            if !matches!(spot.state, State::Down(until) if all || until <= now) {
                continue;
            }
            spot.state = State::Dialled;
            let (place, address) = (spot.place, spot.address.clone());
            let over = Over::new(Arc::clone(&self.shared.links.wanted));
            self.tasks.spawn(async move {
                let connected = address.connect_once(within, Arc::clone(&over)).await;
                let up =
                    connected.map(|transport| Up { transport, over, calls: Arc::default(), place });
                Ended::Dialled(place, up)
            });
        }
    }

    /// Tells the calls that wait that all addresses have failed.
    fn tell_failure(&mut self) {
        let begun = self.begun;
        let Some(failure) = &self.failure else { return };
        let why = Status::new(failure.code(), failure.to_string());
        self.shared.news.send_modify(|news| *news = News { in_vain: begun, why: Some(why) });
    }
}
