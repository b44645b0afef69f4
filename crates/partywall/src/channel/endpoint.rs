//! What a channel connects to, and how: [`Endpoint`].

#[cfg(feature = "http2")]
mod network;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Uri};
use partywall_abi::name::ServiceName;
use partywall_trust::Pin;
use tokio::sync::Semaphore;
use tower::BoxError;

use super::Channel;
use super::balance::Balance;
use super::dial::{Address, Dialing, Network};
use super::settings::Settings;
use crate::coordinator::Place;
use crate::error::Error;
use crate::pins::Pins;
use crate::target::{Target, TargetError};
use crate::time;

/// How long connecting may take unless it is set.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where an endpoint leads.
pub(super) enum Destination {
    Name(ServiceName),
    Address(Box<Address>),
}

/// What a [`Channel`] connects to, and how.
///
/// It takes the place of `tonic::transport::Endpoint` and has its settings under the same names. Beside
/// tonic's targets, `http://host:port` and `unix:/path`, it takes a name: `partywall:///name`.
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// let channel = partywall::Endpoint::from_static("partywall:///greeter")
///     .timeout(Duration::from_secs(2))
///     .concurrency_limit(64)
///     .wait_for_ready(true)
///     .connect()
///     .await?;
/// # let _ = channel; Ok(()) }
/// ```
///
/// # Where a setting has effect
///
/// | settings | effect |
/// | --- | --- |
/// | [`timeout`](Self::timeout), [`concurrency_limit`](Self::concurrency_limit), [`rate_limit`](Self::rate_limit), [`buffer_size`](Self::buffer_size), [`user_agent`](Self::user_agent), [`origin`](Self::origin), [`connect_timeout`](Self::connect_timeout), [`wait_for_ready`](Self::wait_for_ready) | the same on each route: ring, call gate, HTTP/2 |
/// | [`coordinator`](Self::coordinator), [`balance`](Self::balance) | names |
/// | [`pin`](Self::pin) | names whose links are sealed, and `https://`; refuses everything else |
/// | [`ring_only`](Self::ring_only) | refuses HTTP/2 |
/// | `http2_*`, `keep_alive_*`, `initial_*`, `max_frame_size` | HTTP/2: addresses, and names that the policy maps to an address |
/// | `tcp_*`, `local_address` | HTTP/2 over TCP |
///
/// A ring has no connection to keep alive and no window to set: the kernel reports the death of a peer.
///
/// # TLS
///
/// `https://HOST:PORT` is called by mutual TLS, with a certificate that the coordinator issues; the
/// server's has to be of the same authority, and for the host (`localhost` for a loopback address), or,
/// where a name of the policy has that address, for the name. There is no `tls_config`: a service with
/// certificates of another authority is called by tonic's own channel.
#[derive(Clone)]
pub struct Endpoint {
    target: Result<Target, TargetError>,
    uri: Uri,
    coordinator: Option<PathBuf>,
    pub(crate) connect_timeout: Duration,
    pub(crate) wait_for_ready: bool,
    pub(super) ring_only: bool,
    pub(super) balance: Option<Balance>,
    pub(crate) settings: Settings,
    pub(crate) pins: Pins,
    /// The settings of HTTP/2 and TCP.
    network: Network,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("target", &self.target).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// An endpoint from whatever becomes one: a text, a [`Uri`], another endpoint, a type of the program's.
    ///
    /// # Errors
    /// [`Error::Target`]; [`Error::Setting`] with what the program's own type says.
    pub fn new<D>(target: D) -> Result<Self, Error>
    where
        D: TryInto<Self>,
        D::Error: Into<BoxError>,
    {
        target.try_into().map_err(|error| {
            let own = |error: BoxError| Error::Setting { name: "target", why: error.to_string() };
            error.into().downcast::<Error>().map_or_else(own, |error| *error)
        })
    }

    /// An endpoint from a static text.
    ///
    /// ```
    /// partywall::Endpoint::from_static("partywall:///greeter");
    /// ```
    ///
    /// # Panics
    /// When the text is no target.
    pub fn from_static(target: &'static str) -> Self {
        Self::parse(target).unwrap_or_else(|error| panic!("{error}"))
    }

