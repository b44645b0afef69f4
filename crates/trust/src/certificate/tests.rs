mod pins;

use super::*;
use std::process::Command;

use partywall_testkit::Random;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyUsagePurpose, SanType,
};

use crate::authority::{Authority, AuthorityError, LEAF_LIFE, ROOT_LIFE};
use crate::key::SigningKey;

/// Makes a certificate another one.
type Change = fn(&mut CertificateParams);

const HOUR: Duration = Duration::from_secs(3600);

/// Some time in 2030, not at the beginning of a second.
fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(1_900_000_000_250)
}

fn domain(name: &str) -> TrustDomain {
    TrustDomain::new(name).unwrap()
}

fn billing() -> Id {
    domain("shop.example").service("billing").unwrap()
}

fn authority() -> Authority {
    Authority::new(&domain("shop.example"), now()).unwrap()
}

fn roots(of: &[&Authority]) -> Roots {
    let mut roots = Roots::default();
    of.iter().for_each(|authority| authority.trusted(&mut roots).unwrap());
    roots
}

fn issue(by: &Authority, key: &SigningKey) -> Chain {
    by.issue(&billing(), &["billing.shop".into()], &key.public(), (now(), LEAF_LIFE)).unwrap()
}

fn untrusted(refused: &CertificateError) -> bool {
    matches!(refused, CertificateError::Untrusted { id, .. } if *id == billing().to_string())
}

/// What a leaf has, to be changed.
fn leaf() -> CertificateParams {
    let mut leaf = CertificateParams::default();
    leaf.not_before = (now() - HOUR).into();
    leaf.not_after = (now() + HOUR).into();
    leaf.is_ca = IsCa::ExplicitNoCa;
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.subject_alt_names = vec![uri(billing().as_str())];
    leaf
}

