//! Bodies of the fuzz targets: another end that sends anything, and names and certificates of its making.
//!
//! Each returns whether the bytes were accepted.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::authority::{Authority, LEAF_LIFE};
use crate::certificate::{Certified, Chain, Roots};
use crate::handshake::{
    Answer, Begin, Caller, Channel, Checks, Credentials, Next, Resumption, Service, StaticKey,
    Terms,
};
use crate::id::{Id, TrustDomain};
use crate::key::SigningKey;
use crate::record::{Form, Opener, SECRET, Sealer, Suite, What};

/// Two ends that know each other.
struct World {
    roots: Roots,
    caller: Credentials,
    service: Credentials,
    terms: Terms,
    /// What the caller and the service have of an earlier channel.
    resumptions: [Resumption; 2],
}

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_900_000_000)
}

impl World {
    /// The one of this process.
    fn get() -> &'static Self {
        static WORLD: OnceLock<World> = OnceLock::new();
        WORLD.get_or_init(Self::new)
    }

    fn new() -> Self {
        let domain = TrustDomain::new("a").expect("a domain");
        let authority = Authority::new(&domain, now()).expect("an authority");
        let mut roots = Roots::default();
        authority.trusted(&mut roots).expect("a root");
        let end = |id: &Id, dns: &[String]| {
            let signer = SigningKey::generate();
            let chain = authority.issue(id, dns, &signer.public(), (now(), LEAF_LIFE));
            let chain = chain.expect("a certificate");
            Credentials::new(StaticKey::generate(), signer, chain, vec![]).expect("no evidence")
        };
        let (id, name) = (domain.service("b").expect("an ID"), "b".to_owned());
        let form = Form { suite: Suite::Aes128Gcm, classes: true };
        let (caller, service) = (domain.user(1), end(&id, std::slice::from_ref(&name)));
        let own = end(&caller, &[]);
        let terms = Terms { channel: [1; 16], caller, service: id, name, policy: 1, form };
        let checks = Checks { roots: &roots, now: now(), pinned: None, pins: &[] };
        let (begun, message) = Caller::begin(&own, &terms, Begin::First, false);
        let answer = Service::answer(&service, &terms, (&message, false), |_| None, &checks);
        let Ok(Answer::Waits(waiting, message)) = answer else { panic!("{answer:?}") };
        let next = begun.answer(&own, &terms, &message, &checks);
        let Ok(Next::Done(of_caller, Some(last))) = next else { panic!("{next:?}") };
        let of_service = waiting.finish(&terms, &last, &checks).expect("a channel");
        let resumptions = [of_caller.resumption, of_service.resumption];
        Self { roots, caller: own, service, terms, resumptions }
    }

    fn checks(&self) -> Checks<'_> {
        Checks { roots: &self.roots, now: now(), pinned: None, pins: &[] }
    }

    fn answer(&self, message: &[u8]) -> Option<Answer> {
        let find = |name: &[u8; 16]| {
            Some(self.resumptions[1].clone()).filter(|found| found.name() == *name)
        };
        let with = (message, false);
        Service::answer(&self.service, &self.terms, with, find, &self.checks()).ok()
    }

    fn next(&self, caller: Caller, message: &[u8]) -> Option<(Channel, Option<Vec<u8>>)> {
        match caller.answer(&self.caller, &self.terms, message, &self.checks()) {
            Ok(Next::Done(channel, last)) => Some((channel, last)),
            Ok(Next::Retry) | Err(_) => None,
        }
    }
}

/// What an honest end has written, changed, or something else in its place: whether it is the same still.
///
/// The first byte says which. Changes are triples: a place, and what is added to it by XOR.
fn changed(honest: &[u8], data: &[u8]) -> (Vec<u8>, bool) {
    let message = match data {
        [0, rest @ ..] => rest.to_vec(),
        [1, len @ .., last] => {
            let len = len.first().map_or(0, |high| usize::from(*high) << 8) + usize::from(*last);
            honest[..len.min(honest.len())].to_vec()
        }
        [_, rest @ ..] => {
            let mut message = honest.to_vec();
            for change in rest.chunks_exact(3) {
                let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
                let at = at % message.len();
                message[at] ^= change[2];
            }
            message
        }
        [] => honest.to_vec(),
    };
    let is_same = message == honest;
    (message, is_same)
}

