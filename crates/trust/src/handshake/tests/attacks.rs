//! Who is between the ends, and sends again, sends back, puts together and changes.

use super::*;
use partywall_testkit::Random;

/// An answer that waits, and its message.
fn waits(answer: Result<Answer, HandshakeError>) -> (Service, Vec<u8>) {
    match answer {
        Ok(Answer::Waits(service, message)) => (service, message),
        other => panic!("{other:?}"),
    }
}

/// An answer that is done, and its message.
fn done(answer: Result<Answer, HandshakeError>) -> (Channel, Vec<u8>) {
    match answer {
        Ok(Answer::Done(channel, message)) => (channel, message),
        other => panic!("{other:?}"),
    }
}

fn begin(world: &World, begin: Begin) -> (Caller, Vec<u8>) {
    Caller::begin(&world.caller, &world.terms, begin, false)
}

/// What the caller makes of a message.
fn next(world: &World, caller: Caller, message: &[u8]) -> Result<Next, HandshakeError> {
    caller.answer(&world.caller, &world.terms, message, &world.checks())
}

fn is_altered<T>(found: Result<T, HandshakeError>) -> bool {
    matches!(found, Err(HandshakeError::Altered))
}

#[test]
fn row_36_replayed_handshakes_are_refused() {
    let mut world = World::new();
    let mut first = world.first();
    let mut known = world.known();
    let earlier = world.first();
    let mut resumed = world.resumed(&earlier);
    let record = seal(&mut first.caller.sealer, b"pay");
    let back = seal(&mut first.service.sealer, b"paid");
    // Terms of the same channel, and of another one.
    for channel in [world.terms.channel, [10; 16]] {
        world.terms.channel = channel;
        let is_same = channel == [9; 16];
        // A whole session to a fresh service: it answers, and what comes then is refused.
        let (service, message) = waits(world.wire().answer(&first.messages[0]));
        assert_ne!(message, first.messages[1]);
        let refused = service.finish(&world.terms, &first.messages[2], &world.checks());
        assert!(is_altered(refused));
        // A message of the service's to a fresh caller, in each pattern.
        let of = [
            (Begin::First, &first),
            (Begin::Known(world.service.static_key()), &known),
            (earlier.resumed(), &resumed),
        ];
        for (how, ends) in of {
            let (caller, message) = begin(&world, how);
            assert_ne!(message, ends.messages[0]);
            assert!(is_altered(next(&world, caller, &ends.messages[1])));
        }
        // The other patterns' first messages again: the service has a channel that nobody else has, if the
        // channel's name is the same; it hears nothing in it, and what it says nobody reads.
        let mut wire = world.wire();
        wire.found = Some(earlier.service.resumption.clone());
        if !is_same {
            let answer = wire.answer(&known.messages[0]);
            assert!(matches!(answer, Ok(Answer::Retry(_))), "{answer:?}");
            assert!(is_altered(wire.answer(&resumed.messages[0])));
            continue;
        }
        for ends in [&mut known, &mut resumed] {
            let record = seal(&mut ends.caller.sealer, b"pay");
            let (mut service, message) = done(wire.answer(&ends.messages[0]));
            assert_ne!(message, ends.messages[1]);
            assert_ne!(service.resumption.name(), ends.service.resumption.name());
            let said = seal(&mut service.sealer, b"secret");
            assert!(open(&mut ends.caller.opener, &said).is_err());
            assert_eq!(open(&mut service.opener, &record), Err(RecordError::Altered(0)));
            assert_apart(&mut ends.caller, &mut service);
        }
    }
    world.terms.channel = [9; 16];
    // The sessions themselves were good, and their records are of no other one.
    let mut other = world.first();
    assert!(open(&mut other.service.opener, &record).is_err());
    assert_eq!(open(&mut first.service.opener, &record).unwrap(), b"pay");
    assert_eq!(open(&mut first.caller.opener, &back).unwrap(), b"paid");
}