/// What an authority has, to be changed.
fn ca(name: &str) -> CertificateParams {
    let mut ca = CertificateParams::default();
    ca.distinguished_name.push(DnType::CommonName, name);
    ca.not_before = (now() - HOUR).into();
    ca.not_after = (now() + 24 * HOUR).into();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    ca
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

/// A root of another make, and what signs with it.
fn foreign(root: CertificateParams) -> (Vec<u8>, Issuer<'static, SigningKey>) {
    let key = SigningKey::generate();
    let der = root.self_signed(&key).unwrap().der().to_vec();
    (der, Issuer::new(root, key))
}

fn signed(params: &CertificateParams, by: &Issuer<'_, SigningKey>) -> Vec<u8> {
    params.signed_by(&SigningKey::generate(), by).unwrap().der().to_vec()
}

fn pem_of(certificates: &[&[u8]]) -> String {
    certificates.iter().map(|der| written("CERTIFICATE", der)).collect()
}

#[test]
fn a_certificate_is_for_whom_it_was_issued() {
    let (authority, key) = (authority(), SigningKey::generate());
    let chain = issue(&authority, &key);
    assert_eq!(chain.certificates().len(), 1);
    let certified = roots(&[&authority]).verify(&chain, now()).unwrap();
    assert_eq!((&certified.id, &certified.key), (&billing(), &key.public()));
    assert_eq!(certified.dns, ["billing.shop"]);
    let own = Certified::read(&chain.certificates()[0]).unwrap();
    assert_eq!(Certified { keys: certified.keys.clone(), ..own }, certified);
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (before, after) = (seconds(certified.not_before), seconds(certified.not_after));
    assert_eq!((before, after), (1_900_000_000 - 60, 1_900_000_000 + 3600));
    assert_eq!(from_pem(&chain.to_pem()).unwrap(), chain.certificates());
    // It says nothing that is another's, and a second one is not the first.
    let again = issue(&authority, &key);
    assert_ne!(again, chain);
    let debug = format!("{authority:?}");
    assert!(debug.contains("shop.example") && !debug.contains("key"), "{debug}");
}

#[test]
fn names_of_any_length_can_be_issued() {
    let (authority, key) = (authority(), SigningKey::generate());
    for len in [1, 63, 64, 65, 1000] {
        let id = authority.domain().service(&"s".repeat(len)).unwrap();
        let dns = ["a.b".to_owned(), "*.c".into(), "d".repeat(len)];
        let chain = authority.issue(&id, &dns, &key.public(), (now(), HOUR)).unwrap();
        let certified = roots(&[&authority]).verify(&chain, now()).unwrap();
        assert_eq!((certified.id, &certified.dns[..]), (id, &dns[..]));
    }
    let user = authority.domain().user(1000);
    let chain = authority.issue(&user, &[], &key.public(), (now(), HOUR)).unwrap();
    assert_eq!(roots(&[&authority]).verify(&chain, now()).unwrap().id.user(), Some(1000));
    let other = domain("other").user(1);
    let refused = authority.issue(&other, &[], &key.public(), (now(), HOUR)).unwrap_err();
    assert!(matches!(refused, AuthorityError::Domain { .. }), "{refused}");
    let refused = authority.issue(&user, &["\u{e9}".into()], &key.public(), (now(), HOUR));
    assert!(matches!(refused, Err(AuthorityError::Unwritten(_))), "{refused:?}");
}

#[test]
fn a_certificate_holds_from_its_begin_to_its_end() {
    let (authority, key) = (authority(), SigningKey::generate());
    let (roots, chain) = (roots(&[&authority]), issue(&authority, &key));
    let certified = Certified::read(&chain.certificates()[0]).unwrap();
    let (begin, end) = (certified.not_before, certified.not_after);
    let (id, second) = (billing().to_string(), Duration::from_secs(1));
    for time in [begin - SKEW, begin - second, begin, now(), end - second, end] {
        let verified = roots.verify(&chain, time).unwrap();
        assert_eq!(Certified { keys: certified.keys.clone(), ..verified }, certified);
    }
    let expired = |since| CertificateError::Expired { id: id.clone(), since };
    assert_eq!(roots.verify(&chain, end + second).unwrap_err(), expired(1));
    let early = |until| CertificateError::Early { id: id.clone(), until };
    assert_eq!(roots.verify(&chain, begin - SKEW - second).unwrap_err(), early(1));
    let refused = roots.verify(&chain, UNIX_EPOCH).unwrap_err();
    assert_eq!(refused, early(1_900_000_000 - 120));
    // None of it is for who has no root, whatever the time is.
    let others = super::tests::roots(&[&self::authority()]);
    for time in [begin, now(), end] {
        let refused = others.verify(&chain, time).unwrap_err();
        assert!(untrusted(&refused), "{refused}");
    }
}

#[test]
fn a_certificate_of_another_authority_is_untrusted() {
    let key = SigningKey::generate();
    let (own, same_name) = (authority(), authority());
    let other = Authority::new(&domain("other"), now()).unwrap();
    let chain = issue(&own, &key);
    let refused = roots(&[&same_name, &other]).verify(&chain, now()).unwrap_err();
    assert!(untrusted(&refused), "{refused}");
    let refused = roots(&[]).verify(&chain, now()).unwrap_err();
    assert!(untrusted(&refused), "{refused}");
    assert!(roots(&[]).is_empty() && !roots(&[&own]).is_empty());
    let refused = roots(&[&other]).verify(&chain, now()).unwrap_err();
    assert_eq!(refused, CertificateError::Domain { id: billing().to_string() });
    // The other domain's root has signed it, and that is trusted, but not for this domain.
    let (root, issuer) = foreign(ca("the other one"));
    let chain = Chain::new(vec![signed(&leaf(), &issuer)]).unwrap();
    let mut both = roots(&[&own]);
    both.add(&domain("other"), &root).unwrap();
    let refused = both.verify(&chain, now()).unwrap_err();
    assert!(untrusted(&refused), "{refused}");
    both.add(&domain("shop.example"), &root).unwrap();
    assert!(both.verify(&chain, now()).is_err(), "a root is of the domain it was added for");
    let mut right = Roots::default();
    right.add(&domain("shop.example"), &root).unwrap();
    assert_eq!(right.verify(&chain, now()).unwrap().id, billing());
}

#[test]
fn what_is_no_svid_is_no_identity() {
    let (root, issuer) = foreign(ca("root"));
    let mut roots = Roots::default();
    roots.add(&domain("shop.example"), &root).unwrap();
    let verified = |change: Change| {
        let mut params = leaf();
        change(&mut params);
        let chain = Chain::new(vec![signed(&params, &issuer)]).unwrap();
        let read = Certified::read(&chain.certificates()[0]).map(|_| ());
        let verified = roots.verify(&chain, now()).map(|_| ());
        assert!(read.is_ok() || read == verified, "{read:?} {verified:?}");
        verified
    };
    assert_eq!(verified(|_| {}), Ok(()));
    let refused: [(Change, &str); 11] = [
        (|p| p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained), "an authority's"),
        (|p| p.key_usages = vec![], "does not say what its key is for"),
        (|p| p.key_usages = vec![KeyUsagePurpose::KeyAgreement], "not for signatures"),
        (|p| p.key_usages.push(KeyUsagePurpose::KeyCertSign), "not for signatures"),
        (|p| p.key_usages.push(KeyUsagePurpose::CrlSign), "not for signatures"),
        (|p| p.subject_alt_names.clear(), "none or several URIs"),
        (|p| p.subject_alt_names[0] = SanType::DnsName("a".try_into().unwrap()), "none or several"),
        (|p| p.subject_alt_names.push(uri("spiffe://shop.example/x")), "none or several URIs"),
        (|p| p.subject_alt_names.push(uri("https://shop.example")), "none or several URIs"),
        (|p| p.subject_alt_names[0] = uri("https://shop.example/a"), "is no SPIFFE ID"),
        (|p| p.subject_alt_names[0] = uri("spiffe://shop.example"), "it has no path"),
    ];
    for (change, why) in refused {
        let refused = verified(change).unwrap_err();
        let is_none = matches!(refused, CertificateError::NoIdentity(_));
        assert!(is_none && refused.to_string().contains(why), "{why}: {refused}");
    }
    let only_server =
        verified(|p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]);
    assert!(untrusted(&only_server.unwrap_err()));
    let other = verified(|p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning]);
    assert!(untrusted(&other.unwrap_err()));
    // A key of another kind.
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let der = leaf().signed_by(&key, &issuer).unwrap().der().to_vec();
    let refused = Certified::read(&der).unwrap_err();
    assert!(matches!(refused, CertificateError::NoIdentity(_)), "{refused}");
}