    /// An endpoint from text that is made while the program runs.
    ///
    /// # Errors
    /// [`Error::Target`].
    pub fn from_shared(target: impl Into<Bytes>) -> Result<Self, Error> {
        let bytes = target.into();
        let text = std::str::from_utf8(&bytes).map_err(|_| TargetError::Scheme {
            text: String::from_utf8_lossy(&bytes).into_owned(),
        })?;
        Self::parse(text)
    }

    fn parse(text: &str) -> Result<Self, Error> {
        Ok(Self::of(Ok(Target::parse(text)?)))
    }

    fn of(target: Result<Target, TargetError>) -> Self {
        let none = Uri::from_static("http://localhost");
        let uri = match &target {
            Ok(Target::Http(url) | Target::Https(url)) => {
                url.parse().unwrap_or_else(|_| none.clone())
            }
            _ => none.clone(),
        };
        Self {
            target,
            uri,
            coordinator: None,
            connect_timeout: CONNECT_TIMEOUT,
            wait_for_ready: false,
            ring_only: false,
            balance: None,
            settings: Settings::default(),
            pins: Pins::default(),
            network: Network::default(),
        }
    }

    /// The address of an `http://` target; `http://localhost` for one that has none, as `unix:/path` and
    /// `partywall:///name`.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }
}

/// Settings of Partywall's own.
impl Endpoint {
    /// Uses the coordinator that listens at `path`, instead of looking in the usual places.
    pub fn coordinator(mut self, path: impl Into<PathBuf>) -> Self {
        self.coordinator = Some(path.into());
        self
    }

    /// Waits until the service is there, when connecting and when a link or a connection has ended,
    /// instead of failing with UNAVAILABLE: until there is a coordinator, until somebody serves the
    /// name, until something answers at the address. A call's deadline and [`Endpoint::timeout`] end
    /// its waiting. Off unless set.
    ///
    /// What waiting cannot mend fails at once in either case: a policy that denies, a quota that is used
    /// up, a coordinator that this process must not trust.
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.wait_for_ready = wait;
        self
    }

    /// Spreads the calls over the instances of the name, each call by itself: the channel keeps a link to
    /// each instance. Unset, a channel has one link, and channels take turns.
    ///
    /// An instance that comes gets calls, and one that goes gets no new ones; calls that it has not seen go
    /// to others. Where a quota allows fewer links than there are instances, the calls go to those that have
    /// one, and a warning is logged. Over the network the calls of a name are spread over all addresses that
    /// the policy has for it and that its hosts have, round robin unless this says otherwise. It has no
    /// effect where the target is an address.
    pub fn balance(mut self, balance: Balance) -> Self {
        self.balance = Some(balance);
        self
    }

    /// Takes no other end than one whose certificate is by this key: its own one, or one of those who have
    /// signed it, up to the root. Of several pins one is enough.
    ///
    /// The coordinator certifies who is who, so that one that lies can stand between two ends that have not
    /// met. An endpoint with a pin believes it as far as the pinned authority does: `partywall ca show`
    /// prints the pin of one, and a coordinator without the key of that one certifies nobody to this
    /// endpoint. It holds on sealed rings and at `https://`. A plain link and a plain address are refused,
    /// since nothing is proven there, and so is a connector of the program's own. What is refused is
    /// [`Error::NotPinned`].
    ///
    /// ```
    /// let pin = "sha256/47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=".parse()?;
    /// let endpoint = partywall::Endpoint::from_static("partywall:///billing").pin(pin);
    /// # let _ = endpoint;
    /// # Ok::<(), partywall::PinError>(())
    /// ```
    pub fn pin(mut self, pin: Pin) -> Self {
        self.pins.add(pin);
        self
    }

    /// Refuses a route over the network, even when the policy offers one: connecting, or each call
    /// of a lazy channel, fails with FAILED_PRECONDITION then.
    pub fn ring_only(mut self, only: bool) -> Self {
        self.ring_only = only;
        self
    }
}