#[test]
fn row_37_reflected_messages_are_refused() {
    let mut world = World::new();
    let earlier = world.first();
    let known = Begin::Known(world.service.static_key());
    for how in [Begin::First, known, earlier.resumed()] {
        let (caller, message) = begin(&world, how.clone());
        assert!(is_altered(next(&world, caller, &message)), "{how:?}");
        // Without the name that only a caller sends.
        if matches!(how, Begin::Resumed(_)) {
            let (caller, mut message) = begin(&world, how);
            message.drain(2..2 + NAME);
            assert!(is_altered(next(&world, caller, &message)));
        }
    }
    let (_, first) = begin(&world, Begin::First);
    for which in 0..2 {
        let (service, own) = waits(world.wire().answer(&first));
        let message = [&first, &own][which];
        assert!(is_altered(service.finish(&world.terms, message, &world.checks())));
    }
    let refused = world.wire().answer(&earlier.messages[1]).unwrap_err();
    assert!(matches!(refused, HandshakeError::Payload(_)), "{refused}");
    // An end that is caller and service under one name is sent its own messages by its other half.
    let id = world.terms.service.clone();
    world.terms.caller = id.clone();
    world.caller = end(&world.authority, &id, &["billing.shop"], LEAF_LIFE);
    let (caller, first) = begin(&world, Begin::First);
    let (service, _) = waits(world.wire().answer(&first));
    let (other, theirs) = begin(&world, Begin::First);
    assert!(is_altered(next(&world, caller, &theirs)));
    assert!(is_altered(next(&world, other, &first)));
    assert!(is_altered(service.finish(&world.terms, &theirs, &world.checks())));
    // The two swap their roles: what one has begun as the caller is no message for it as the service.
    let mut swapped = World::new();
    let terms = swapped.terms.clone();
    std::mem::swap(&mut swapped.terms.caller, &mut swapped.terms.service);
    let mut wire = swapped.wire();
    wire.caller.1 = &terms;
    assert_eq!(wire.run(Begin::First).err(), Some(Refused::Caller(HandshakeError::Altered)));
}

/// Somebody with a certificate of the same authority, between the two ends.
struct Middle {
    own: Credentials,
    /// What it and the service have agreed on.
    terms: Terms,
}

impl Middle {
    fn new(world: &World) -> Self {
        let id = world.authority.domain().user(666);
        let own = end(&world.authority, &id, &["billing.shop"], LEAF_LIFE);
        Self { own, terms: Terms { caller: id, ..world.terms.clone() } }
    }

    /// The service's proof of a handshake with the middle itself.
    fn service_proof(&self, world: &World) -> Vec<u8> {
        let with = (&self.own, &self.terms, false);
        let (mut state, _) = state(Pattern::First, true, with, None, None);
        let message = write(&mut state, Pattern::First, &[], &[]).unwrap();
        let mut wire = world.wire();
        wire.service.1 = &self.terms;
        let (_, answer) = waits(wire.answer(&message));
        read(&mut state, &answer[2..]).unwrap().0.to_vec()
    }

    /// The caller's proof of a handshake with the middle itself as a service, of this pattern.
    fn caller_proof(&self, world: &World, pattern: Pattern) -> Vec<u8> {
        let id = self.terms.caller.clone();
        let terms = Terms { service: id, ..world.terms.clone() };
        let with = (&self.own, &terms, false);
        let (mut state, ephemeral) = state(pattern, false, with, None, None);
        let how = match pattern {
            Pattern::Known => Begin::Known(self.own.static_key()),
            _ => Begin::First,
        };
        let (caller, message) = Caller::begin(&world.caller, &terms, how, false);
        let (payload, _) = read(&mut state, &message[2..]).unwrap();
        if pattern == Pattern::Known {
            return payload.to_vec();
        }
        let payload = who(&self.own, SERVICE, &state, &ephemeral);
        let answer = write(&mut state, Pattern::First, &[], &payload).unwrap();
        let next = caller.answer(&world.caller, &terms, &answer, &world.checks()).unwrap();
        let Next::Done(_, Some(last)) = next else { panic!("{next:?}") };
        read(&mut state, &last[2..]).unwrap().0.to_vec()
    }

