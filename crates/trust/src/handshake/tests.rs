mod attacks;
mod pins;
mod secrecy;
mod terms;

use super::*;
use std::time::{Duration, UNIX_EPOCH};

use crate::authority::{Authority, LEAF_LIFE};
use crate::id::TrustDomain;
use crate::record::{RecordError, Suite, What};

const WHAT: What = What { kind: 1, flags: 0, stream: 3 };
const SECOND: Duration = Duration::from_secs(1);

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_900_000_000)
}

/// An authority, a caller and a service that it certifies, and a channel between them.
struct World {
    authority: Authority,
    roots: Roots,
    caller: Credentials,
    service: Credentials,
    terms: Terms,
}

impl World {
    fn new() -> Self {
        let domain = TrustDomain::new("shop.example").unwrap();
        let authority = Authority::new(&domain, now()).unwrap();
        let mut roots = Roots::default();
        authority.trusted(&mut roots).unwrap();
        let (caller, service) = (domain.user(1000), domain.service("billing").unwrap());
        let form = Form { suite: Suite::Aes128Gcm, classes: false };
        let name = "billing.shop".to_owned();
        let terms = Terms {
            channel: [9; 16],
            caller: caller.clone(),
            service: service.clone(),
            name,
            policy: 7,
            form,
        };
        let caller = end(&authority, &caller, &[], LEAF_LIFE);
        let service = end(&authority, &service, &["other.shop", "billing.shop"], LEAF_LIFE);
        Self { authority, roots, caller, service, terms }
    }

    fn checks(&self) -> Checks<'_> {
        Checks { roots: &self.roots, now: now(), pinned: None, pins: &[] }
    }

    /// The two ends as they are.
    fn wire(&self) -> Wire<'_> {
        Wire {
            caller: (&self.caller, &self.terms, self.checks()),
            service: (&self.service, &self.terms, self.checks()),
            retried: [false; 2],
            found: None,
        }
    }

    fn first(&self) -> Ends {
        self.wire().run(Begin::First).unwrap()
    }

    fn known(&self) -> Ends {
        self.wire().run(Begin::Known(self.service.static_key())).unwrap()
    }

    /// A channel by what the ends have of another one.
    fn resumed(&self, of: &Ends) -> Ends {
        let mut wire = self.wire();
        wire.found = Some(of.service.resumption.clone());
        wire.run(of.resumed()).unwrap()
    }
}

/// An end of this ID, with evidence.
fn end(authority: &Authority, id: &Id, dns: &[&str], life: Duration) -> Credentials {
    let (key, signer) = (StaticKey::generate(), SigningKey::generate());
    let dns: Vec<_> = dns.iter().map(|&name| name.to_owned()).collect();
    let chain = authority.issue(id, &dns, &signer.public(), (now(), life)).unwrap();
    Credentials::new(key, signer, chain, b"evidence".to_vec()).unwrap()
}

/// Both ends of a channel, and what they have sent.
struct Ends {
    caller: Channel,
    service: Channel,
    messages: Vec<Vec<u8>>,
}

impl Ends {
    fn resumed(&self) -> Begin {
        Begin::Resumed(Box::new(self.caller.resumption.clone()))
    }
}

/// Why no channel came about.
#[derive(Debug, PartialEq)]
enum Refused {
    /// The caller's end has refused.
    Caller(HandshakeError),
    /// The service's end has.
    Service(HandshakeError),
    /// The service's end has asked for another handshake.
    Retry,
}

