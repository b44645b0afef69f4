//! A server that is bound: its names are registered and its addresses listen.

use std::future::{Future, Pending};
use std::time::Duration;

use partywall_abi::name::ServiceName;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::addresses::Addresses;
use super::options::Served;
use super::serving::Serving;
use super::{http2, names};
use crate::coordinator::{self, Place, Registered};
use crate::error::Error;
use crate::target::Target;

/// A server that is bound ([`Router::bind`](super::Router::bind)): its names are registered at the
/// coordinator and its sockets listen. Calls over HTTP/2 and of channels with `wait_for_ready` wait until
/// it serves; other channels to its names wait about one second, and then their calls fail with UNAVAILABLE
/// unless another instance answers. Dropping it gives all of that up.
///
/// It exists when the server is ready. A test connects to [`Bound::addresses`] without waiting; a
/// program that systemd starts with `Type=notify` says `READY=1` then (sd_notify(3), crate `sd-notify`).
///
/// ```no_run
/// # async fn f() -> Result<(), partywall::Error> {
/// let router = partywall::Server::builder().add_routes(partywall::Routes::default());
/// let bound = router.bind("greeter,http://127.0.0.1:0").await?;
/// for address in bound.addresses() {
///     println!("ready at {address}"); // partywall:///greeter, then http://127.0.0.1:41235
/// }
/// // sd_notify::notify(&[sd_notify::NotifyState::Ready])?;
/// bound.serve().await
/// # }
/// ```
#[must_use = "a server that is bound answers nobody until it serves"]
pub struct Bound {
    served: Served,
    addresses: Vec<Target>,
    bindings: Vec<Binding>,
    /// HTTP/2 connections that each address may have.
    connections: usize,
}

enum Binding {
    Name(ServiceName, Registered),
    Http2(http2::Listener),
}

impl std::fmt::Debug for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bound").field("addresses", &self.addresses).finish()
    }
}

impl Bound {
    pub(super) async fn new(at: Addresses, served: Served, place: Place) -> Result<Self, Error> {
        served.check()?;
        let targets = at.targets()?;
        let pins = &served.options.pins;
        for target in &targets {
            if let Target::Http(_) | Target::Unix(_) = target {
                pins.need_proof(&format!("`{target}` speaks no TLS"))?;
            }
        }
        let is_name = |target: &&Target| matches!(target, Target::Name(_));
        let names = targets.iter().filter(is_name).count();
        let named: Vec<ServiceName> = targets.iter().filter_map(Target::name).cloned().collect();
        let connections = http2::most(names > 0) / (targets.len() - names).max(1);
        let (mut addresses, mut bindings) = (Vec::new(), Vec::new());
        for target in targets {
            let (address, binding) = match target {
                Target::Name(name) => {
                    let client = coordinator::get_async(&place, place.patience()).await?;
                    let registered = client.register(&name, names::places()).await?;
                    (Target::Name(name.clone()), Binding::Name(name, registered))
                }
                Target::Http(url) => listening(http2::Listener::tcp(&url).await?)?,
                Target::Https(url) => {
                    let client = coordinator::get_async(&place, place.patience()).await?;
                    let terms = http2::TlsTerms::new(client, &named, pins).await?;
                    listening(http2::Listener::tls(&url, terms).await?)?
                }
                Target::Unix(path) => listening(http2::Listener::unix(&path)?)?,
            };
            addresses.push(address);
            bindings.push(binding);
        }
        Ok(Self { served, addresses, bindings, connections })
    }

    /// Where the server is bound, in the order of [`Addresses`]: names, `http://host:port` with the
    /// port that port 0 has become, and paths. [`Channel::connect`](crate::Channel::connect) takes what
    /// each displays.
    pub fn addresses(&self) -> &[Target] {
        &self.addresses
    }

    /// How many other instances serve its names at the coordinator: 0 as soon as there are none, and else
    /// those that are left after this time, in which one that is about to end has gone. For a server whose
    /// callers must not find another one; to a coordinator that does not say, there are none.
    ///
    /// ```no_run
    /// # async fn f(router: partywall::Router) -> Result<(), Box<dyn std::error::Error>> {
    /// let bound = router.bind("ledger").await?;
    /// if bound.others(std::time::Duration::from_secs(1)).await > 0 {
    ///     return Err("another process serves `ledger`; end that first".into());
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn others(&self, within: Duration) -> u32 {
        let until = Instant::now() + within;
        let mut others = 0;
        for binding in &self.bindings {
            let Binding::Name(name, registered) = binding else { continue };
            let Ok(mut watching) = registered.watch(name) else { continue };
            let alone = watching.instances.wait_for(|count| *count == 1);
            if tokio::time::timeout_at(until, alone).await.is_err() {
                others += watching.instances.borrow().saturating_sub(1);
            }
        }
        others
    }

    /// Serves until an error; see [`Bound::serve_with_shutdown`].
    pub fn serve(self) -> Serving<Pending<()>> {
        self.serve_with_shutdown(std::future::pending())
    }

    /// Serves until `shutdown` is ready, then takes no new calls and waits for those under way, as
    /// [`Router::serve_with_shutdown`](super::Router::serve_with_shutdown) does.
    ///
    /// # Errors
    /// Those of a server that serves, as there.
    pub fn serve_with_shutdown<F: Future<Output = ()>>(self, shutdown: F) -> Serving<F> {
        Serving::new(move |stop| self.run(stop), shutdown)
    }

    /// Serves everywhere until it is time to stop, or until one of them fails.
    pub(super) async fn run(self, stop: watch::Sender<bool>) -> Result<(), Error> {
        let mut tasks = JoinSet::new();
        for binding in self.bindings {
            let (served, stopped) = (self.served.clone(), stop.subscribe());
            match binding {
                Binding::Name(name, registered) => {
                    tasks.spawn(names::serve(name, registered, served, stopped));
                }
                Binding::Http2(listener) => {
                    let connections = self.connections;
                    tasks.spawn(async move {
                        listener.serve(served, connections, stopped).await;
                        Ok(())
                    });
                }
            }
        }
        let mut stopped = stop.subscribe();
        let mut result = Ok(());
        tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => {}
            Some(ended) = tasks.join_next() => result = flatten(ended),
        }
        // Everybody hears of it and finishes what is under way.
        stop.send_replace(true);
        while let Some(ended) = tasks.join_next().await {
            result = result.and(flatten(ended));
        }
        result
    }
}

fn listening(listener: http2::Listener) -> Result<(Target, Binding), Error> {
    Ok((listener.address()?, Binding::Http2(listener)))
}

fn flatten(ended: Result<Result<(), Error>, JoinError>) -> Result<(), Error> {
    ended.unwrap_or_else(|e| match e.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Err(Error::CoordinatorGone("the runtime is shutting down")),
    })
}
