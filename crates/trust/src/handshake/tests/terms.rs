//! What both ends must agree on, and whom each of them accepts.

use super::*;

/// Terms that differ in one thing each.
fn others(terms: &Terms) -> Vec<(&'static str, Terms)> {
    let domain = TrustDomain::new("shop.example").unwrap();
    let mut all = vec![];
    let mut other = |what, change: &dyn Fn(&mut Terms)| {
        let mut changed = terms.clone();
        change(&mut changed);
        assert_ne!(changed, *terms, "{what}");
        all.push((what, changed));
    };
    other("suite", &|terms| terms.form.suite = Suite::Aes256Gcm);
    other("classes", &|terms| terms.form.classes = true);
    other("policy", &|terms| terms.policy ^= 1 << 63);
    other("name", &|terms| terms.name = "other.shop".into());
    other("caller", &|terms| terms.caller = domain.user(1001));
    other("service", &|terms| terms.service = domain.service("billings").unwrap());
    other("channel", &|terms| terms.channel[15] ^= 1);
    // The same bytes, cut elsewhere.
    other("names", &|terms| {
        terms.service = domain.service("billingb").unwrap();
        terms.name = "illing.shop".into();
    });
    all
}

#[test]
fn row_41_ends_that_disagree_have_no_channel() {
    let world = World::new();
    let altered = HandshakeError::Altered;
    let earlier = world.first();
    for (what, terms) in others(&world.terms) {
        for is_callers in [true, false] {
            let mut wire = world.wire();
            wire.found = Some(earlier.service.resumption.clone());
            if is_callers {
                wire.caller.1 = &terms;
            } else {
                wire.service.1 = &terms;
            }
            let refused = |begin| wire.run(begin).err().unwrap();
            let of = format!("{what}, of the caller: {is_callers}");
            assert_eq!(refused(Begin::First), Refused::Caller(altered.clone()), "{of}");
            // The key may be another one: begun anew, it comes to the same.
            let known = Begin::Known(world.service.static_key());
            assert_eq!(refused(known), Refused::Retry, "{of}");
            // The service's end has nothing of that caller then.
            let is_others = what == "caller" && !is_callers;
            let due = if is_others { Refused::Retry } else { Refused::Service(altered.clone()) };
            assert_eq!(refused(earlier.resumed()), due, "{of}");
            wire.retried = [true; 2];
            let again = wire.run(Begin::First).err();
            assert_eq!(again, Some(Refused::Caller(altered.clone())), "{of}");
        }
    }
}

#[test]
fn row_41_a_forged_retry_makes_no_channel() {
    let world = World::new();
    let ends = world.first();
    let retry = vec![VERSION, Pattern::Retry as u8];
    for begin in [Begin::Known(world.service.static_key()), ends.resumed()] {
        let mut wire = world.wire();
        wire.found = Some(ends.service.resumption.clone());
        let forged = wire.run_with(begin.clone(), |at, message| {
            if at == 1 {
                message.clone_from(&retry);
            }
        });
        // The caller believes it, and says so in the next handshake; the service knows better.
        assert_eq!(forged.err(), Some(Refused::Retry));
        wire.retried = [true, false];
        let refused = wire.run(Begin::First).err();
        assert_eq!(refused, Some(Refused::Caller(HandshakeError::Altered)));
        // With anything behind it, it is none.
        wire.retried = [false; 2];
        let refused = wire.run_with(begin, |at, message| {
            if at == 1 {
                *message = [&retry[..], &[0]].concat();
            }
        });
        assert_eq!(refused.err(), Some(Refused::Caller(HandshakeError::Pattern(4))));
    }
    // At first contact there is nothing to begin anew.
    let refused = world.wire().run_with(Begin::First, |at, message| {
        if at == 1 {
            message.clone_from(&retry);
        }
    });
    assert_eq!(refused.err(), Some(Refused::Caller(HandshakeError::Pattern(4))));
    assert!(matches!(world.wire().answer(&retry), Err(HandshakeError::Pattern(4))));
}

