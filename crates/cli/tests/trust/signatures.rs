//! `partywall sign` and `partywall verify`.

use partywall_coordinator::signatures::digest_of;

use super::{Place, program};

/// A place with a key, and a program that is signed with it as `web`.
fn signed() -> Place {
    let place = Place::new();
    place.good(&["sign", "--new-key", "builder.key"]);
    program(&place, "web");
    place.good(&["sign", "web", "--service", "web", "--key", "builder.key"]);
    place
}

/// SHA-256 of the program.
fn digits(place: &Place) -> String {
    let digest = digest_of(&place.path("web")).unwrap();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

const VERIFY: [&str; 6] = ["verify", "web", "--service", "web", "--trusted", "builder.pub"];

fn verify(more: &[&'static str]) -> Vec<&'static str> {
    [&VERIFY[..], more].concat()
}

#[test]
fn a_program_is_signed_and_verified() {
    let place = signed();
    assert_eq!([place.mode("builder.key"), place.mode("web.sig")], [0o600, 0o644]);
    let said = place.good(&VERIFY);
    assert!(
        said.starts_with("web: signed for service `web`, which may serve web, until 20"),
        "{said}"
    );
    assert_eq!(place.good(&["verify", "web", "--trusted", "builder.pub"]), said, "of any name");
    let sign = ["sign", "web", "--service", "web", "--key", "builder.key"];
    let more =
        ["--register", "web", "--register", "web-admin", "--expires", "90d", "-o", "other.sig"];
    let said = place.good(&[&sign[..], &more].concat());
    assert!(
        said.starts_with(
            "other.sig: web is signed for service `web`, which may serve web, web-admin"
        )
    );
    std::fs::remove_file(place.path("web.sig")).unwrap();
    place.bad(&VERIFY, &["web: unsigned: "]);
    place.good(&verify(&["--signature", "other.sig"]));
}

/// What others than this project check as well.
#[test]
fn a_signature_has_the_form_of_dsse_and_in_toto() {
    let place = signed();
    let envelope: serde_json::Value = serde_json::from_str(&place.read("web.sig")).unwrap();
    assert_eq!(envelope["payloadType"], "application/vnd.in-toto+json");
    place.write("payload.base64", envelope["payload"].as_str().unwrap());
    let payload = place.openssl(&["base64", "-d", "-A", "-in", "payload.base64"]).stdout;
    let statement: serde_json::Value = serde_json::from_slice(&payload).unwrap();
    assert_eq!(statement["_type"], "https://in-toto.io/Statement/v1");
    assert_eq!(statement["predicateType"], "tag:partywall,2026:service");
    let digest = digits(&place);
    assert_eq!(statement["subject"][0]["name"], "web");
    assert_eq!(statement["subject"][0]["digest"]["sha256"], digest);
    let said = &statement["predicate"];
    assert_eq!((&said["service"], &said["register"]), (&"web".into(), &serde_json::json!(["web"])));
    let life = said["expires"].as_u64().unwrap() - said["issued"].as_u64().unwrap();
    assert_eq!(life, 365 * 24 * 3600);
    // The signature is one that openssl believes.
    let kind = "application/vnd.in-toto+json";
    let mut encoded = format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len()).into_bytes();
    encoded.extend_from_slice(&payload);
    place.write("encoded", encoded);
    place.write("sig.base64", envelope["signatures"][0]["sig"].as_str().unwrap());
    let sig = place.openssl(&["base64", "-d", "-A", "-in", "sig.base64"]).stdout;
    place.write("sig", sig);
    let dgst = ["dgst", "-sha256", "-verify", "builder.pub", "-signature", "sig", "encoded"];
    assert_eq!(super::text(&place.openssl(&dgst).stdout), "Verified OK\n");
}

#[test]
fn each_reason_is_said_with_its_remedy() {
    let place = signed();
    place.good(&["sign", "--new-key", "other.key"]);
    let bad = |arguments: &[&str], reason: &str, remedy: &str| {
        let said = place.bad(arguments, &["; remedy: ", remedy]);
        assert!(said.starts_with(&format!("partywall: web: {reason}: ")), "{said}");
    };
    bad(
        &["verify", "web", "--service", "db", "--trusted", "builder.pub"],
        "wrong name",
        "give it the name that it is signed for, or `partywall sign PROGRAM --service db",
    );
    let untrusted = ["verify", "web", "--trusted", "other.pub"];
    bad(&untrusted, "untrusted key", "with a key that is trusted, or trust this one's");
    let digest = place.good(&["verify", "web", "--trusted", "builder.pub"]);
    let (_, key) = digest.trim_end().rsplit_once(' ').unwrap();
    place.write("revoked", format!("# the old key\n{key} # since today\n"));
    bad(&verify(&["--revoked", "revoked"]), "revoked", "with a key that is not revoked");
    let bytes = std::fs::read(place.path("web")).unwrap();
    place.write("revoked", format!("sha256:{}\n", digits(&place)));
    bad(&verify(&["--revoked", "revoked"]), "revoked", "for another build");
    place.write("revoked", "00\n");
    place.bad(&verify(&["--revoked", "revoked"]), &["revoked: line 1: `00` is no SHA-256; write"]);
    place.write("revoked", "");
    place.good(&verify(&["--revoked", "revoked"]));
    place.write("web", [&bytes[..], b"!"].concat());
    bad(&VERIFY, "altered", "restore what was signed, or `partywall sign");
    place.write("web", bytes);
    let envelope = place.read("web.sig");
    // Whoever changes what was said has no signature of it.
    let at = envelope.find("payload\":\"").unwrap() + 200;
    let other = if envelope.as_bytes()[at] == b'A' { "B" } else { "A" };
    place.write("web.sig", [&envelope[..at], other, &envelope[at + 1..]].concat());
    bad(&VERIFY, "altered", "restore");
    place.write("web.sig", "{}");
    bad(&VERIFY, "no signature", "which writes the file anew");
    std::fs::remove_file(place.path("web.sig")).unwrap();
    bad(&VERIFY, "unsigned", "`partywall sign PROGRAM --service web --key KEY`");
    place.good(&["sign", "web", "--service", "web", "--key", "builder.key", "--expires", "1s"]);
    std::thread::sleep(std::time::Duration::from_millis(2100));
    bad(&VERIFY, "expired", "`partywall sign PROGRAM --service web --key KEY` again");
}

#[test]
fn an_image_is_signed_by_its_id() {
    let place = Place::new();
    place.good(&["sign", "--new-key", "builder.key"]);
    let id = format!("sha256:{}", "5a".repeat(32));
    let sign = ["sign", "--image", &id, "--service", "web", "--key", "builder.key"];
    place.usage(&sign, &["--output"]);
    let said = place.good(&[&sign[..], &["-o", "web.image.sig"]].concat());
    assert!(
        said.starts_with(&format!("web.image.sig: {id} is signed for service `web`")),
        "{said}"
    );
    let verify = |id: &str| {
        ["verify", "--image", id, "--signature", "web.image.sig", "--trusted", "builder.pub"]
            .map(str::to_owned)
    };
    let verify = |id: &str| verify(id).to_vec();
    let good = verify(&id);
    place.good(&good.iter().map(String::as_str).collect::<Vec<_>>());
    let other = verify(&id.replace("5a5a", "5b5a"));
    place.bad(&other.iter().map(String::as_str).collect::<Vec<_>>(), &["altered: "]);
    // In a directory of them each has its name, and none is another one's.
    std::fs::create_dir(place.path("images")).unwrap();
    let said = place.good(&[&sign[..], &["-o", "images"]].concat());
    assert!(said.starts_with(&format!("images/{}.sig: ", "5a".repeat(32))), "{said}");
    let within = |id: &str| {
        verify(id)
            .into_iter()
            .map(|word| word.replace("web.image.sig", "images"))
            .collect::<Vec<_>>()
    };
    place.good(&within(&id).iter().map(String::as_str).collect::<Vec<_>>());
    let other = within(&id.replace("5a5a", "5b5a"));
    let sign = format!("partywall sign --image {}", other[2]);
    let words = ["unsigned: there is no signature file images/5b5a", &sign];
    place.bad(&other.iter().map(String::as_str).collect::<Vec<_>>(), &words);
    let tag = verify("shop/web:1");
    place.usage(&tag.iter().map(String::as_str).collect::<Vec<_>>(), &["sha256: and 64 hexa"]);
}

#[test]
fn keys_are_made_once_and_kept_from_others() {
    let place = Place::new();
    let said = place.good(&["sign", "--new-key", "builder.key"]);
    assert!(said.contains("builder.pub: its public half"), "{said}");
    assert_eq!(place.mode("builder.key"), 0o600);
    let key = place.read("builder.key");
    place.bad(&["sign", "--new-key", "builder.key"], &["there is such a file already", "remedy: "]);
    std::fs::remove_file(place.path("builder.key")).unwrap();
    place
        .bad(&["sign", "--new-key", "builder.key"], &["builder.pub: there is such a file already"]);
    assert!(!place.path("builder.key").exists());
    place.bad(&["sign", "--new-key", "a.pub"], &["the name of a public key; remedy: "]);
    place.bad(&["sign", "--new-key", "no/a.key"], &["no/a.pub: No such file", "remedy: "]);
    place.write("builder.key", &key);
    place.chmod("builder.key", 0o640);
    program(&place, "web");
    let sign = ["sign", "web", "--service", "web", "--key"];
    let with = |key: &'static str| [&sign[..], &[key]].concat();
    place.bad(&with("builder.key"), &["others than its owner can reach", "chmod 600"]);
    place.chmod("builder.key", 0o600);
    place.bad(&with("builder.pub"), &["builder.pub: "]);
    place.chmod("builder.pub", 0o600);
    place.bad(&with("builder.pub"), &["builder.pub: this is no private key", "--new-key"]);
    place.bad(
        &with("no.key"),
        &["no.key: No such file", "remedy: make one by `partywall sign --new"],
    );
    place.good(&with("builder.key"));
    place.chmod("builder.pub", 0o666);
    place.bad(&VERIFY, &["others can write", "could have its own programs trusted", "chmod go-w"]);
}

#[test]
fn wrong_arguments_of_signatures_are_refused() {
    let place = signed();
    place.usage(&["sign"], &["<EXECUTABLE>", "--service", "--key"]);
    place.usage(&["sign", "web", "--key", "builder.key"], &["--service"]);
    place.usage(&["sign", "web", "--service", "Web", "--key", "k"], &["is no service name"]);
    place.usage(&["sign", "web", "--service", "web"], &["--key"]);
    place.usage(&["sign", "--new-key", "k", "--service", "web"], &["cannot be used with"]);
    let sign = ["sign", "web", "--service", "web", "--key", "builder.key"];
    place.usage(&[&sign[..], &["--expires", "soon"]].concat(), &["a duration such as `90d`"]);
    place.usage(&[&sign[..], &["--expires", "11y"]].concat(), &["1 s to 10 years"]);
    place.usage(&[&sign[..], &["--register", "a b"]].concat(), &["is no service name"]);
    place.bad(&[&sign[..], &["-o", "no/a.sig"]].concat(), &["no/a.sig: No such file", "by -o"]);
    place.bad(&["sign", "no", "--service", "web", "--key", "builder.key"], &["no: No such file"]);
    place.bad(&["sign", ".", "--service", "web", "--key", "builder.key"], &["no regular file"]);
    place.usage(&["verify", "web"], &["--trusted"]);
    place.usage(&["verify", "--trusted", "builder.pub"], &["<EXECUTABLE>"]);
    place.bad(&["verify", "web", "--trusted", "no.pub"], &["no.pub: No such file", "remedy: name"]);
    place.bad(&["verify", "web", "--trusted", "web.sig"], &["web.sig: this is no public key"]);
    place.bad(&["verify", "no", "--trusted", "builder.pub"], &["no: No such file"]);
    assert!(place.good(&["sign", "--help"]).contains("in-toto"));
    let help = place.good(&["verify", "--help"]);
    for reason in ["unsigned", "altered", "untrusted key", "revoked", "wrong name", "expired"] {
        assert!(help.contains(reason), "{help:?} lacks {reason:?}");
    }
}