/// Two ends, and what is between them.
struct Wire<'a> {
    caller: (&'a Credentials, &'a Terms, Checks<'a>),
    service: (&'a Credentials, &'a Terms, Checks<'a>),
    retried: [bool; 2],
    found: Option<Resumption>,
}

impl Wire<'_> {
    fn run(&self, begin: Begin) -> Result<Ends, Refused> {
        self.run_with(begin, |_, _| {})
    }

    /// A handshake, whose messages somebody changes.
    fn run_with(
        &self,
        begin: Begin,
        mut change: impl FnMut(usize, &mut Vec<u8>),
    ) -> Result<Ends, Refused> {
        let (own, terms, checks) = &self.caller;
        let (caller, mut first) = Caller::begin(own, terms, begin, self.retried[0]);
        change(0, &mut first);
        let (service, mut second) = match self.answer(&first).map_err(Refused::Service)? {
            Answer::Done(channel, message) => (Ok(channel), message),
            Answer::Waits(service, message) => (Err(service), message),
            Answer::Retry(message) => {
                let next = caller.answer(own, terms, &message, checks).map_err(Refused::Caller)?;
                assert!(matches!(next, Next::Retry), "{next:?}");
                return Err(Refused::Retry);
            }
        };
        change(1, &mut second);
        let next = caller.answer(own, terms, &second, checks).map_err(Refused::Caller)?;
        let Next::Done(caller, third) = next else { return Err(Refused::Retry) };
        let mut messages = vec![first, second];
        let service = match (service, third) {
            (Ok(channel), None) => channel,
            (Err(service), Some(mut third)) => {
                change(2, &mut third);
                let channel = service.finish(self.service.1, &third, &self.service.2);
                messages.push(third);
                channel.map_err(Refused::Service)?
            }
            (service, third) => panic!("{service:?} {third:?}"),
        };
        Ok(Ends { caller, service, messages })
    }

    /// The service's answer to a first message.
    fn answer(&self, message: &[u8]) -> Result<Answer, HandshakeError> {
        let (own, terms, checks) = &self.service;
        let find = |name: &[u8; NAME]| self.found.clone().filter(|found| found.name() == *name);
        Service::answer(own, terms, (message, self.retried[1]), find, checks)
    }
}

fn seal(sealer: &mut Sealer, payload: &[u8]) -> Vec<u8> {
    let mut record = vec![0; sealer.form().sealed(payload.len())];
    sealer.seal(WHAT, [payload, &[]], &mut record).unwrap();
    record
}

fn open(opener: &mut Opener, record: &[u8]) -> Result<Vec<u8>, RecordError> {
    let mut record = record.to_vec();
    let len = opener.open(WHAT, &mut record)?;
    Ok(record[..len].to_vec())
}

/// Asserts that records pass both ways.
fn assert_joined(caller: &mut Channel, service: &mut Channel) {
    for payload in [&b"hello"[..], b"", &[1; 1000]] {
        let record = seal(&mut caller.sealer, payload);
        assert_eq!(open(&mut service.opener, &record).unwrap(), payload);
        let record = seal(&mut service.sealer, payload);
        assert_eq!(open(&mut caller.opener, &record).unwrap(), payload);
    }
}

/// Asserts that no record passes either way.
fn assert_apart(caller: &mut Channel, service: &mut Channel) {
    for (from, to) in
        [(&mut caller.sealer, &mut service.opener), (&mut service.sealer, &mut caller.opener)]
    {
        let opened = open(to, &seal(from, b"hello"));
        assert!(matches!(opened, Err(RecordError::Altered(_) | RecordError::Over)), "{opened:?}");
    }
}

#[test]
fn each_pattern_ends_with_a_channel() {
    let mut world = World::new();
    for suite in Suite::ALL {
        for classes in [false, true] {
            world.terms.form = Form { suite, classes };
            let (first, known) = (world.first(), world.known());
            let resumed = [world.resumed(&first), world.resumed(&known)];
            let hows = [How::First, How::Known, How::Resumed, How::Resumed];
            let counts = [3, 2, 2, 2];
            let all = [first, known].into_iter().chain(resumed).zip(hows).zip(counts);
            for ((mut ends, how), count) in all {
                assert_eq!((ends.caller.how, ends.service.how), (how, how));
                assert_eq!(ends.messages.len(), count, "{how:?}");
                assert_joined(&mut ends.caller, &mut ends.service);
                for (peer, is) in
                    [(&ends.caller.peer, &world.service), (&ends.service.peer, &world.caller)]
                {
                    let verified = world.roots.verify(is.chain(), now()).unwrap();
                    assert_eq!(peer.certified, verified);
                    assert_eq!(peer.static_key, is.static_key());
                    assert_eq!(peer.evidence, b"evidence");
                }
                assert_eq!(ends.caller.resumption.name(), ends.service.resumption.name());
                assert_eq!(ends.caller.resumption.peer(), &ends.caller.peer);
                assert_eq!(ends.caller.sealer.form(), world.terms.form);
            }
        }
    }
}

