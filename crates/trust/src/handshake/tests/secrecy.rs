//! What somebody has recorded, and who steals keys afterwards.
//!
//! The thief computes with `snow` what the ends have computed, with all that it has: both ends' static keys,
//! the secret by which a channel was resumed, the messages. An ephemeral key it has to guess. With the right
//! one the same attempt reads everything, so it is the ephemeral keys that the secrecy is of.

use super::*;

/// What is recorded of a session, and its ephemeral keys, which no end keeps.
struct Recorded {
    pattern: Pattern,
    messages: Vec<Vec<u8>>,
    /// One of each end.
    records: [Vec<u8>; 2],
    /// The caller's.
    ephemeral: Pair,
    /// The secret of the channel before, and of the one after this.
    secrets: [Option<Zeroizing<[u8; SECRET]>>; 2],
}

/// A session whose caller's ephemeral key the test knows.
fn record(world: &World, pattern: Pattern) -> Recorded {
    let ephemeral = Pair::generate();
    let earlier = world.first();
    let with = (&world.caller, &world.terms, false);
    let key = world.service.static_key();
    let resumption = &earlier.caller.resumption;
    let is_resumed = pattern == Pattern::Resumed;
    let (theirs, secret) =
        ((pattern == Pattern::Known).then_some(&key), is_resumed.then_some(&*resumption.secret));
    let mut state = state_of(&ephemeral, (pattern, true), with, theirs, secret);
    let payload = match pattern {
        Pattern::Known => who(&world.caller, CALLER, &state, &ephemeral.public).to_vec(),
        _ => vec![],
    };
    let name = if is_resumed { &resumption.name[..] } else { &[] };
    let first = write(&mut state, pattern, name, &payload).unwrap();
    let resumption = is_resumed.then(|| Box::new(resumption.clone()));
    let caller = Caller { state, pattern, ephemeral: ephemeral.public, resumption };
    let mut wire = world.wire();
    wire.found = Some(earlier.service.resumption.clone());
    let (service, second) = match wire.answer(&first).unwrap() {
        Answer::Done(channel, message) => (Ok(channel), message),
        Answer::Waits(service, message) => (Err(service), message),
        Answer::Retry(_) => panic!("it begins anew"),
    };
    let next = caller.answer(&world.caller, &world.terms, &second, &world.checks()).unwrap();
    let Next::Done(mut caller, third) = next else { panic!("it begins anew") };
    let mut messages = vec![first, second];
    messages.extend(third);
    let mut service = service.unwrap_or_else(|service| {
        service.finish(&world.terms, &messages[2], &world.checks()).unwrap()
    });
    let records = [seal(&mut caller.sealer, b"asked"), seal(&mut service.sealer, b"answered")];
    assert_eq!(open(&mut service.opener, &records[0]).unwrap(), b"asked");
    let before = is_resumed.then(|| earlier.caller.resumption.secret.clone());
    let secrets = [before, Some(caller.resumption.secret.clone())];
    Recorded { pattern, messages, records, ephemeral, secrets }
}

/// What a thief reads of the records with this guess of the caller's ephemeral key.
fn as_caller(
    world: &World,
    of: &Recorded,
    guess: &Pair,
    secret: Option<&[u8; SECRET]>,
) -> Option<[Vec<u8>; 2]> {
    let key = world.service.static_key();
    let theirs = (of.pattern == Pattern::Known).then_some(&key);
    let with = (&world.caller, &world.terms, false);
    let mut state = state_of(guess, (of.pattern, true), with, theirs, secret);
    // What it has read with the service's static key, word for word.
    let payload = match of.pattern {
        Pattern::Known => first_payload(world, of),
        _ => vec![],
    };
    write(&mut state, of.pattern, &[], &payload).unwrap();
    read(&mut state, &of.messages[1][2..]).ok()?;
    if of.pattern == Pattern::First {
        // Its last message is another one; the secrets are of the keys alone.
        write(&mut state, of.pattern, &[], &[]).unwrap();
    }
    records(world, state, of)
}

/// What a thief reads of the records with a guess of the service's ephemeral key.
fn as_service(
    world: &World,
    of: &Recorded,
    guess: &Pair,
    secret: Option<&[u8; SECRET]>,
) -> Option<[Vec<u8>; 2]> {
    let with = (&world.service, &world.terms, false);
    let mut state = state_of(guess, (of.pattern, false), with, None, secret);
    let head = if of.pattern == Pattern::Resumed { 2 + NAME } else { 2 };
    read(&mut state, &of.messages[0][head..]).ok()?;
    write(&mut state, of.pattern, &[], &[]).unwrap();
    if of.pattern == Pattern::First {
        read(&mut state, &of.messages[2][2..]).ok()?;
    }
    records(world, state, of)
}