/// A message in the place of one of a handshake. Accepted is what makes a channel, or lets the service wait.
///
/// # Panics
/// When a channel comes about at an end that was sent something else than the other one has written, or does
/// not where it was sent that.
fn handshake(at: u8, data: &[u8]) -> bool {
    let world = World::get();
    let begin = match at % 3 {
        0 => Begin::First,
        1 => Begin::Known(world.service.static_key()),
        _ => Begin::Resumed(Box::new(world.resumptions[0].clone())),
    };
    let is_first = matches!(begin, Begin::First);
    let (caller, first) = Caller::begin(&world.caller, &world.terms, begin, false);
    let step = at / 3 % 3;
    if step == 0 {
        let (first, is_same) = changed(&first, data);
        return match world.answer(&first) {
            // Nothing in the first message of first contact is authenticated.
            Some(Answer::Waits(_, second)) => {
                let is_done = world.next(caller, &second).is_some();
                assert_eq!(is_done, is_same && is_first, "the caller");
                true
            }
            Some(Answer::Done(..)) => {
                assert!(is_same, "the service has accepted something else");
                true
            }
            Some(Answer::Retry(_)) | None => {
                assert!(!is_same, "the service has refused what is right");
                false
            }
        };
    }
    let (waiting, second) = match world.answer(&first) {
        Some(Answer::Waits(waiting, second)) => (Some(waiting), second),
        Some(Answer::Done(_, second)) => (None, second),
        other => panic!("{other:?}"),
    };
    let (message, is_same) = match step {
        1 => changed(&second, data),
        _ => (second, true),
    };
    let next = world.next(caller, &message);
    assert_eq!(next.is_some(), is_same, "the caller");
    let (Some(waiting), Some((_, Some(last)))) = (waiting, next) else { return is_same };
    let (last, is_same) = match step {
        1 => (last, true),
        _ => changed(&last, data),
    };
    let is_done = waiting.finish(&world.terms, &last, &world.checks()).is_ok();
    assert_eq!(is_done, is_same, "the service");
    is_done
}

/// A record of one of the suites, and what is said beside it.
///
/// # Panics
/// When something else is opened than was sealed, or not what was sealed, or a payload that it is not.
fn record(at: u8, data: &[u8]) -> bool {
    let suite = Suite::ALL[usize::from(at) % Suite::ALL.len()];
    let form = Form { suite, classes: at & 0x80 != 0 };
    let secret = [7; SECRET];
    let mut sealer = Sealer::new(form, [1; 16], true, &secret);
    let mut opener = Opener::new(form, [1; 16], true, &secret);
    let payload = &data[..data.len().min(80)];
    let mut record = vec![0; form.sealed(payload.len())];
    let what = What { kind: 1, flags: 2, stream: 3 };
    sealer.seal(what, [payload, &[]], &mut record).expect("the first number");
    let (mut record, is_same) = changed(&record, data);
    match opener.open(what, &mut record) {
        Ok(len) => assert!(is_same && record[..len] == *payload, "it is not what was sealed"),
        Err(_) => assert!(!is_same && record.iter().all(|byte| *byte == 0), "it is left"),
    }
    is_same
}

/// A certificate: bytes, or one that an authority has signed, changed.
///
/// # Panics
/// When one is verified that nobody has signed.
fn certificate(data: &[u8]) -> bool {
    let world = World::get();
    let (der, is_same) = changed(&world.service.chain().certificates()[0], data);
    let read = Certified::read(&der);
    let chain = Chain::new(vec![der]);
    let verified = chain.and_then(|chain| world.roots.verify(&chain, now()));
    assert_eq!(verified.is_ok(), is_same, "{verified:?}");
    read.is_ok()
}

