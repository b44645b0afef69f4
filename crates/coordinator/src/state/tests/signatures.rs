//! Principals of signed programs: whom they cover, what they may serve, and why not.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use partywall_trust::{Program, SigningKey};

use super::*;
use crate::container::Container;
use crate::engine::Origin;
use crate::signatures::{Beside, Found};

const RULES: &str = "[principal.signed]\nsigned = true\n[principal.web]\nuid = 2\n\
                     [service.g]\nregister = ['signed']\n[service.h]\nregister = ['anyone']\n\
                     [service.g.call]\nweb = ['*']\n";
const DIGEST: [u8; 32] = [5; 32];

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Keys in a directory, and a policy that names them.
struct Place {
    dir: tempfile::TempDir,
    key: SigningKey,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap(), key: SigningKey::generate() };
        place.write("builder.pub", &place.key.public().to_pem());
        place.write("revoked", "");
        place
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    fn policy(&self) -> Policy {
        let dir = self.dir.path().display();
        self.write(
            "policy.toml",
            &format!(
                "{RULES}[signatures]\nkeys = ['{dir}/builder.pub']\nrevoked = '{dir}/revoked'\n"
            ),
        );
        Policy::load(&self.dir.path().join("policy.toml")).unwrap()
    }

    fn state(&self) -> State {
        let mut s = state();
        s.reload(self.policy(), None, Instant::now());
        // As a new one's.
        s.policy.again_at(UNIX_EPOCH);
        take(&mut s);
        s
    }

    /// What a program has beside it that is signed for `service`, by this key unless by another one.
    fn signature(&self, service: &str, register: &[&str], key: Option<&SigningKey>) -> Vec<u8> {
        let register = register.iter().map(|name| (*name).to_owned()).collect();
        let said = Program::new(service, register, at(1000), Duration::from_secs(1000));
        said.sign("program", DIGEST, key.unwrap_or(&self.key))
    }

    fn found(&self, bytes: &[u8]) -> Arc<Found> {
        let program = self.dir.path().join("program");
        std::fs::write(crate::signatures::beside(&program), bytes).unwrap();
        Arc::new(Found::beside(&program))
    }
}

/// A process that was started as `g` at this time.
fn started(found: &Arc<Found>, digest: [u8; 32], seconds: u64) -> Facts {
    let beside = Beside { found: Arc::clone(found), at: at(seconds) };
    facts(1).started("g".into(), digest, beside, None)
}

/// The code and the text with which it may not.
fn refuses(s: &mut State, conn: Conn, name: &str) -> (u8, String) {
    let effects = try_register(s, conn, name);
    let (code, text) = refused(&effects);
    (code, text.to_owned())
}

fn try_register(s: &mut State, conn: Conn, name: &str) -> Vec<Effect> {
    let (request, name) = (1, ServiceName::new(name).unwrap());
    let register = RegistryMessage::Register { request, name, places: 4 };
    ask(s, conn, Message::Registry(register))
}

#[test]
fn a_signed_principal_needs_a_signature_that_counts() {
    let place = Place::new();
    let other = SigningKey::generate();
    let good = place.found(&place.signature("g", &[], None));
    let mut s = place.state();
    for (found, digest, time, why) in [
        (place.found(&place.signature("g", &[], Some(&other))), DIGEST, 1500, "untrusted key"),
        (place.found(&place.signature("x", &[], None)), DIGEST, 1500, "wrong name"),
        (Arc::clone(&good), [6; 32], 1500, "altered"),
        (Arc::clone(&good), DIGEST, 2001, "expired"),
        (Arc::new(Found::beside(std::path::Path::new("/no/program"))), DIGEST, 1500, "unsigned"),
        (place.found(b"?"), DIGEST, 1500, "no signature"),
    ] {
        let conn = admit(&mut s, started(&found, digest, time));
        assert!(s.connections[&conn].standing.identity.principals.is_empty(), "{why}");
        let (code, text) = refuses(&mut s, conn, "g");
        assert_eq!(code, PERMISSION_DENIED);
        let says = format!("the program of service `g` is not signed: {why}: ");
        assert!(text.contains(&says) && text.contains("; remedy: "), "{text}");
        assert!(text.contains("`partywall sign PROGRAM --service g --key KEY`"), "{text}");
    }
    let conn = admit(&mut s, started(&good, DIGEST, 1500));
    assert_eq!(s.connections[&conn].standing.identity.principals, ["signed"]);
    let registered = try_register(&mut s, conn, "g");
    assert!(matches!(registered[..], [Effect::Send { .. }]), "{registered:?}");
    assert_eq!(s.instances(&name()), 1);
    // Whoever was not started has no signature that anybody knows, whatever it runs.
    let observed = Facts { digest: Digest::Observed(DIGEST), ..facts(1) };
    let conn = admit(&mut s, observed);
    let (_, text) = refuses(&mut s, conn, "g");
    assert!(text.contains("the coordinator has not started it"), "{text}");
}

#[test]
fn names_that_a_signature_does_not_list_are_not_served() {
    let place = Place::new();
    let mut s = place.state();
    let found = place.found(&place.signature("g", &["g", "i"], None));
    let conn = admit(&mut s, started(&found, DIGEST, 1500));
    // Everybody may serve it but for that.
    let (code, text) = refuses(&mut s, conn, "h");
    let says = "the signature of the program of service `g` does not list `h` among the names that it may \
                serve; it lists g, i; remedy: `partywall sign PROGRAM --service g --register h --key KEY`";
    assert!(code == PERMISSION_DENIED && text.starts_with(says), "{text}");
    try_register(&mut s, conn, "g");
    assert_eq!(s.instances(&name()), 1);
    let other = admit(&mut s, facts(7));
    try_register(&mut s, other, "h");
    assert_eq!(s.instances(&ServiceName::new("h").unwrap()), 1, "which is not signed");
    let principals = ["signed".to_owned()];
    let listed = s.connections[&conn].standing.listed.clone();
    assert_eq!(s.policy.names_served_by(&principals, &listed), ["g"], "as it is certified");
}