/// Opens the recorded records with the secrets of a handshake that is done.
fn records(world: &World, state: HandshakeState, of: &Recorded) -> Option<[Vec<u8>; 2]> {
    let certified = Certified::read(&world.caller.chain.certificates()[0]).unwrap();
    let peer = Peer { certified, static_key: [0; KEY], evidence: vec![] };
    let is_caller = state.is_initiator();
    let Channel { sealer, mut opener, .. } = channel(state, &world.terms, How::First, peer);
    // A sealer's secret opens what it has sealed.
    let mut own = sealer.opened_by();
    let (callers, services) =
        if is_caller { (&mut own, &mut opener) } else { (&mut opener, &mut own) };
    let asked = open(callers, &of.records[0]).ok()?;
    Some([asked, open(services, &of.records[1]).ok()?])
}

/// The payload of the first message of IK, by the service's static key.
fn first_payload(world: &World, of: &Recorded) -> Vec<u8> {
    let with = (&world.service, &world.terms, false);
    let (mut state, _) = state(Pattern::Known, false, with, None, None);
    read(&mut state, &of.messages[0][2..]).unwrap().0.to_vec()
}

#[test]
fn recorded_traffic_and_stolen_static_keys_open_nothing() {
    let world = World::new();
    for pattern in [Pattern::First, Pattern::Known, Pattern::Resumed] {
        let of = record(&world, pattern);
        let before = of.secrets[0].as_deref();
        // The attempt is an honest one: with the ephemeral key it reads all.
        let all = as_caller(&world, &of, &of.ephemeral, before);
        assert_eq!(all, Some([b"asked".to_vec(), b"answered".to_vec()]), "{pattern:?}");
        let pair = |private: &[u8; KEY]| {
            let mut pair = Pair::generate();
            snow::types::Dh::set(&mut pair, private);
            pair
        };
        let mut guesses = vec![
            world.caller.static_key.0.clone(),
            world.service.static_key.0.clone(),
            pair(&[0; KEY]),
            pair(&[1; KEY]),
        ];
        guesses.extend(of.secrets.iter().flatten().map(|secret| pair(secret)));
        guesses.extend((0..20).map(|_| Pair::generate()));
        let secrets = match pattern {
            Pattern::Resumed => of.secrets.iter().map(Option::as_deref).collect(),
            _ => vec![None],
        };
        for secret in secrets {
            for guess in &guesses {
                assert_eq!(as_caller(&world, &of, guess, secret), None, "{pattern:?}");
                assert_eq!(as_service(&world, &of, guess, secret), None, "{pattern:?}");
            }
        }
    }
}

/// It is documented so: who has the service's static key reads of IK who has called, and no more.
#[test]
fn a_stolen_static_key_reads_who_has_called() {
    let world = World::new();
    let of = record(&world, Pattern::Known);
    let payload = first_payload(&world, &of);
    let chain = world.caller.chain.certificates();
    let mut parts = payload.strip_prefix(&[chain.len() as u8]).unwrap();
    let mut part = || {
        let (len, rest) = parts.split_first_chunk().unwrap();
        let (part, rest) = rest.split_at(u16::from_le_bytes(*len).into());
        parts = rest;
        part.to_vec()
    };
    assert!(chain.iter().all(|certificate| part() == *certificate));
    assert_eq!(part(), b"evidence");
    // What is left is a signature of the caller's.
    let signature = part();
    let with = (&world.service, &world.terms, false);
    let (state, _) = state(Pattern::Known, false, with, None, None);
    let hash = state.get_handshake_hash();
    let key = world.caller.static_key();
    let signed = who::signed(CALLER, hash, &key, &of.ephemeral.public);
    assert!(world.caller.signer.public().fits(&signed, &signature));
    assert!(parts.is_empty());
    // Without that key it is nothing.
    let other = StaticKey::generate();
    let with = (&Credentials { static_key: other, ..end_of(&world) }, &world.terms, false);
    let (mut state, _) = super::state(Pattern::Known, false, with, None, None);
    assert!(read(&mut state, &of.messages[0][2..]).is_err());
}

/// Another instance of the service.
fn end_of(world: &World) -> Credentials {
    end(&world.authority, &world.terms.service, &["billing.shop"], LEAF_LIFE)
}