#[test]
fn a_leaf_signs_no_certificates() {
    let (authority, key) = (authority(), SigningKey::generate());
    let chain = issue(&authority, &key);
    let issuer = Issuer::from_ca_cert_der(&chain.certificates()[0][..].into(), key).unwrap();
    let forged = signed(&leaf(), &issuer);
    let forged = Chain::new([&[forged][..], chain.certificates()].concat()).unwrap();
    let roots = roots(&[&authority]);
    let refused = roots.verify(&forged, now()).unwrap_err();
    assert!(untrusted(&refused), "{refused}");
    // Nor does it as a root.
    let refused = Roots::default().add(&domain("a"), &chain.certificates()[0]).unwrap_err();
    assert!(matches!(&refused, CertificateError::Malformed(why) if why.contains("none of an")));
    let pem = chain.to_pem();
    let key = SigningKey::generate();
    let chain = authority.issue(&billing(), &[], &key.public(), (now(), HOUR)).unwrap();
    let of =
        |pem: &str| Authority::from_pem(authority.domain(), pem, &key.to_pem(), now()).unwrap_err();
    assert!(matches!(of(&chain.to_pem()), AuthorityError::NoAuthority { .. }));
    assert!(matches!(of(&pem), AuthorityError::OtherKey(_)));
}