#[test]
fn a_record_of_another_handshake_is_refused() {
    let world = World::new();
    let first = world.first();
    let mut all = vec![world.resumed(&first), world.resumed(&first)];
    all.extend([world.known(), world.known(), first, world.first()]);
    let names: Vec<_> = all.iter().map(|ends| ends.caller.resumption.name()).collect();
    for from in 0..all.len() {
        let records = seal(&mut all[from].caller.sealer, b"hello");
        let back = seal(&mut all[from].service.sealer, b"hello");
        // Nor does an end open what it has sealed itself.
        assert!(open(&mut all[from].caller.opener, &records).is_err());
        for to in (0..all.len()).filter(|to| *to != from) {
            assert_ne!(names[from], names[to]);
            assert!(open(&mut all[to].service.opener, &records).is_err(), "{from} to {to}");
            assert!(open(&mut all[to].caller.opener, &back).is_err(), "{from} to {to}");
        }
    }
}

#[test]
fn a_channel_is_resumed_again_and_again() {
    let mut world = World::new();
    let mut ends = world.first();
    let peers = (ends.caller.peer.clone(), ends.service.peer.clone());
    for turn in 0..10 {
        // Another channel, of another form: the secret is of the two ends.
        world.terms.channel = [turn; 16];
        world.terms.form.classes = turn % 2 == 0;
        let mut next = world.resumed(&ends);
        assert_joined(&mut next.caller, &mut next.service);
        assert_ne!(next.caller.resumption.name(), ends.caller.resumption.name());
        assert_ne!(*next.caller.resumption.secret, *ends.caller.resumption.secret);
        assert_eq!((&next.caller.peer, &next.service.peer), (&peers.0, &peers.1));
        ends = next;
    }
}

/// Asserts that a handshake is begun anew once, at first contact, and that it is done then.
fn assert_retried(mut wire: Wire<'_>, begin: Begin, of: &str) {
    assert_eq!(wire.run(begin.clone()).err(), Some(Refused::Retry), "{of}");
    wire.retried = [true; 2];
    let mut ends = wire.run(Begin::First).unwrap();
    assert_joined(&mut ends.caller, &mut ends.service);
    assert_eq!((ends.caller.how, ends.service.how), (How::First, How::First), "{of}");
    // It is no way to be asked for one handshake after the other.
    assert!(matches!(wire.run(begin), Err(Refused::Service(HandshakeError::Pattern(_)))), "{of}");
    // Both ends know that it is the second one.
    for retried in [[true, false], [false, true]] {
        wire.retried = retried;
        let refused = Some(Refused::Caller(HandshakeError::Altered));
        assert_eq!(wire.run(Begin::First).err(), refused, "{of}");
    }
}

#[test]
fn a_secret_that_is_not_known_begins_anew() {
    let world = World::new();
    let ends = world.first();
    assert_retried(world.wire(), ends.resumed(), "unknown");
    let mut wire = world.wire();
    wire.found = Some(world.first().service.resumption);
    assert_retried(wire, ends.resumed(), "of another handshake");
    let with = |change: &dyn Fn(&mut Resumption)| {
        let mut wire = world.wire();
        let mut found = ends.service.resumption.clone();
        change(&mut found);
        wire.found = Some(found);
        wire
    };
    let over = with(&|found| found.peer.certified.not_after = now() - SECOND);
    assert_retried(over, ends.resumed(), "over");
    let other = TrustDomain::new("shop.example").unwrap().user(1001);
    let others = with(&|found| found.peer.certified.id = other.clone());
    assert_retried(others, ends.resumed(), "of another caller");
    // A key that is pinned since then.
    let mut wire = with(&|found| found.peer.static_key = [1; KEY]);
    let pinned = world.caller.static_key();
    wire.service.2.pinned = Some(&pinned);
    assert_retried(wire, ends.resumed(), "of another key than the pinned one");
    let last = with(&|found| found.peer.certified.not_after = now());
    assert!(last.run(ends.resumed()).is_ok());
}