/// Settings of each call, with tonic's names and meaning. They hold on each route.
impl Endpoint {
    /// How long a call may take to the head of its answer; the shorter one of this and the request's own
    /// deadline (`grpc-timeout`) counts. None unless set.
    ///
    /// The time begins when the call is sent on: after the wait for [`Endpoint::concurrency_limit`] and
    /// [`Endpoint::rate_limit`], before the wait for a link or a connection. It ends with the head of the
    /// answer, so that a stream of answers may take longer; the answer of a unary call comes with its
    /// head on a ring. The call ends with DEADLINE_EXCEEDED and is cancelled at the service. As with
    /// tonic, the service is not told of this time; [`tonic::Request::set_timeout`] tells it, covers the
    /// whole call with all its waiting, and the messages of a stream as well.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = Some(timeout);
        self
    }

    /// How many calls of the channel, with all its clones, may be under way to the head of their answer;
    /// the others wait. No limit unless set.
    pub fn concurrency_limit(mut self, limit: usize) -> Self {
        self.settings.concurrency_limit = Some(limit.min(Semaphore::MAX_PERMITS));
        self
    }

    /// How many calls the channel, with all its clones, begins within `duration`; the others wait. No
    /// limit unless set.
    ///
    /// # Panics
    /// When either of them is zero.
    pub fn rate_limit(mut self, limit: u64, duration: Duration) -> Self {
        assert!(limit > 0 && !duration.is_zero(), "a rate of zero lets no call begin");
        self.settings.rate_limit = Some((limit, duration.min(time::FAR)));
        self
    }

    /// How many calls may wait for a limit, or over HTTP/2 for a connection, before the channel is not
    /// ready for another one; 1,024 unless set, and at least one. Without limits, calls over a ring wait by
    /// themselves.
    pub fn buffer_size(mut self, calls: impl Into<Option<usize>>) -> Self {
        let calls = calls.into().map(|calls| calls.clamp(1, Semaphore::MAX_PERMITS));
        self.settings.buffer_size = calls;
        self
    }

    /// What stands in front of the library's own `user-agent`: `Greeter partywall/1`. A request's own
    /// user agent stands in front of both.
    ///
    /// # Errors
    /// [`Error::Setting`] when it is no header's value.
    pub fn user_agent<T>(mut self, user_agent: T) -> Result<Self, Error>
    where
        T: TryInto<HeaderValue>,
    {
        let value = user_agent.try_into().map_err(|_| Error::Setting {
            name: "user_agent",
            why: "it is no value of a header; write visible ASCII characters".into(),
        })?;
        self.settings.user_agent = Some(value);
        Ok(self)
    }

    /// The scheme and authority that a service finds in the URI of a request: over HTTP/2 those of the
    /// address unless set, and on a ring none. A ring carries the authority; the scheme there is `http`.
    ///
    /// An origin without scheme or authority fails when connecting.
    pub fn origin(mut self, origin: Uri) -> Self {
        self.settings.origin = Some(origin);
        self
    }
}

impl Endpoint {
    /// How long connecting may take, to whatever target; 5 s unless set. With
    /// [`Endpoint::wait_for_ready`] this is for each attempt.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long connecting may take.
    pub fn get_connect_timeout(&self) -> Option<Duration> {
        Some(self.connect_timeout)
    }
}

impl Endpoint {
    /// Connects. The endpoint may be used again.
    ///
    /// # Errors
    /// [`Error`], each variant for its reason.
    pub async fn connect(&self) -> Result<Channel, Error> {
        self.connect_to(self.destination(None)?).await
    }

    /// A channel that connects at its first call. Where [`Endpoint::connect`] would fail, its calls
    /// do, with the code of that error and its text.
    pub fn connect_lazy(&self) -> Channel {
        Channel::of(self, self.destination(None))
    }

    async fn connect_to(&self, to: Destination) -> Result<Channel, Error> {
        let channel = Channel::of(self, Ok(to));
        channel.connected().await?;
        Ok(channel)
    }