/// No bit of it can be changed: it is none, or nobody trusts it.
#[test]
fn every_bit_of_a_certificate_is_checked() {
    let (authority, key) = (authority(), SigningKey::generate());
    let (roots, chain) = (roots(&[&authority]), issue(&authority, &key));
    let mut kinds = [0; 3];
    for bit in 0..8 * chain.0[0].len() {
        let mut changed = chain.clone();
        changed.0[0][bit / 8] ^= 1 << (bit % 8);
        let kind = match roots.verify(&changed, now()) {
            Ok(certified) => panic!("bit {bit}: {certified:?}"),
            Err(CertificateError::Malformed(_)) => 0,
            Err(CertificateError::Untrusted { .. }) => 1,
            Err(_) => 2,
        };
        kinds[kind] += 1;
    }
    assert!(kinds.iter().all(|count| *count > 10), "{kinds:?}");
    for cut in 0..chain.0[0].len() {
        let cut_off = Chain(vec![chain.0[0][..cut].to_vec()]);
        let refused = roots.verify(&cut_off, now()).unwrap_err();
        assert!(matches!(refused, CertificateError::Malformed(_)), "{cut}: {refused}");
    }
    let more = Chain(vec![[&chain.0[0][..], &[0]].concat()]);
    let refused = roots.verify(&more, now()).unwrap_err();
    assert!(matches!(refused, CertificateError::Malformed(_)), "{refused}");
}

#[test]
fn no_random_bytes_are_a_certificate() {
    let (authority, mut random) = (authority(), Random::of_this_run());
    let roots = roots(&[&authority]);
    for _ in 0..2000 {
        let chain = Chain::new(vec![random.bytes(200); 1 + random.below(CHAIN)]).unwrap();
        let refused = roots.verify(&chain, now()).unwrap_err();
        assert!(matches!(refused, CertificateError::Malformed(_)), "{refused}");
    }
}

#[test]
fn chains_have_their_limits() {
    let is_chain = |lens: &[usize]| {
        let chain = Chain::new(lens.iter().map(|len| vec![0; *len]).collect());
        assert!(matches!(chain, Ok(_) | Err(CertificateError::Chain(_))));
        chain.is_ok()
    };
    assert!(is_chain(&[1]) && is_chain(&[1; CHAIN]) && is_chain(&[CERTIFICATE_BYTES]));
    assert!(is_chain(&[CERTIFICATE_BYTES, CHAIN_BYTES - CERTIFICATE_BYTES]));
    assert!(!is_chain(&[]) && !is_chain(&[1; CHAIN + 1]) && !is_chain(&[CERTIFICATE_BYTES + 1]));
    assert!(!is_chain(&[CERTIFICATE_BYTES, CHAIN_BYTES - CERTIFICATE_BYTES + 1]));
    let refused = Chain::new(vec![]).unwrap_err().to_string();
    assert!(refused.ends_with("this has 0 of up to 0 bytes, and 0 bytes in all"), "{refused}");
}

#[test]
fn roots_have_their_limits() {
    let mut roots = Roots::default();
    let all: Vec<_> = (0..=ROOTS).map(|_| foreign(ca("root")).0).collect();
    for root in &all[..ROOTS] {
        roots.add(&domain("a"), root).unwrap();
        roots.add(&domain("a"), root).unwrap();
    }
    assert_eq!(roots.certificates().count(), ROOTS);
    let refused = roots.add(&domain("a"), &all[ROOTS]).unwrap_err();
    assert!(matches!(refused, CertificateError::Chain(_)), "{refused}");
    assert!(roots.certificates().all(|(of, der)| of.as_str() == "a" && all.contains(&der.into())));
    let refused = Roots::default().add(&domain("a"), &vec![0; CERTIFICATE_BYTES + 1]);
    assert!(matches!(refused, Err(CertificateError::Chain(_))), "{refused:?}");
    let refused = Roots::default().add(&domain("a"), &all[0][..100]).unwrap_err();
    assert!(matches!(refused, CertificateError::Malformed(_)), "{refused}");
}

#[test]
fn two_roots_of_a_domain_are_trusted_at_once() {
    let (old, new) = (authority(), Authority::new(&domain("shop.example"), now() + HOUR).unwrap());
    let (key, both) = (SigningKey::generate(), roots(&[&old, &new]));
    for by in [&old, &new] {
        let chain = issue(by, &key);
        assert_eq!(both.verify(&chain, now()).unwrap().id, billing());
        let other = if std::ptr::eq(by, &old) { &new } else { &old };
        let refused = roots(&[other]).verify(&chain, now()).unwrap_err();
        assert!(untrusted(&refused), "{refused}");
    }
}