#[test]
fn row_41_unknown_versions_and_patterns_are_refused() {
    let world = World::new();
    let ends = world.first();
    let counts = [3, 2, 2];
    let begins = [Begin::First, Begin::Known(world.service.static_key()), ends.resumed()];
    for (begin, count) in begins.into_iter().zip(counts) {
        for message in 0..count {
            let run = |byte: usize, value: u8| {
                let mut wire = world.wire();
                wire.found = Some(ends.service.resumption.clone());
                let changed = wire.run_with(begin.clone(), |at, bytes| {
                    if at == message {
                        bytes[byte] = value;
                    }
                });
                changed.err().unwrap()
            };
            let by = |error| match message {
                1 => Refused::Caller(error),
                _ => Refused::Service(error),
            };
            for version in [0, 2, 255] {
                assert_eq!(run(0, version), by(HandshakeError::Version(version)));
            }
            for pattern in [0, 4, 5, 255] {
                assert_eq!(run(1, pattern), by(HandshakeError::Pattern(pattern)));
            }
            // Those of another handshake.
            for pattern in 1..4 {
                let mut wire = world.wire();
                wire.found = Some(ends.service.resumption.clone());
                let mut is_same = false;
                let ended = wire.run_with(begin.clone(), |at, bytes| {
                    if at == message {
                        is_same = bytes[1] == pattern;
                        bytes[1] = pattern;
                    }
                });
                assert_eq!(ended.is_ok(), is_same, "{begin:?} {message} {pattern}");
            }
        }
    }
}

/// Points with which every private key agrees on zero, and other writings of them (RFC 7748, section 6.1).
fn low_points() -> Vec<[u8; KEY]> {
    let mut one = [0; KEY];
    one[0] = 1;
    let mut prime = [0xff; KEY];
    (prime[0], prime[31]) = (0xed, 0x7f);
    let mut below = prime;
    below[0] -= 1;
    let mut above = prime;
    above[0] += 1;
    let order_8 = [
        0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4,
        0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49,
        0xb8, 0x00,
    ];
    let mut all = vec![[0; KEY], one, prime, below, above, order_8];
    let high = all.clone().into_iter().map(|mut point| {
        point[31] ^= 0x80;
        point
    });
    all.extend(high);
    all
}

#[test]
fn row_41_points_of_low_order_are_refused() {
    let world = World::new();
    let earlier = world.first();
    let known = Begin::Known(world.service.static_key());
    for point in low_points() {
        for begin in [Begin::First, known.clone(), earlier.resumed()] {
            let mut wire = world.wire();
            wire.found = Some(earlier.service.resumption.clone());
            for message in 0..2 {
                let mut head = 2;
                if message == 0 && matches!(begin, Begin::Resumed(_)) {
                    head += NAME;
                }
                let refused = wire.run_with(begin.clone(), |at, bytes| {
                    if at == message {
                        bytes[head..head + KEY].copy_from_slice(&point);
                    }
                });
                let due = match (message, &begin) {
                    (0, Begin::Known(_)) => Refused::Retry,
                    (0, _) => Refused::Service(HandshakeError::Altered),
                    _ => Refused::Caller(HandshakeError::Altered),
                };
                assert_eq!(refused.err(), Some(due), "{begin:?} {message} {point:?}");
            }
        }
        // Who knows the secret writes a good message with such a key.
        let (mut state, secret) = (world.wire(), &earlier.service.resumption);
        state.found = Some(secret.clone());
        let message = resumed_with(&world, secret, &point);
        assert_eq!(state.answer(&message).unwrap_err(), HandshakeError::Altered);
    }
}