    /// What the caller says to the middle as the service, in each pattern, with such a payload.
    fn to_caller(
        &self,
        world: &World,
        pattern: Pattern,
        payload: &dyn Fn(&HandshakeState, &[u8; KEY]) -> Vec<u8>,
    ) -> HandshakeError {
        let how = match pattern {
            Pattern::Known => Begin::Known(self.own.static_key()),
            _ => Begin::First,
        };
        let (caller, message) = begin(world, how);
        let with = (&self.own, &world.terms, false);
        let (mut state, ephemeral) = state(pattern, false, with, None, None);
        read(&mut state, &message[2..]).unwrap();
        let payload = payload(&state, &ephemeral);
        let answer = write(&mut state, pattern, &[], &payload).unwrap();
        next(world, caller, &answer).unwrap_err()
    }

    /// What the service says to the middle as the caller.
    fn to_service(
        &self,
        world: &World,
        pattern: Pattern,
        payload: &dyn Fn(&HandshakeState, &[u8; KEY]) -> Vec<u8>,
    ) -> HandshakeError {
        let with = (&self.own, &world.terms, false);
        let theirs = world.service.static_key();
        let theirs = (pattern == Pattern::Known).then_some(&theirs);
        let (mut state, ephemeral) = state(pattern, true, with, theirs, None);
        if pattern == Pattern::Known {
            let payload = payload(&state, &ephemeral);
            let message = write(&mut state, pattern, &[], &payload).unwrap();
            return world.wire().answer(&message).unwrap_err();
        }
        let message = write(&mut state, pattern, &[], &[]).unwrap();
        let (service, answer) = waits(world.wire().answer(&message));
        read(&mut state, &answer[2..]).unwrap();
        let payload = payload(&state, &ephemeral);
        let message = write(&mut state, pattern, &[], &payload).unwrap();
        service.finish(&world.terms, &message, &world.checks()).unwrap_err()
    }
}

#[test]
fn row_37_relayed_proofs_are_refused() {
    let world = World::new();
    let middle = Middle::new(&world);
    let (caller, service) = (&world.terms.caller, &world.terms.service);
    let signature = |id: &Id| HandshakeError::Signature(id.to_string());
    let identity = |expected: &Id, found: &Id| HandshakeError::Identity {
        expected: expected.to_string(),
        found: found.to_string(),
    };
    // What it has heard in handshakes of its own, word for word.
    let services = middle.service_proof(&world);
    let callers = [Pattern::First, Pattern::Known].map(|of| middle.caller_proof(&world, of));
    // The other one's certificate, and its own signature of all that is right.
    let forged = |role: &'static [u8], of: &Credentials| {
        let chain = of.chain().clone();
        let own = &middle.own;
        let signer = SigningKey::from_pem(&own.signer.to_pem()).unwrap();
        let mixed = Credentials::new(own.static_key.clone(), signer, chain, vec![]).unwrap();
        move |state: &HandshakeState, key: &[u8; KEY]| who(&mixed, role, state, key).to_vec()
    };
    let own = |role: &'static [u8]| {
        let own = &middle.own;
        move |state: &HandshakeState, key: &[u8; KEY]| who(own, role, state, key).to_vec()
    };
    for pattern in [Pattern::First, Pattern::Known] {
        let to_caller = |payload: &dyn Fn(&HandshakeState, &[u8; KEY]) -> Vec<u8>| {
            middle.to_caller(&world, pattern, payload)
        };
        let to_service = |payload: &dyn Fn(&HandshakeState, &[u8; KEY]) -> Vec<u8>| {
            middle.to_service(&world, pattern, payload)
        };
        assert_eq!(to_caller(&|_, _| services.clone()), signature(service));
        assert_eq!(to_caller(&forged(SERVICE, &world.service)), signature(service));
        // Under its own name it is not who is due; and what a caller signs is no service's.
        assert_eq!(to_caller(&own(SERVICE)), identity(service, &middle.terms.caller));
        assert_eq!(to_caller(&own(CALLER)), signature(&middle.terms.caller));
        for proof in &callers {
            assert_eq!(to_service(&|_, _| proof.clone()), signature(caller));
            assert_eq!(to_caller(&|_, _| proof.clone()), signature(caller));
        }
        assert_eq!(to_service(&forged(CALLER, &world.caller)), signature(caller));
        assert_eq!(to_service(&own(CALLER)), identity(caller, &middle.terms.caller));
        assert_eq!(to_service(&own(SERVICE)), signature(&middle.terms.caller));
        assert_eq!(to_service(&|_, _| services.clone()), signature(service));
        // No payload, and pieces of one.
        for cut in [0, 1, 2, services.len() / 2, services.len() - 1] {
            let refused = to_caller(&|_, _| services[..cut].to_vec());
            assert_eq!(refused, HandshakeError::Payload("it is cut"), "{cut}");
        }
        let refused = to_service(&|_, _| [&callers[0][..], &[0]].concat());
        assert_eq!(refused, HandshakeError::Payload("there are bytes behind it"));
        let refused = to_service(&|_, _| vec![0; 5]);
        assert!(matches!(refused, HandshakeError::Certificate(_)), "{refused}");
    }
}