#[test]
fn a_root_that_is_over_certifies_nothing() {
    let (root, issuer) = foreign(ca("root"));
    let mut roots = Roots::default();
    roots.add(&domain("shop.example"), &root).unwrap();
    // Whoever has its key writes certificates that hold for longer.
    let mut params = leaf();
    params.not_after = (now() + 1000 * HOUR).into();
    let chain = Chain::new(vec![signed(&params, &issuer)]).unwrap();
    assert_eq!(roots.verify(&chain, now() + 23 * HOUR).unwrap().id, billing());
    let refused = roots.verify(&chain, now() + 25 * HOUR).unwrap_err();
    assert!(untrusted(&refused), "{refused}");
}

#[test]
fn what_an_authority_signs_is_over_with_it() {
    let (authority, key) = (authority(), SigningKey::generate());
    let end = authority.not_after();
    assert_eq!(end, now() + ROOT_LIFE);
    let late = (end - Duration::from_secs(100), LEAF_LIFE);
    let chain = authority.issue(&billing(), &[], &key.public(), late).unwrap();
    let certified = Certified::read(&chain.certificates()[0]).unwrap();
    assert!(certified.not_after <= end && certified.not_after + Duration::from_secs(1) > end);
    let verified = roots(&[&authority]).verify(&chain, late.0).unwrap();
    assert_eq!(Certified { keys: certified.keys.clone(), ..verified }, certified);
    let after = (end + Duration::from_secs(7), LEAF_LIFE);
    let refused = authority.issue(&billing(), &[], &key.public(), after).unwrap_err();
    assert_eq!(refused, AuthorityError::Expired(7));
    let (certificates, pem) = authority.to_pem();
    let read = |now| Authority::from_pem(authority.domain(), &certificates, &pem, now);
    assert!(matches!(read(after.0), Err(AuthorityError::Expired(7))));
    // One that is read has the end that its certificate has, in whole seconds.
    let read = read(now()).unwrap();
    assert!(read.not_after() <= end && read.not_after() + Duration::from_secs(1) > end);
}

#[test]
fn an_authority_survives_being_written_down() {
    let (authority, key) = (authority(), SigningKey::generate());
    let (certificates, pem) = authority.to_pem();
    let again = Authority::from_pem(authority.domain(), &certificates, &pem, now()).unwrap();
    assert_eq!((again.root(), again.domain()), (authority.root(), authority.domain()));
    assert_eq!(again.to_pem().0, certificates);
    for by in [&authority, &again] {
        let chain = issue(by, &key);
        assert_eq!(chain.certificates().len(), 1);
        assert_eq!(roots(&[&authority]).verify(&chain, now()).unwrap().id, billing());
    }
    let refused = |certificates: &str, key: &str| {
        Authority::from_pem(authority.domain(), certificates, key, now()).unwrap_err()
    };
    let other = SigningKey::generate();
    let is_other = |e: &AuthorityError| matches!(e, AuthorityError::OtherKey(of) if of.contains("shop.example authority"));
    let e = refused(&certificates, &other.to_pem());
    assert!(is_other(&e), "{e}");
    assert!(matches!(refused(&certificates, ""), AuthorityError::Key(_)));
    let none = refused("", &pem);
    assert!(matches!(none, AuthorityError::Certificate(CertificateError::Chain(_))), "{none}");
    let bad = refused(&written("CERTIFICATE", b"abc"), &pem);
    assert!(matches!(bad, AuthorityError::Certificate(CertificateError::Malformed(_))), "{bad}");
    let many = refused(&certificates.repeat(CHAIN + 1), &pem);
    assert!(matches!(many, AuthorityError::Certificate(CertificateError::Chain(_))), "{many}");
}

