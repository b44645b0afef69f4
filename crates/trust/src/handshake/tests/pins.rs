//! Pins, at each end and in each pattern.

use super::*;
use crate::Pin;

fn root_of(authority: &Authority) -> [Pin; 1] {
    [Pin::of_certificate(authority.root()).unwrap()]
}

#[test]
fn an_end_that_is_by_no_pinned_key_is_refused() {
    let world = World::new();
    let (pinned, other) = (root_of(&world.authority), [Pin::of_key(b"another one")]);
    let before = world.first();
    let begins = [Begin::First, Begin::Known(world.service.static_key()), before.resumed()];
    for (at, begin) in begins.into_iter().enumerate() {
        let mut wire = world.wire();
        wire.found = Some(before.service.resumption.clone());
        for is_callers in [true, false] {
            let end = if is_callers { &mut wire.caller } else { &mut wire.service };
            end.2.pins = &pinned;
            assert!(wire.run(begin.clone()).is_ok(), "{at}");
            let end = if is_callers { &mut wire.caller } else { &mut wire.service };
            end.2.pins = &other;
            let refused = wire.run(begin.clone()).err().unwrap();
            let error = match &refused {
                // The service's end looks for another proof first.
                Refused::Retry if !is_callers && at == 2 => continue,
                Refused::Caller(error) if is_callers => error,
                Refused::Service(error) if !is_callers => error,
                _ => panic!("{at} {refused:?}"),
            };
            let HandshakeError::Certificate(CertificateError::NotPinned { id, found }) = error
            else {
                panic!("{error}")
            };
            let due = if is_callers { &world.terms.service } else { &world.terms.caller };
            assert_eq!(*id, due.to_string());
            assert!(found.contains(&pinned[0].to_string()), "{found}");
            let end = if is_callers { &mut wire.caller } else { &mut wire.service };
            end.2.pins = &[];
        }
    }
}

/// The authority that certifies is in the middle: it has told both ends to trust it.
#[test]
fn who_has_another_authority_stands_between_two_ends_without_pins() {
    let world = World::new();
    let domain = world.authority.domain();
    let evil = Authority::new(domain, now()).unwrap();
    let mut roots = Roots::default();
    evil.trusted(&mut roots).unwrap();
    let terms = &world.terms;
    let callers = end(&evil, &terms.caller, &[], LEAF_LIFE);
    let middle = end(&evil, &terms.service, &["billing.shop"], LEAF_LIFE);
    let checks = Checks { roots: &roots, now: now(), pinned: None, pins: &[] };
    let mut wire = Wire {
        caller: (&callers, terms, checks),
        service: (&middle, terms, checks),
        retried: [false; 2],
        found: None,
    };
    let mut ends = wire.run(Begin::First).unwrap();
    assert_joined(&mut ends.caller, &mut ends.service);
    let pinned = root_of(&world.authority);
    wire.caller.2.pins = &pinned;
    let refused = wire.run(Begin::First).err().unwrap();
    let is_pin = |refused: &Refused| {
        matches!(
            refused,
            Refused::Caller(HandshakeError::Certificate(CertificateError::NotPinned { .. }))
        )
    };
    assert!(is_pin(&refused), "{refused:?}");
    // What was agreed on before there was a pin is of no use either.
    wire.found = Some(ends.service.resumption.clone());
    let refused = wire.run(ends.resumed()).err().unwrap();
    assert!(is_pin(&refused), "{refused:?}");
}