/// A process in a container of the image with this digest, whose signature is in this file.
fn of_image(digest: [u8; 32], found: &Arc<Found>) -> Facts {
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let signature = Some(Beside { found: Arc::clone(found), at: at(1500) });
    let origin = Origin { image: format!("sha256:{digits}"), compose: None, signature };
    let container = Container { engine: "docker".into(), id: "a".repeat(64), pod: None };
    Facts { container: Some(container), ..facts(1) }.told(Ok(origin))
}

#[test]
fn an_image_is_signed_for_the_name_of_the_principal() {
    let place = Place::new();
    let dir = place.dir.path().display();
    place.write(
        "policy.toml",
        &format!(
            "[signatures]\nkeys = ['{dir}/builder.pub']\nrevoked = '{dir}/revoked'\nimages = '{dir}/images'\n\
             [engine.docker]\napi = '/run/docker.sock'\n[principal.web]\nsigned = 'image'\n\
             [service.g]\nregister = ['web']\n[service.h]\nregister = ['web']\n"
        ),
    );
    let file = place.dir.path().join("policy.toml");
    let mut s = state();
    s.reload(Policy::load(&file).unwrap(), None, Instant::now());
    s.policy.again_at(UNIX_EPOCH);
    take(&mut s);
    let other = SigningKey::generate();
    let good = place.found(&place.signature("web", &["g"], None));
    for (found, digest, why) in [
        (place.found(&place.signature("web", &[], Some(&other))), DIGEST, "untrusted key"),
        (place.found(&place.signature("x", &[], None)), DIGEST, "wrong name"),
        (Arc::clone(&good), [6; 32], "altered"),
        (Arc::new(Found::beside(std::path::Path::new("/no/image"))), DIGEST, "unsigned"),
        (place.found(b"?"), DIGEST, "no signature"),
    ] {
        let conn = admit(&mut s, of_image(digest, &found));
        assert!(s.connections[&conn].standing.identity.principals.is_empty(), "{why}");
        let (code, text) = refuses(&mut s, conn, "g");
        assert_eq!(code, PERMISSION_DENIED);
        assert!(text.contains(&format!(" is not signed: {why}: ")), "{text}");
        let sign = format!("`partywall sign --image sha256:{:02x}", digest[0]);
        assert!(text.contains("(its image sha256:") && text.contains(&sign), "{text}");
    }
    // Of the host, and of an engine that was not asked.
    let conn = admit(&mut s, facts(1));
    let (_, text) = refuses(&mut s, conn, "g");
    assert!(text.contains("it is known of no image, which has to be signed for `web`"), "{text}");
    let conn = admit(&mut s, of_image(DIGEST, &good));
    assert_eq!(s.connections[&conn].standing.identity.principals, ["web"]);
    assert_eq!(s.connections[&conn].standing.facts.evidence(), Evidence::Image);
    try_register(&mut s, conn, "g");
    assert_eq!(s.instances(&name()), 1);
    let (_, text) = refuses(&mut s, conn, "h");
    assert!(
        text.contains("the signature of its image sha256:05") && text.contains("lists g;"),
        "{text}"
    );
    // What is revoked counts no more.
    place.write("revoked", &format!("{}\n", "05".repeat(32)));
    s.reload(Policy::load(&file).unwrap(), None, Instant::now());
    take(&mut s);
    assert_eq!(s.instances(&name()), 0);
    let (_, text) = refuses(&mut s, conn, "g");
    assert!(text.contains("is not signed: revoked: "), "{text}");
}

#[test]
fn a_reload_looks_at_signatures_again() {
    let place = Place::new();
    let found = place.found(&place.signature("g", &[], None));
    let served = |s: &State| s.instances(&name());
    for revoked in [format!("{}\n", "05".repeat(32)), place.key.public().id()] {
        place.write("revoked", "");
        let mut s = place.state();
        let (server, web) = (admit(&mut s, started(&found, DIGEST, 1500)), admit(&mut s, facts(2)));
        s.trust = None;
        try_register(&mut s, server, "g");
        let (number, _) = link(&mut s, web);
        assert!(s.links[&number].open && served(&s) == 1);
        place.write("revoked", &revoked);
        let policy = place.policy();
        let changed = s.reload(policy, None, Instant::now());
        assert_eq!((served(&s), changed.ended), (0, 1));
        let told = take(&mut s);
        let ended = |e: &&Effect| {
            matches!(e, Effect::Send { to, message: Message::End(EndMessage::Ended { .. }) }
                if *to == web || *to == server)
        };
        assert_eq!(told.iter().filter(ended).count(), 2, "{told:?}");
        let (_, text) = refuses(&mut s, server, "g");
        assert!(text.contains("is not signed: revoked: "), "{text}");
    }
}

/// It counted when its process was started, and counts no more when the policy is read again.
#[test]
fn a_signature_that_is_over_ends_with_the_next_reload() {
    let place = Place::new();
    let found = place.found(&place.signature("g", &[], None));
    let mut s = place.state();
    let conn = admit(&mut s, started(&found, DIGEST, 2000));
    try_register(&mut s, conn, "g");
    assert_eq!(s.instances(&name()), 1);
    // Today is later than that.
    s.reload(place.policy(), None, Instant::now());
    take(&mut s);
    assert_eq!(s.instances(&name()), 0);
    let (_, text) = refuses(&mut s, conn, "g");
    assert!(text.contains("is not signed: expired: "), "{text}");
}