/// A proof is of one role, one handshake and two keys.
#[test]
fn row_37_a_proof_is_of_one_end_and_handshake() {
    let world = World::new();
    let with = (&world.caller, &world.terms, false);
    let (state, ephemeral) = state(Pattern::First, true, with, None, None);
    let proof = who(&world.caller, CALLER, &state, &ephemeral);
    let hash: [u8; 32] = state.get_handshake_hash().try_into().unwrap();
    let key = world.caller.static_key();
    let read = |role: &[u8], hash: &[u8; 32], key: &[u8; KEY], ephemeral: &[u8; KEY]| {
        read_who(&proof, (role, hash), (key, ephemeral), &world.checks())
    };
    assert_eq!(read(CALLER, &hash, &key, &ephemeral).unwrap().certified.id, world.terms.caller);
    let refused = HandshakeError::Signature(world.terms.caller.to_string());
    assert_eq!(read(SERVICE, &hash, &key, &ephemeral).unwrap_err(), refused);
    assert_eq!(read(CALLER, &hash, &ephemeral, &key).unwrap_err(), refused);
    for bit in 0..256 {
        let flipped = |bytes: &[u8; 32]| {
            let mut bytes = *bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        };
        assert_eq!(read(CALLER, &flipped(&hash), &key, &ephemeral).unwrap_err(), refused);
        assert_eq!(read(CALLER, &hash, &flipped(&key), &ephemeral).unwrap_err(), refused);
        assert_eq!(read(CALLER, &hash, &key, &flipped(&ephemeral)).unwrap_err(), refused);
    }
}

/// Messages of two sessions of the same ends and terms, put together.
#[test]
fn row_37_parts_of_other_sessions_are_refused() {
    let world = World::new();
    let earlier = world.first();
    let known = Begin::Known(world.service.static_key());
    // Behind the head, the ephemeral key, the static key with its tag, and in what follows.
    let cuts = |len: usize| [0, 2, 18, 34, 50, 82, 98, len / 2, len - 16, len - 1];
    for how in [Begin::First, known, earlier.resumed()] {
        let mut wire = world.wire();
        wire.found = Some(earlier.service.resumption.clone());
        let run = |change: &mut dyn FnMut(usize, &mut Vec<u8>)| {
            wire.run_with(how.clone(), |at, message| change(at, message))
        };
        let other = run(&mut |_, _| {}).unwrap().messages;
        for message in 0..other.len() {
            for cut in cuts(other[message].len()) {
                for is_head in [false, true] {
                    let mut is_same = false;
                    let ended = run(&mut |at, bytes| {
                        if at == message {
                            let whole = bytes.clone();
                            let theirs = &other[at];
                            // Signatures are not of one length.
                            let cut = cut.min(whole.len()).min(theirs.len());
                            *bytes = match is_head {
                                true => [&theirs[..cut], &whole[cut..]].concat(),
                                false => [&whole[..cut], &theirs[cut..]].concat(),
                            };
                            is_same = *bytes == whole;
                        }
                    });
                    let of = format!("{how:?}, message {message}, cut {cut}, head {is_head}");
                    if is_same {
                        assert!(ended.is_ok(), "{of}");
                        continue;
                    }
                    // A whole first message that can be sent again makes a channel at one end at most.
                    let refused = ended.err().unwrap_or_else(|| panic!("{of}"));
                    let altered = HandshakeError::Altered;
                    let is_known = [
                        Refused::Retry,
                        Refused::Caller(altered.clone()),
                        Refused::Service(altered),
                    ]
                    .contains(&refused);
                    assert!(is_known, "{of}: {refused:?}");
                }
            }
        }
    }
}

