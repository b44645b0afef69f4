//! `partywall ca`.

use partywall_coordinator::trust::{Clock, Trust};

use super::{Place, text};

#[test]
fn an_authority_is_made_once_and_the_coordinator_takes_it() {
    let place = Place::new();
    let said = place.good(&["ca", "init", "ca", "--domain", "shop.example"]);
    assert!(said.starts_with("ca: the authority of trust domain `shop.example`"), "{said}");
    assert!(said.contains("[authority]\n  domain = \"shop.example\"\n  directory = \"/"), "{said}");
    let (_, pin) = said.split_once("\npin: ").unwrap();
    let pin = pin.lines().next().unwrap();
    let own = partywall_trust::Described::all(&place.read("ca/authority.pem")).unwrap();
    assert_eq!(pin.parse(), Ok(own[0].pin));
    let shown = place.good(&["ca", "show", "ca"]);
    assert!(shown.contains(&format!("\n  pin            {pin}\n")), "{shown}");
    assert_eq!([place.mode("ca"), place.mode("ca/trusted")], [0o700; 2]);
    assert_eq!([place.mode("ca/authority.key"), place.mode("ca/authority.pem")], [0o600; 2]);
    let trust = Trust::load("shop.example", &place.path("ca"), Clock::now()).unwrap();
    assert_eq!(trust.roots().certificates().count(), 1);
    let key = place.read("ca/authority.key");
    place.bad(
        &["ca", "init", "ca"],
        &["ca: there is an authority already (authority.pem)", "remedy: `partywall ca rotate ca`"],
    );
    assert_eq!(place.read("ca/authority.key"), key);
    // What it has lost is not covered up either.
    std::fs::remove_file(place.path("ca/authority.pem")).unwrap();
    place.bad(&["ca", "init", "ca"], &["(authority.key)"]);
    place.bad(&["ca", "rotate", "ca"], &["authority.pem: No such file", "`partywall ca init`"]);
    let said = place.good(&["ca", "init", "other"]);
    assert!(said.contains("`partywall.local`"), "{said}");
}

#[test]
fn a_policy_with_an_authority_is_taken_by_its_coordinator() {
    let place = Place::new();
    let said = place.good(&["ca", "init", "ca", "--domain", "shop.example"]);
    let (_, lines) = said.split_once("start the coordinator\n").unwrap();
    place.write("policy.toml", lines);
    place.good(&["policy", "check", "policy.toml"]);
    place.chmod("ca/authority.key", 0o644);
    let policy = partywall_coordinator::Policy::load(&place.path("policy.toml")).unwrap();
    let refused = policy.authority().open(policy.clock()).unwrap_err().to_string();
    assert!(refused.contains("ca/authority.key: others than its owner can reach"), "{refused}");
}

#[test]
fn a_rotation_keeps_the_old_root_and_says_what_is_next() {
    let place = Place::new();
    place.good(&["ca", "init", "ca", "--domain", "shop.example"]);
    let old = place.read("ca/authority.pem");
    let said = place.good(&["ca", "rotate", "ca"]);
    for words in [
        "ca: a new root, which holds until ",
        "the old root stays trusted, as ca/trusted/old-",
        "next: `partywall policy reload`",
        "then: remove ca/trusted/old-",
    ] {
        assert!(said.contains(words), "{said:?} lacks {words:?}");
    }
    let (_, print) = said.split_once(".pem: SHA-256 ").unwrap();
    let file = format!("ca/trusted/old-{}.pem", &print[..16]);
    assert_eq!(place.read(&file), old);
    assert_ne!(place.read("ca/authority.pem"), old);
    let trust = Trust::load("shop.example", &place.path("ca"), Clock::now()).unwrap();
    assert_eq!(trust.roots().certificates().count(), 2);
    let shown = place.good(&["ca", "show", "ca"]);
    assert_eq!(shown.matches("  SHA-256        ").count(), 2, "{shown}");
    assert!(shown.starts_with("trust domain     shop.example\nauthority "), "{shown}");
    assert!(shown.contains(&print[..64]) && shown.contains(&file), "{shown}");
    assert!(shown.contains("O=Partywall, CN=shop.example authority"), "{shown}");
    let pem = place.good(&["ca", "show", "ca", "--pem"]);
    assert_eq!(pem, place.read("ca/authority.pem") + &old);
    // There is an end to it.
    for _ in 2..16 {
        place.good(&["ca", "rotate", "ca"]);
    }
    place.bad(&["ca", "rotate", "ca"], &["there are 16 roots", "remedy: remove those that sign"]);
    place.bad(
        &["ca", "rotate", "ca", "--domain", "other"],
        &["of trust domain `shop.example`, not of `other`; remedy: drop --domain"],
    );
}