/// A caller's message with a secret and any ephemeral key: `snow` writes none with one of low order.
fn resumed_with(world: &World, resumption: &Resumption, point: &[u8; KEY]) -> Vec<u8> {
    use snow::resolvers::CryptoResolver;
    use snow::types::Dh;

    struct Any([u8; KEY]);
    impl Dh for Any {
        fn name(&self) -> &'static str {
            "25519"
        }
        fn pub_len(&self) -> usize {
            KEY
        }
        fn priv_len(&self) -> usize {
            KEY
        }
        fn set(&mut self, point: &[u8]) {
            self.0.copy_from_slice(point);
        }
        fn generate(&mut self, _: &mut dyn snow::types::Random) -> Result<(), snow::Error> {
            Ok(())
        }
        fn pubkey(&self) -> &[u8] {
            &self.0
        }
        fn privkey(&self) -> &[u8] {
            &self.0
        }
        fn dh(&self, _: &[u8], _: &mut [u8]) -> Result<(), snow::Error> {
            Err(snow::Error::Dh)
        }
    }
    struct Hostile;
    impl CryptoResolver for Hostile {
        fn resolve_rng(&self) -> Option<Box<dyn snow::types::Random>> {
            AwsLc.resolve_rng()
        }
        fn resolve_dh(&self, _: &snow::params::DHChoice) -> Option<Box<dyn Dh>> {
            Some(Box::new(Any([0; KEY])))
        }
        fn resolve_hash(
            &self,
            of: &snow::params::HashChoice,
        ) -> Option<Box<dyn snow::types::Hash>> {
            AwsLc.resolve_hash(of)
        }
        fn resolve_cipher(
            &self,
            of: &snow::params::CipherChoice,
        ) -> Option<Box<dyn snow::types::Cipher>> {
            AwsLc.resolve_cipher(of)
        }
    }
    let parameters = Pattern::Resumed.name().parse().unwrap();
    let prologue = world.terms.prologue(false);
    let builder = Builder::with_resolver(parameters, Box::new(Hostile))
        .fixed_ephemeral_key_for_testing_only(point)
        .prologue(&prologue)
        .unwrap()
        .psk(0, &resumption.secret)
        .unwrap();
    let mut state = builder.build_initiator().unwrap();
    write(&mut state, Pattern::Resumed, &resumption.name, &[]).unwrap()
}

/// Asserts what comes of it when one end is another one, both at first contact and with a known key.
fn assert_ends(world: &World, service: &Credentials, caller: &Credentials, refused: &Refused) {
    for begin in [Begin::First, Begin::Known(service.static_key())] {
        let mut wire = world.wire();
        (wire.service.0, wire.caller.0) = (service, caller);
        assert_eq!(wire.run(begin).err().as_ref(), Some(refused));
    }
}

#[test]
fn a_peer_of_another_id_is_refused() {
    let world = World::new();
    let domain = TrustDomain::new("shop.example").unwrap();
    let identity = |expected: &Id, found: &Id| HandshakeError::Identity {
        expected: expected.to_string(),
        found: found.to_string(),
    };
    for id in [domain.service("billings").unwrap(), domain.user(1000), domain.user(1)] {
        let other = end(&world.authority, &id, &["billing.shop"], LEAF_LIFE);
        let refused = Refused::Caller(identity(&world.terms.service, &id));
        assert_ends(&world, &other, &world.caller, &refused);
    }
    for id in [domain.user(1001), domain.service("billing").unwrap()] {
        let other = end(&world.authority, &id, &[], LEAF_LIFE);
        let refused = Refused::Service(identity(&world.terms.caller, &id));
        assert_ends(&world, &world.service, &other, &refused);
    }
}

#[test]
fn a_name_that_is_not_in_the_certificate_is_refused() {
    let mut world = World::new();
    for names in [&["other.shop", "billing.shop.example", "Billing.shop", "*.shop"][..], &[]] {
        let other = end(&world.authority, &world.terms.service, names, LEAF_LIFE);
        let (id, name) = (world.terms.service.to_string(), world.terms.name.clone());
        let refused = Refused::Caller(HandshakeError::Name { id, name });
        assert_ends(&world, &other, &world.caller, &refused);
    }
    world.terms.name = String::new();
    let (id, name) = (world.terms.service.to_string(), String::new());
    let refused = Refused::Caller(HandshakeError::Name { id, name });
    assert_ends(&world, &world.service, &world.caller, &refused);
}