/// Each byte of each message, and each cut: no two ends have a channel then.
#[test]
fn row_39_every_byte_of_a_handshake_is_checked() {
    let world = World::new();
    let mut random = Random::of_this_run();
    let earlier = world.first();
    let known = Begin::Known(world.service.static_key());
    for (how, count) in [(Begin::First, 3), (known, 2), (earlier.resumed(), 2)] {
        let mut wire = world.wire();
        wire.found = Some(earlier.service.resumption.clone());
        for message in 0..count {
            let longest = 1 + wire.run(how.clone()).unwrap().messages[message].len();
            let mut refused = 0;
            for byte in 0..longest {
                for is_cut in [false, true] {
                    let change = 1 + random.below(255) as u8;
                    let mut is_changed = false;
                    let ended = wire.run_with(how.clone(), |at, bytes| {
                        if at == message && byte < bytes.len() {
                            is_changed = true;
                            if is_cut { bytes.truncate(byte) } else { bytes[byte] ^= change }
                        }
                    });
                    // Messages differ in a byte or two, by the signature.
                    assert!(is_changed || byte + 6 >= longest);
                    let of = format!("{how:?}, message {message}, byte {byte}, cut {is_cut}");
                    assert_eq!(ended.is_err(), is_changed, "{of}");
                    refused += usize::from(is_changed);
                }
            }
            assert!(refused >= 2 * (longest - 6), "{refused} of {longest}");
        }
    }
}

#[test]
fn row_39_extended_messages_are_refused() {
    let world = World::new();
    let earlier = world.first();
    let known = Begin::Known(world.service.static_key());
    for (how, count) in [(Begin::First, 3), (known, 2), (earlier.resumed(), 2)] {
        let mut wire = world.wire();
        wire.found = Some(earlier.service.resumption.clone());
        for message in 0..count {
            for len in [1, 16, MESSAGE_BYTES] {
                let ended = wire.run_with(how.clone(), |at, bytes| {
                    if at == message {
                        bytes.extend_from_slice(&vec![0; len]);
                    }
                });
                let refused = ended.err().unwrap();
                let is_length = matches!(
                    refused,
                    Refused::Caller(HandshakeError::Length(_))
                        | Refused::Service(HandshakeError::Length(_))
                );
                assert_eq!(is_length, len == MESSAGE_BYTES, "{how:?} {message} {len}: {refused:?}");
            }
        }
    }
    for len in 0..2 {
        let refused = world.wire().answer(&vec![VERSION; len]).unwrap_err();
        assert_eq!(refused, HandshakeError::Length(len));
        let (caller, _) = begin(&world, Begin::First);
        let refused = next(&world, caller, &vec![VERSION; len]).unwrap_err();
        assert_eq!(refused, HandshakeError::Length(len));
    }
    let (caller, first) = begin(&world, Begin::First);
    assert_eq!(next(&world, caller, &first[..20]).unwrap_err(), HandshakeError::Length(18));
    let short = [VERSION, Pattern::Resumed as u8, 0];
    assert_eq!(world.wire().answer(&short).unwrap_err(), HandshakeError::Length(3));
}