    /// Where this leads, by a connector of the program's own if there is one.
    fn destination(&self, connector: Option<Dialing>) -> Result<Destination, Error> {
        let target = match (self.target()?, &connector) {
            (Target::Name(name), None) => return Ok(Destination::Name(name.clone())),
            (Target::Name(name), Some(_)) => {
                return Err(Error::Setting {
                    name: "connect_with_connector",
                    why: format!("`{name}` is a name, which needs none; write `connect`"),
                });
            }
            (target, _) => target,
        };
        let address = self.address_of(target, None)?;
        if self.ring_only {
            return Err(Error::no_ring(target.to_string(), "an address"));
        }
        if connector.is_some() {
            self.pins.need_proof("a connector of the program's own speaks no TLS of ours")?;
        }
        self.is_proven(target)?;
        Ok(Destination::Address(Box::new(match connector {
            None => address,
            Some(dialing) => address.by(dialing),
        })))
    }

    /// The target, where it and the settings can be had.
    fn target(&self) -> Result<&Target, Error> {
        if let Some(origin) = &self.settings.origin
            && (origin.scheme().is_none() || origin.authority().is_none())
        {
            let why = format!("`{origin}` has no scheme or no host; write http://HOST");
            return Err(Error::Setting { name: "origin", why });
        }
        if self.settings.concurrency_limit == Some(0) {
            return Err(Error::lets_no_call_begin("concurrency_limit"));
        }
        Ok(self.target.as_ref().map_err(Clone::clone)?)
    }

    /// The name that this leads to, for who speaks rings only and makes one call at a time.
    #[cfg(feature = "blocking")]
    pub(crate) fn blocking(&self) -> Result<&ServiceName, Error> {
        if self.settings.rate_limit.is_some() {
            let why = "a blocking channel keeps none; pause between the calls".into();
            return Err(Error::Setting { name: "rate_limit", why });
        }
        if self.balance.is_some() {
            let why = "a blocking channel has one link; make one channel for each instance".into();
            return Err(Error::Setting { name: "balance", why });
        }
        match self.target()? {
            Target::Name(name) => Ok(name),
            target => Err(Error::no_ring(target.to_string(), "an address")),
        }
    }

    /// The authority of requests on a ring, if it is set.
    pub(crate) fn host(&self) -> Option<HeaderValue> {
        let authority = self.settings.origin.as_ref()?.authority()?;
        HeaderValue::from_str(authority.as_str()).ok()
    }

    /// Where the coordinator is.
    pub(crate) fn place(&self) -> Place {
        self.coordinator.clone().map_or_else(Place::find, Place::Path)
    }

    /// That who answers at an address proves a key, where one is pinned.
    pub(super) fn is_proven(&self, address: &Target) -> Result<(), Error> {
        match address {
            Target::Https(_) => Ok(()),
            _ => self.pins.need_proof(&format!("`{address}` speaks no TLS")),
        }
    }

    /// The address of a target that is no name, with this endpoint's settings; at one of those that its host
    /// has, if there is one.
    pub(super) fn address_of(
        &self,
        target: &Target,
        at: Option<SocketAddr>,
    ) -> Result<Address, TargetError> {
        let proof = (&self.place(), &self.pins);
        Address::of((target, at), &self.network, &self.settings, proof)
    }
}

/// Takes any URI; one that is no target fails when connecting.
impl From<Uri> for Endpoint {
    fn from(uri: Uri) -> Self {
        Self::of(Target::parse(&uri.to_string()))
    }
}

impl From<&Endpoint> for Endpoint {
    fn from(endpoint: &Endpoint) -> Self {
        endpoint.clone()
    }
}

impl TryFrom<Bytes> for Endpoint {
    type Error = Error;

    fn try_from(target: Bytes) -> Result<Self, Error> {
        Self::from_shared(target)
    }
}

impl TryFrom<String> for Endpoint {
    type Error = Error;

    fn try_from(target: String) -> Result<Self, Error> {
        Self::parse(&target)
    }
}

impl TryFrom<&str> for Endpoint {
    type Error = Error;

    fn try_from(target: &str) -> Result<Self, Error> {
        Self::parse(target)
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(target: &str) -> Result<Self, Error> {
        Self::parse(target)
    }
}