#[test]
fn a_key_of_an_instance_before_begins_anew() {
    let world = World::new();
    let before = StaticKey::generate().public();
    assert_retried(world.wire(), Begin::Known(before), "another key");
    let caller = world.caller.static_key();
    assert_retried(world.wire(), Begin::Known(caller), "the own key");
    // With a point of low order nobody can begin: it is first contact at once.
    let mut ends = world.wire().run(Begin::Known([0; KEY])).unwrap();
    assert_eq!((ends.caller.how, ends.service.how), (How::First, How::First));
    assert_joined(&mut ends.caller, &mut ends.service);
}

#[test]
fn a_resumed_service_is_checked_again() {
    let mut world = World::new();
    let ends = world.first();
    let run = |world: &World, begin: Begin, pinned: Option<&[u8; KEY]>, now| {
        let mut wire = world.wire();
        wire.found = Some(ends.service.resumption.clone());
        wire.caller.2 = Checks { roots: &world.roots, now, pinned, pins: &[] };
        wire.run(begin)
    };
    let key = world.service.static_key();
    assert!(run(&world, ends.resumed(), Some(&key), now()).is_ok());
    let refused = run(&world, ends.resumed(), Some(&[1; KEY]), now()).err().unwrap();
    let id = world.terms.service.to_string();
    assert_eq!(refused, Refused::Caller(HandshakeError::Pinned(id.clone())));
    let late = run(&world, ends.resumed(), None, now() + LEAF_LIFE + SECOND).err().unwrap();
    let expired = CertificateError::Expired { id: id.clone(), since: 1 };
    assert_eq!(late, Refused::Caller(expired.into()));
    world.terms.name = "unknown.shop".into();
    let refused = run(&world, ends.resumed(), None, now()).err().unwrap();
    let name = world.terms.name.clone();
    assert_eq!(refused, Refused::Caller(HandshakeError::Name { id, name }));
}

#[test]
fn the_most_that_an_end_can_say_has_room() {
    let mut world = World::new();
    let long = || Chain::new(vec![vec![1; 2048]; 6]).unwrap();
    let id = TrustDomain::new("shop.example").unwrap().service("b").unwrap();
    let mut most = end(&world.authority, &id, &[], LEAF_LIFE);
    most.chain = long().into();
    most.evidence = vec![2; EVIDENCE_BYTES];
    let key = world.service.static_key();
    let (_, message) = Caller::begin(&most, &world.terms, Begin::Known(key), false);
    assert!((CHAIN_BYTES + EVIDENCE_BYTES..=MESSAGE_BYTES).contains(&message.len()));
    // It comes to the other end whole, and what is said there is refused for what it is.
    let refused = world.wire().answer(&message).unwrap_err();
    assert!(matches!(refused, HandshakeError::Certificate(_)), "{refused}");
    let too_long = HandshakeError::Payload("its evidence is too long");
    let new = |evidence| {
        let key = StaticKey::generate();
        Credentials::new(key, SigningKey::generate(), long(), evidence)
    };
    assert_eq!(new(vec![2; EVIDENCE_BYTES + 1]).unwrap_err(), too_long);
    assert!(new(vec![2; EVIDENCE_BYTES]).is_ok());
    world.caller.evidence = vec![2; EVIDENCE_BYTES + 1];
    for begin in [Begin::First, Begin::Known(key)] {
        let refused = world.wire().run(begin).err().unwrap();
        assert_eq!(refused, Refused::Service(too_long.clone()));
    }
}

/// What is debugged shows no secret.
#[test]
fn no_secret_is_shown_by_debug() {
    let world = World::new();
    let ends = world.first();
    let all = format!("{:?} {:?} {:?}", world.caller, ends.caller, ends.resumed());
    let secrets = [
        &world.caller.static_key.0.private[..],
        &ends.caller.resumption.secret[..],
        world.caller.signer.to_der().as_slice(),
    ]
    .map(|secret| format!("{secret:?}"));
    assert!(secrets.iter().all(|secret| !all.contains(secret.trim_matches(['[', ']']))), "{all}");
    assert!(all.contains("StaticKey(..)") && all.contains("billing"), "{all}");
}
