//! Links to a name that is served: taken as the coordinator offers them, drained at the end.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use partywall_abi::name::ServiceName;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::options::{Age, Served};
use crate::coordinator::{Event, Registered};
use crate::error::Error;
use crate::http_calls::service::HttpCalls;
use crate::link;
use crate::link::service::Service;

/// How often a server whose coordinator is gone looks whether its links have closed.
const ORPHANED: Duration = Duration::from_secs(1);

/// Links that this process has descriptors for: three quarters of its limit, one for each.
pub(super) fn places() -> u32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(u32::MAX, |n| u32::try_from(n / 4 * 3).unwrap_or(u32::MAX))
}

/// The open links of a name.
struct Links {
    age: Age,
    /// With the time from which each is not to be used, unless it is over already.
    all: Vec<(Weak<Service<HttpCalls>>, Option<Instant>)>,
    /// The first of these times.
    next: Option<Instant>,
    /// Ends those that drain.
    ending: JoinSet<()>,
}

impl Links {
    fn new(age: Age) -> Self {
        Self { age, all: Vec::new(), next: None, ending: JoinSet::new() }
    }

    fn add(&mut self, link: &Arc<Service<HttpCalls>>) {
        if self.all.len() == self.all.capacity() {
            self.all.retain(|(link, _)| link.strong_count() > 0);
        }
        let at = self.age.most.and_then(|most| Instant::now().checked_add(most));
        self.next = self.next.or(at);
        self.all.push((Arc::downgrade(link), at));
    }

    /// Waits until one has its age, or forgets those that have ended.
    async fn due(&mut self) {
        loop {
            tokio::select! {
                () = at(self.next) => return,
                Some(_ended) = self.ending.join_next() => {}
            }
        }
    }

    /// Asks the callers of those that have their age to use others; later, if there can be none now.
    fn drain_old(&mut self, replaceable: bool) {
        let now = Instant::now();
        if !replaceable {
            self.next = Some(now + ORPHANED);
            return;
        }
        let grace = self.age.grace.unwrap_or(Duration::MAX);
        for (link, until) in &mut self.all {
            if until.is_none_or(|until| until > now) {
                continue;
            }
            *until = None;
            if let Some(link) = link.upgrade() {
                link.drain();
                self.ending.spawn(async move { link.finish(grace, "the link has ended").await });
            }
        }
        self.next = self.all.iter().filter_map(|(_, until)| *until).min();
    }

    fn open(&self) -> Vec<Arc<Service<HttpCalls>>> {
        self.all.iter().filter_map(|(link, _)| link.upgrade()).collect()
    }
}

/// A server that is dropped serves no call to its end.
impl Drop for Links {
    fn drop(&mut self) {
        for link in self.open() {
            link.abort("the server was dropped");
        }
    }
}

/// Waits for a time, or for ever.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// Takes the links that a name is offered, until it is time to stop.
pub(super) async fn serve(
    name: ServiceName,
    mut registered: Registered,
    Served { services, accounts, options }: Served,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), Error> {
    let mut links = Links::new(options.age);
    let mut adopting: HashMap<u64, link::service::Adopting> = HashMap::new();
    // Those whose callers prove who they are.
    let mut opening = JoinSet::new();
    let mut result = Ok(());
    loop {
        let event = tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => break,
            event = registered.events.recv() => event,
            () = links.due() => {
                links.drain_old(registered.is_known());
                continue;
            }
            Some(opened) = opening.join_next() => {
                match opened {
                    Ok(Ok(link)) => links.add(&link),
                    Ok(Err(why)) => tracing::warn!(%why, "a sealed link was not opened"),
                    Err(why) => tracing::error!(%why, "opening a sealed link has panicked"),
                }
                continue;
            }
        };
        match event {
            Some(Event::Offer(offer)) => {
                let link = offer.terms.link;
                match link::service::adopt(*offer, &options.pins) {
                    Ok(adopted) => drop(adopting.insert(link, adopted)),
                    Err(why) => tracing::warn!(link, %why, "a link was not adopted"),
                }
            }
            Some(Event::Open((link, security), callers)) => {
                let Some(adopted) = adopting.remove(&link) else { continue };
                let callers = (callers, security);
                if adopted.is_sealed() {
                    let (calls, accounts) = (HttpCalls::of(&services), Arc::clone(&accounts));
                    let adopted = (adopted, options.pins.clone());
                    opening.spawn(link::service::open_sealed(adopted, callers, calls, accounts));
                    continue;
                }
                match link::service::open(adopted, callers, HttpCalls::of(&services), &accounts) {
                    Ok(link) => links.add(&link),
                    Err(why) => tracing::warn!(link, %why, "a link was not opened"),
                }
            }
            Some(Event::Over(link)) => drop(adopting.remove(&link)),
            Some(Event::Lost) => {
                let links = links.open().len();
                tracing::info!(%name, links, "the coordinator has gone; links go on");
                adopting.clear();
            }
            Some(Event::Ended(why)) => {
                result = Err(why);
                break;
            }
            None => break,
        }
    }
    drop(registered);
    drop(adopting);
    drop(opening);
    let open = links.open();
    tracing::debug!(%name, links = open.len(), "draining");
    if result.is_err() {
        // Without a coordinator no link can come, but those that are there go on.
        while !*stopped.borrow() && !open.iter().all(|l| l.is_closed()) {
            let _look = tokio::time::timeout(ORPHANED, stopped.changed()).await;
        }
        // An end that was asked for is none that came too early.
        if *stopped.borrow() {
            result = Ok(());
        }
    }
    open.iter().for_each(|link| link.drain());
    let drain = options.drain;
    for link in open {
        links.ending.spawn(async move { link.finish(drain, "the server has ended").await });
    }
    while links.ending.join_next().await.is_some() {}
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::{self, Connected, Place};
    use crate::{Routes, Server};

    const WAIT: Duration = Duration::from_secs(10);
    const POLICY: &str = "[service.g]\nregister = ['anyone']\n[service.g.call]\nanyone = ['*']\n";

    #[tokio::test]
    async fn link_whose_set_up_fails_is_reported_closed() {
        let host = partywall_testkit::Host::with(POLICY);
        let path = host.socket.clone();
        let name = ServiceName::new("g").unwrap();
        let router = Server::builder().coordinator(&path).add_routes(Routes::default());
        let serving = tokio::spawn(router.serve("g"));
        let served = name.clone();
        let host = tokio::task::spawn_blocking(move || {
            let serving = host.coordinator.serving(&served);
            assert!(serving.recv_timeout(Duration::from_secs(10)).is_ok());
            host
        });
        let _host = host.await.unwrap();
        let client = {
            let place = Place::Path(path.clone());
            coordinator::get_async(&place, place.patience()).await.unwrap()
        };
        let link = async || match client.connect(&name).unwrap().wait(WAIT).await {
            Ok(Connected::Link(linked)) => linked,
            _ => panic!("no link"),
        };
        // One that says that it is ready, and has filled nothing.
        let hollow = link().await;
        hollow.tracked.adopted(crate::Security::HIGHEST);
        let hung_up = link().await;
        drop(hung_up);
        let filled = link::caller::fill(*link().await).unwrap();
        filled.1.adopted(crate::Security::HIGHEST);
        drop((hollow, filled));
        for _ in 0..500 {
            let at = path.clone();
            let rows =
                tokio::task::spawn_blocking(move || crate::operator::links(Some(&at)).unwrap());
            let rows = rows.await.unwrap();
            if rows.iter().all(|row| !row.open) {
                serving.abort();
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the coordinator keeps links that never opened");
    }
}