/// An authority that openssl has made and certified.
#[test]
fn an_intermediate_of_another_authority_is_taken() {
    let place = Place::new();
    let openssl = |line: &str| {
        let out = place.openssl(&line.split(' ').collect::<Vec<_>>());
        assert!(out.status.success(), "{line}: {}", text(&out.stderr));
    };
    let ec = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(&format!(
        "req -x509 {ec} -keyout root.key -out root.pem -days 30 -subj /CN=root -addext \
         keyUsage=critical,keyCertSign"
    ));
    openssl(&format!("req -new {ec} -keyout own.key -out own.csr -subj /CN=own"));
    place.write(
        "own.ext",
        "basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=critical,keyCertSign\n\
         subjectAltName=URI:spiffe://shop.example\n",
    );
    openssl(
        "x509 -req -in own.csr -CA root.pem -CAkey root.key -CAcreateserial -out own.pem -days 20 -extfile \
         own.ext",
    );
    place.write("chain.pem", place.read("own.pem") + &place.read("root.pem"));
    let init = |directory: &'static str, key: &'static str, more: &[&'static str]| {
        [&["ca", "init", directory, "--from", "chain.pem", "--key", key], more].concat()
    };
    place.chmod("own.key", 0o644);
    place.bad(&init("ca", "own.key", &[]), &["own.key: others than its owner", "chmod 600"]);
    place.chmod("own.key", 0o600);
    place.bad(&init("ca", "root.key", &[]), &["chain.pem: the key is not that of", "remedy: name"]);
    place.bad(
        &init("ca", "own.key", &["--domain", "other"]),
        &["chain.pem: the certificate is one of trust domain `shop.example`, not of `other`"],
    );
    place.bad(&init("ca", "chain.pem", &[]), &["chain.pem: "]);
    openssl("ec -in own.key -out old.key");
    place.chmod("old.key", 0o600);
    place.bad(&init("ca", "old.key", &[]), &["old.key: this is no private key", "openssl pkcs8"]);
    assert!(!place.path("ca").exists(), "what is refused leaves nothing");
    place.good(&init("ca", "own.key", &[]));
    let trust = Trust::load("shop.example", &place.path("ca"), Clock::now()).unwrap();
    assert_eq!(trust.domain().as_str(), "shop.example");
    let shown = place.good(&["ca", "show", "ca"]);
    assert!(shown.contains("authority        CN=own") && shown.contains("CN=root"), "{shown}");
    let pem = place.good(&["ca", "show", "ca", "--pem"]);
    assert_eq!(pem.replace('\n', ""), place.read("root.pem").replace('\n', ""));
    place.write("roots.pem", pem);
    let verified = place.openssl(&["verify", "-CAfile", "roots.pem", "own.pem"]);
    assert!(verified.status.success(), "{}", text(&verified.stderr));
    let said = place.good(&["ca", "rotate", "ca"]);
    assert!(said.contains("the old root stays trusted"), "{said}");
    assert_eq!(
        Trust::load("shop.example", &place.path("ca"), Clock::now())
            .unwrap()
            .roots()
            .certificates()
            .count(),
        2
    );
}

#[test]
fn wrong_arguments_and_files_of_authorities_are_refused() {
    let place = Place::new();
    place.usage(&["ca"], &["init", "rotate", "show"]);
    place.usage(&["ca", "init"], &["<DIR>"]);
    place.usage(&["ca", "init", "ca", "--domain", "Shop"], &["the letters a-z"]);
    place.usage(&["ca", "init", "ca", "--from", "a.pem"], &["--key"]);
    place.usage(&["ca", "init", "ca", "--key", "a.pem"], &["--from"]);
    place.bad(
        &["ca", "init", "ca", "--from", "a.pem", "--key", "b.pem"],
        &["a.pem: No such file", "remedy: correct the path"],
    );
    place.bad(&["ca", "show", "ca"], &["authority.pem: No such file", "`partywall ca init`"]);
    place.bad(&["ca", "rotate", "ca"], &["ca: No such file", "remedy: `partywall ca init ca`"]);
    place.good(&["ca", "init", "ca"]);
    place.write("ca/authority.pem", "");
    place.bad(&["ca", "show", "ca"], &["no `-----BEGIN CERTIFICATE-----` in it; remedy: "]);
    place.bad(&["ca", "rotate", "ca"], &["no `-----BEGIN CERTIFICATE-----` in it; remedy: "]);
    place.chmod("ca/authority.pem", 0o666);
    place.bad(&["ca", "show", "ca"], &["others can write", "chmod go-w"]);
    let help = place.good(&["ca", "--help"]);
    assert!(help.contains("Examples:") && help.contains("[authority]"), "{help}");
    for order in ["init", "rotate", "show"] {
        assert!(place.good(&["ca", order, "--help"]).contains("<DIR>"));
    }
}
