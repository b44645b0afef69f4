//! What a handler learns about its caller and its call.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use partywall_abi::control::{Digest, Identity};
use partywall_abi::security::{Evidence, Security};
use partywall_trust::handshake::Peer as Proven;

/// Who calls, as the kernel told the coordinator when the link was made.
///
/// A handler finds it with `request.extensions().get::<partywall::Peer>()`. It is there for calls
/// over a ring only: over HTTP/2 the caller's identity is not verified.
///
/// ```
/// fn greeting(request: &tonic::Request<()>) -> String {
///     match request.extensions().get::<partywall::Peer>() {
///         Some(peer) if peer.principals().iter().any(|name| name == "web") => "Hello, web!".into(),
///         Some(peer) => format!("Hello, process of user {}!", peer.uid()),
///         None => "Hello, whoever you are!".into(), // over HTTP/2
///     }
/// }
/// assert_eq!(greeting(&tonic::Request::new(())), "Hello, whoever you are!");
/// ```
///
/// Shown, it is as in `partywall links --wide`, with the whole digest:
/// `web (pid 12, uid 1000, sha256:9f86... started)`.
#[derive(Clone)]
pub struct Peer {
    identity: Arc<Identity>,
    link: u64,
    security: Security,
    proven: Option<Arc<Proven>>,
}

impl Peer {
    pub(crate) fn new(identity: Identity, link: u64, security: Security) -> Self {
        Self { identity: Arc::new(identity), link, security, proven: None }
    }

    /// The same end, which has proven who it is.
    pub(crate) fn proven(self, proven: Option<Arc<Proven>>) -> Self {
        Self { proven, ..self }
    }

    /// The same end as it is known now, perhaps to another coordinator, which may know less.
    pub(crate) fn known_as(&self, identity: Identity) -> Self {
        let evidence = match (self.security.evidence, identity.digest.evidence()) {
            // What an image was, it stays.
            (Evidence::Image, _) => Evidence::Image,
            (before, now) => before.min(now),
        };
        Self::new(identity, self.link, self.security.with_evidence(evidence))
            .proven(self.proven.clone())
    }

    /// Whether both are known to be one process. Its number is unique among those that the coordinator
    /// sees; of those that it does not see, nobody knows.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.pid().is_some() && self.pid() == other.pid()
    }

    /// The effective user of the caller's process when it connected to the coordinator.
    pub fn uid(&self) -> u32 {
        self.identity.uid
    }

    /// Its effective group at that time.
    pub fn gid(&self) -> u32 {
        self.identity.gid
    }

    /// Process number as the coordinator's PID namespace has it; none when that cannot see the process.
    pub fn pid(&self) -> Option<u32> {
        self.identity.pid
    }

    /// The SHA-256 of its program file, and how it is known.
    pub fn digest(&self) -> Digest {
        self.identity.digest
    }

    /// Control group path, such as `/system.slice/web.service`; empty when unknown.
    pub fn cgroup(&self) -> &str {
        &self.identity.cgroup
    }

    /// The policy's names for it, sorted; empty when the policy has none.
    pub fn principals(&self) -> &[String] {
        &self.identity.principals
    }

    /// The link's number, as `partywall links` shows it.
    pub fn link(&self) -> u64 {
        self.link
    }

    /// Its SPIFFE ID, which it has proven by a certificate; none over a link that is not sealed.
    ///
    /// # References
    /// The SPIFFE Identity and Verifiable Identity Document, section 2.
    pub fn spiffe_id(&self) -> Option<&str> {
        Some(self.proven.as_ref()?.certified.id.as_str())
    }

    /// What protects the link between caller and service.
    pub fn security(&self) -> Security {
        self.security
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.principals() {
            [] => f.write_str("(no principal)")?,
            names => f.write_str(&names.join("+"))?,
        }
        match self.pid() {
            Some(pid) => write!(f, " (pid {pid}, uid {}", self.uid())?,
            None => write!(f, " (pid unseen, uid {}", self.uid())?,
        }
        let digest = Hex(self.digest());
        if digest.0 != Digest::Unknown {
            write!(f, ", {digest:?}")?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("principals", &self.principals())
            .field("pid", &self.pid())
            .field("uid", &self.uid())
            .field("gid", &self.gid())
            .field("cgroup", &self.cgroup())
            .field("digest", &Hex(self.digest()))
            .field("link", &self.link)
            .field("security", &self.security)
            .finish()
    }
}