/// A text that may be an ID.
///
/// # Panics
/// When one has parts that do not make it up.
fn id(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let Ok(id) = text.parse::<Id>() else { return false };
    assert_eq!(id.as_str(), text);
    assert_eq!(format!("spiffe://{}{}", id.domain(), id.path()), text);
    let service = id.service().map(|name| id.domain().service(name).expect("it is one's"));
    let user = id.user().map(|uid| id.domain().user(uid));
    assert!(service.is_none() || user.is_none());
    assert!([service, user].into_iter().flatten().all(|again| again == id));
    true
}

/// All that comes of another end before it is believed: the first byte says what it is.
///
/// # Panics
/// When something is accepted that should not be, or refused that should: that is what fuzzing looks for.
pub fn trust(data: &[u8]) -> bool {
    match data {
        [kind, at, rest @ ..] if kind % 4 == 0 => handshake(*at, rest),
        [kind, at, rest @ ..] if kind % 4 == 1 => record(*at, rest),
        [kind, rest @ ..] if kind % 4 == 2 => certificate(rest),
        [kind, rest @ ..] if kind % 4 == 3 => id(rest),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use partywall_testkit::Random;

    /// Inputs of this kind with random bytes behind these: how many were refused and accepted.
    fn run(heads: &[&[u8]], rest: impl Fn(&mut Random) -> Vec<u8>, count: usize) -> [usize; 2] {
        let mut random = Random::of_this_run();
        let mut accepted = [0, 0];
        for _ in 0..count {
            let head = heads[random.below(heads.len())];
            let data = [head, &rest(&mut random)].concat();
            accepted[usize::from(super::trust(&data))] += 1;
        }
        accepted
    }

    /// No change, some changes, a cut, or something else.
    fn change(random: &mut Random) -> Vec<u8> {
        match random.below(6) {
            0 => vec![],
            1 => vec![2],
            2 => [&[0][..], &random.bytes(300)].concat(),
            3 => vec![1, random.below(4) as u8, random.below(256) as u8],
            _ => {
                let changes = 1 + random.below(3);
                let mut all = vec![2];
                for _ in 0..changes {
                    all.extend([random.draw() as u8, random.below(5) as u8, random.draw() as u8]);
                }
                all
            }
        }
    }

    #[test]
    fn fuzz_trust_takes_hostile_handshakes() {
        for at in 0..9_u8 {
            let [refused, accepted] = run(&[&[0, at]], change, 60);
            // There is no third message but at first contact.
            let is_open = at > 6;
            assert!(accepted > 5 && (refused > 20 || is_open || at == 0), "{at}: {accepted}");
        }
    }

    #[test]
    fn fuzz_trust_takes_hostile_records() {
        for at in [0, 1, 2, 0x80, 0x81, 0x82] {
            let [refused, accepted] = run(&[&[1, at]], change, 2000);
            assert!(refused > 500 && accepted > 200, "{at}: {refused} {accepted}");
        }
    }

    #[test]
    fn fuzz_trust_takes_hostile_certificates() {
        let [refused, accepted] = run(&[&[2]], change, 1500);
        assert!(refused > 100 && accepted > 100, "{refused} {accepted}");
    }

    #[test]
    fn fuzz_trust_takes_hostile_ids() {
        let tails = [&b"/service/a"[..], b"/user/12", b"/user/012", b"/a", b"a/b/c", b"/.."];
        let rest = |random: &mut Random| {
            let tail = tails[random.below(tails.len())];
            let all = [b"spiffe://a", tail].concat();
            if random.below(2) == 0 { all } else { random.mutated(&[all]) }
        };
        let [refused, accepted] = run(&[&[3]], rest, 5000);
        assert!(refused > 500 && accepted > 500, "{refused} {accepted}");
        assert!(!super::trust(&[]) && !super::trust(&[0]) && !super::trust(&[3]));
    }
}