#[test]
fn a_peer_whose_certificate_is_over_is_refused() {
    let world = World::new();
    let late = Checks { now: now() + LEAF_LIFE + SECOND, ..world.checks() };
    let early = Checks { now: now() - 121 * SECOND, ..world.checks() };
    for begin in [Begin::First, Begin::Known(world.service.static_key())] {
        for (checks, is_late) in [(late, true), (early, false)] {
            for is_callers in [true, false] {
                let mut wire = world.wire();
                let id = if is_callers { &world.terms.service } else { &world.terms.caller };
                let id = id.to_string();
                let error = match is_late {
                    true => CertificateError::Expired { id, since: 1 },
                    false => CertificateError::Early { id, until: 1 },
                };
                let refused = if is_callers {
                    wire.caller.2 = checks;
                    Refused::Caller(error.into())
                } else {
                    wire.service.2 = checks;
                    Refused::Service(error.into())
                };
                assert_eq!(wire.run(begin.clone()).err(), Some(refused));
            }
        }
    }
}

#[test]
fn a_peer_of_another_authority_is_refused() {
    let world = World::new();
    let is_untrusted = |refused: Refused, is_callers: bool| match refused {
        Refused::Caller(error) if is_callers => error,
        Refused::Service(error) if !is_callers => error,
        other => panic!("{other:?}"),
    };
    let same_name = Authority::new(world.authority.domain(), now()).unwrap();
    let elsewhere = Authority::new(&TrustDomain::new("elsewhere").unwrap(), now()).unwrap();
    for by in [&same_name, &elsewhere] {
        let (caller, service) = (by.domain().user(1000), by.domain().service("billing").unwrap());
        let caller = end(by, &caller, &[], LEAF_LIFE);
        let service = end(by, &service, &["billing.shop"], LEAF_LIFE);
        for is_callers in [true, false] {
            let mut wire = world.wire();
            if is_callers {
                wire.service.0 = &service;
            } else {
                wire.caller.0 = &caller;
            }
            for begin in [Begin::First, Begin::Known(wire.service.0.static_key())] {
                let error = is_untrusted(wire.run(begin).err().unwrap(), is_callers);
                let is_due = match error {
                    HandshakeError::Certificate(CertificateError::Untrusted { .. }) => {
                        std::ptr::eq(by, &same_name)
                    }
                    HandshakeError::Certificate(CertificateError::Domain { .. }) => {
                        std::ptr::eq(by, &elsewhere)
                    }
                    _ => false,
                };
                assert!(is_due, "{error}");
            }
        }
    }
    // One that is trusted, and of another domain than is due.
    let mut world = world;
    elsewhere.trusted(&mut world.roots).unwrap();
    let id = elsewhere.domain().service("billing").unwrap();
    let service = end(&elsewhere, &id, &["billing.shop"], LEAF_LIFE);
    let (expected, found) = (world.terms.service.to_string(), id.to_string());
    let refused = Refused::Caller(HandshakeError::Identity { expected, found });
    assert_ends(&world, &service, &world.caller, &refused);
}

#[test]
fn a_key_that_is_not_the_pinned_one_is_refused() {
    let world = World::new();
    let (caller, service) = (world.caller.static_key(), world.service.static_key());
    for begin in [Begin::First, Begin::Known(service)] {
        let run = |by_caller: &[u8; KEY], by_service: &[u8; KEY]| {
            let mut wire = world.wire();
            wire.caller.2.pinned = Some(by_caller);
            wire.service.2.pinned = Some(by_service);
            wire.run(begin.clone()).err()
        };
        assert_eq!(run(&service, &caller), None);
        let pinned = |id: &Id| HandshakeError::Pinned(id.to_string());
        let refused = Some(Refused::Caller(pinned(&world.terms.service)));
        assert_eq!(run(&caller, &caller), refused);
        let refused = Some(Refused::Service(pinned(&world.terms.caller)));
        assert_eq!(run(&service, &service), refused);
    }
}