/// A digest as people compare it.
struct Hex(Digest);

impl fmt::Debug for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, evidence) = match &self.0 {
            Digest::Observed(bytes) => (bytes, "observed"),
            Digest::Started(bytes) => (bytes, "started"),
            _ => return f.write_str("unknown"),
        };
        f.write_str("sha256:")?;
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, " {evidence}")
    }
}

/// What protects the link or connection that a request came over, from the request's extensions: that of
/// its [`Peer`] over a ring, that of its connection over HTTP/2. The lowest levels of a request that
/// did not come through a [`Server`](crate::Server).
///
/// ```
/// # let request = tonic::Request::new(());
/// let least = partywall::Security::LOWEST;
/// assert!(partywall::security_of(request.extensions()).at_least(&least));
/// ```
pub fn security_of(extensions: &http::Extensions) -> Security {
    let of_peer = extensions.get::<Peer>().map(Peer::security);
    of_peer.or_else(|| extensions.get().copied()).unwrap_or(Security::LOWEST)
}

/// The SPIFFE ID that the caller of a request has proven, over a sealed link ([`Peer::spiffe_id`]) or by
/// mutual TLS, from the request's extensions; none of others.
///
/// ```
/// # let request = tonic::Request::new(());
/// assert_eq!(partywall::spiffe_id_of(request.extensions()), None);
/// ```
pub fn spiffe_id_of(extensions: &http::Extensions) -> Option<&str> {
    let of_peer = extensions.get::<Peer>().and_then(Peer::spiffe_id);
    of_peer.or_else(|| Some(&*extensions.get::<CertifiedAs>()?.0))
}

/// The SPIFFE ID of who calls by mutual TLS; in a request's extensions.
#[derive(Clone)]
pub(crate) struct CertifiedAs(pub(crate) Arc<str>);

/// When the caller stops waiting; in a request's extensions when the call has a deadline.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// /// What is left for a handler's own calls.
/// fn left(request: &tonic::Request<()>) -> Option<Duration> {
///     let deadline = request.extensions().get::<partywall::Deadline>()?;
///     Some(deadline.0.saturating_duration_since(Instant::now()))
/// }
/// let mut request = tonic::Request::new(());
/// assert_eq!(left(&request), None);
/// request.extensions_mut().insert(partywall::Deadline(Instant::now()));
/// assert_eq!(left(&request), Some(Duration::ZERO));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(pub Instant);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_shown_in_hexadecimal() {
        let mut identity = Identity::new(7, 8);
        identity.pid = Some(12);
        identity.digest = Digest::Started([0xab; 32]);
        identity.principals = vec!["web".into()];
        let hex = "ab".repeat(32);
        let peer = Peer::new(identity.clone(), 3, Security::HIGHEST);
        assert_eq!(peer.to_string(), format!("web (pid 12, uid 7, sha256:{hex} started)"));
        let debug = format!("{peer:?}");
        assert!(debug.contains(&format!("digest: sha256:{hex} started, link: 3")), "{debug}");
        let route = crate::Route::Ring { server: peer };
        assert_eq!(route.to_string(), format!("ring to web (pid 12, uid 7, sha256:{hex} started)"));
        assert!(!format!("{route:?}").contains("171"), "{route:?}");
        let nobody = Peer::new(Identity::new(7, 8), 3, Security::HIGHEST);
        assert_eq!(nobody.to_string(), "(no principal) (pid unseen, uid 7)");
    }
}