#[test]
fn an_intermediate_brings_its_chain_with_it() {
    let (root, issuer) = foreign(ca("root"));
    let (key, own) = (SigningKey::generate(), SigningKey::generate());
    let middle = ca("middle").signed_by(&key, &issuer).unwrap().der().to_vec();
    let domain = domain("shop.example");
    let read = |certificates: &[&[u8]]| {
        Authority::from_pem(&domain, &pem_of(certificates), &key.to_pem(), now())
    };
    let mut roots = Roots::default();
    roots.add(&domain, &root).unwrap();
    // Whether the root is there or not: who trusts it believes what was signed.
    for (certificates, last) in [(&[&middle[..], &root][..], &root), (&[&middle[..]], &middle)] {
        let authority = read(certificates).unwrap();
        assert_eq!(authority.root(), &last[..]);
        let chain = issue(&authority, &own);
        assert_eq!(chain.certificates().len(), 2);
        assert_eq!(chain.certificates()[1], middle);
        assert_eq!(roots.verify(&chain, now()).unwrap().id, billing());
        assert_eq!(
            super::tests::roots(&[&authority]).verify(&chain, now()).unwrap().key,
            own.public()
        );
        let alone = Chain::new(vec![chain.certificates()[0].clone()]).unwrap();
        assert!(untrusted(&roots.verify(&alone, now()).unwrap_err()));
    }
    // Certificates that do not belong together are refused when they are read.
    let (other, _) = foreign(ca("root"));
    let refused = read(&[&middle, &other]).unwrap_err();
    assert!(matches!(refused, AuthorityError::NoAuthority { .. }), "{refused}");
    let refused = read(&[&root, &middle]).unwrap_err();
    assert!(matches!(refused, AuthorityError::OtherKey(_)), "{refused}");
}

#[test]
fn what_may_not_sign_is_no_authority() {
    let (root, issuer) = foreign(ca("root"));
    let key = SigningKey::generate();
    let read = |change: Change| {
        let mut params = ca("middle");
        change(&mut params);
        let middle = params.signed_by(&key, &issuer).unwrap().der().to_vec();
        let pem = pem_of(&[&middle, &root]);
        Authority::from_pem(&domain("shop.example"), &pem, &key.to_pem(), now()).map(|_| ())
    };
    assert_eq!(read(|_| {}), Ok(()));
    let refused: [(Change, &str); 4] = [
        (|p| p.is_ca = IsCa::ExplicitNoCa, "basicConstraints"),
        (|p| p.key_usages = vec![], "keyUsage"),
        (|p| p.key_usages = vec![KeyUsagePurpose::CrlSign], "keyUsage"),
        (|p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning], "not believed"),
    ];
    for (change, why) in refused {
        let refused = read(change).unwrap_err().to_string();
        assert!(refused.contains(why) && refused.contains("CN=middle"), "{why}: {refused}");
    }
    let ended = read(|p| p.not_after = (now() - Duration::from_secs(9)).into());
    assert!(matches!(ended, Err(AuthorityError::Expired(9..=10))), "{ended:?}");
    // One below one that allows none below it.
    let mut middle = ca("middle");
    middle.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let above = SigningKey::generate();
    let der = middle.signed_by(&above, &issuer).unwrap().der().to_vec();
    let low = ca("low").signed_by(&key, &Issuer::new(middle, above)).unwrap().der().to_vec();
    let pem = pem_of(&[&low, &der, &root]);
    let read = Authority::from_pem(&domain("shop.example"), &pem, &key.to_pem(), now());
    assert!(matches!(read, Err(AuthorityError::NoAuthority { .. })), "{read:?}");
}

