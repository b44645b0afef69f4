//! Which keys of a chain count for a pin.

use super::*;

/// A root, an authority below it, and whom that certifies.
fn three() -> (Roots, Chain, [Pin; 3]) {
    let (root, issuer) = foreign(ca("root"));
    let key = SigningKey::generate();
    let middle = ca("middle").signed_by(&key, &issuer).unwrap().der().to_vec();
    let below = Issuer::new(ca("middle"), key);
    let leaf = signed(&leaf(), &below);
    let mut roots = Roots::default();
    roots.add(&domain("shop.example"), &root).unwrap();
    let pins = [&leaf, &middle, &root].map(|der| Pin::of_certificate(der).unwrap());
    (roots, Chain::new(vec![leaf, middle]).unwrap(), pins)
}

#[test]
fn a_certificate_is_pinned_by_each_key_up_to_its_root() {
    let (roots, chain, pins) = three();
    let certified = roots.verify(&chain, now()).unwrap();
    assert_eq!(certified.keys, pins);
    let other = Pin::of_key(b"another one");
    for pin in pins {
        assert_eq!(certified.is_pinned(&[pin]), Ok(()));
        assert_eq!(certified.is_pinned(&[other, pin]), Ok(()));
    }
    assert_eq!(certified.is_pinned(&[]), Ok(()));
    let refused = certified.is_pinned(&[other]).unwrap_err();
    let found = pins.map(|pin| pin.to_string()).join(", ");
    let id = billing().to_string();
    assert_eq!(refused, CertificateError::NotPinned { id: id.clone(), found: found.clone() });
    let said = refused.to_string();
    assert!(said.contains(&id) && said.ends_with(&found), "{said}");
    // What a certificate says of itself is its own key alone.
    assert_eq!(Certified::read(&chain.certificates()[0]).unwrap().keys, pins[..1]);
}

/// A certificate of an authority is known to everybody: to send it is to prove nothing.
#[test]
fn a_certificate_that_has_signed_nothing_pins_nothing() {
    let (mut roots, chain, pins) = three();
    let (root, other) = foreign(ca("other"));
    roots.add(&domain("shop.example"), &root).unwrap();
    let forged = signed(&leaf(), &other);
    // The pinned authority, and an old root, beside the path by which it is verified.
    let beside = [&[forged][..], &chain.certificates()[1..]].concat();
    let certified = roots.verify(&Chain::new(beside).unwrap(), now()).unwrap();
    assert_eq!(certified.keys[1..], [Pin::of_certificate(&root).unwrap()]);
    for pin in pins {
        assert!(certified.is_pinned(&[pin]).is_err());
    }
}

/// A renewed certificate of an authority has the same key, and so the same pin.
#[test]
fn a_pin_is_of_a_key_and_not_of_a_certificate() {
    let key = SigningKey::generate();
    let [one, two] = ["one", "two"].map(|name| ca(name).self_signed(&key).unwrap().der().to_vec());
    assert_ne!(one, two);
    let [one, two] = [one, two].map(|der| Pin::of_certificate(&der).unwrap());
    assert_eq!((one, two), (Pin::of_key(&key.public().to_der()), one));
}