/// The chain is checked by a program that is not of this project.
#[test]
fn openssl_verifies_a_chain() {
    let folder = std::env::temp_dir().join(format!("partywall-chain-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, certificates: &[&[u8]]| {
        let path = folder.join(name);
        std::fs::write(&path, pem_of(certificates)).unwrap();
        path
    };
    let verify = |root: &[u8], chain: &Chain, at: SystemTime| {
        let certificates: Vec<_> = chain.certificates().iter().map(Vec::as_slice).collect();
        let (root, leaf) = (file("root", &[root]), file("leaf", &certificates[..1]));
        let middle = file("middle", &certificates[1..]);
        let seconds = at.duration_since(UNIX_EPOCH).unwrap().as_secs().to_string();
        let mut openssl = Command::new("openssl");
        openssl.args(["verify", "-x509_strict", "-purpose", "sslserver", "-attime", &seconds]);
        openssl.arg("-CAfile").arg(root);
        if certificates.len() > 1 {
            openssl.arg("-untrusted").arg(middle);
        }
        let output = openssl.arg(leaf).output().expect("the program `openssl` is installed");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    };
    let (authority, key) = (authority(), SigningKey::generate());
    let chain = issue(&authority, &key);
    let (is_good, said) = verify(authority.root(), &chain, now());
    assert!(is_good && said.ends_with(": OK\n"), "{said}");
    let (is_good, said) = verify(authority.root(), &chain, now() + 2 * HOUR);
    assert!(!is_good && said.contains("certificate has expired"), "{said}");
    let (is_good, said) = verify(self::authority().root(), &chain, now());
    assert!(!is_good && said.contains("verification failed"), "{said}");
    let long = authority.domain().service(&"s".repeat(300)).unwrap();
    let long = authority.issue(&long, &[], &key.public(), (now(), HOUR)).unwrap();
    let (is_good, said) = verify(authority.root(), &long, now());
    assert!(is_good, "{said}");
    let mut params = ca("root");
    params.use_authority_key_identifier_extension = true;
    let (root, issuer) = foreign(params);
    let own = SigningKey::generate();
    let mut params = ca("middle");
    params.use_authority_key_identifier_extension = true;
    let middle = params.signed_by(&own, &issuer).unwrap().der().to_vec();
    let pem = pem_of(&[&middle]);
    let below = Authority::from_pem(authority.domain(), &pem, &own.to_pem(), now()).unwrap();
    let (is_good, said) = verify(&root, &issue(&below, &key), now());
    assert!(is_good, "{said}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Who knows one of two roots alone believes what the next one has signed, as long as the old one says so.
#[test]
fn a_next_authority_is_believed_by_who_knows_the_old_root() {
    let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
    let domain = domain("a");
    let old = Authority::new(&domain, now).unwrap();
    let mut next = Authority::new(&domain, now).unwrap();
    let id = domain.service("web").unwrap();
    let key = SigningKey::generate().public();
    let roots = |authority: &Authority| {
        let mut roots = Roots::default();
        authority.trusted(&mut roots).unwrap();
        roots
    };
    let issue = |next: &Authority, at| next.issue(&id, &[], &key, (at, hour * 3)).unwrap();
    assert!(roots(&old).verify(&issue(&next, now), now).is_err());
    let text = old.cross(&next, (now, hour)).unwrap();
    assert!(old.cross(&old, (now, hour)).is_ok());
    let mut other = Authority::new(&domain, now).unwrap();
    other.crossed_by(&text).unwrap();
    assert_eq!(issue(&other, now).certificates().len(), 1, "it is for another key");
    assert!(other.crossed_by(&text.replace("MII", "MIX")).is_err());
    next.crossed_by(&text).unwrap();
    let chain = issue(&next, now);
    let by_old = roots(&old).verify(&chain, now).unwrap();
    let by_next = roots(&next).verify(&chain, now).unwrap();
    assert_eq!((&by_old.id, &by_next.id), (&id, &id));
    let pin = |authority: &Authority| Pin::of_certificate(authority.root()).unwrap();
    assert!(by_old.keys.contains(&pin(&old)) && by_old.keys.contains(&pin(&next)));
    assert!(by_next.keys.contains(&pin(&next)) && !by_next.keys.contains(&pin(&old)));
    assert!(roots(&other).verify(&chain, now).is_err(), "a root that has said nothing of it");
    // It signs certificates of processes, and of no further authority.
    let later = now + hour * 2;
    assert!(roots(&old).verify(&chain, later).is_err(), "it is over");
    assert_eq!(issue(&next, later).certificates().len(), 1, "and is not sent any more");
    assert!(roots(&next).verify(&chain, later).is_ok());
}
