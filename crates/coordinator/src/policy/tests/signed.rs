//! What a policy says of signatures, and what is none.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use partywall_trust::SigningKey;

use super::*;

#[test]
fn mistakes_about_signatures_name_key_and_remedy() {
    let keys = "[signatures]\nkeys = ['/k.pub']\n[principal.a]\n";
    let hex = "ab".repeat(32);
    for (text, part) in [
        (
            "[principal.a]\nsigned = true".to_owned(),
            "p:1: principal.a: `signed`, and no key is trusted; add `keys = ",
        ),
        ("[signatures]\nkeys = ['k.pub']".into(), "p:2: signatures.keys: write an absolute path"),
        ("[signatures]\nrevoked = 'r'".into(), "p:2: signatures.revoked: write an absolute path"),
        (
            format!("[signatures]\nkeys = [{}]", "'/k.pub',".repeat(KEYS + 1)),
            "signatures.keys: 64 keys are the most",
        ),
        (
            "[signatures]\nkey = []".into(),
            "p:2: unknown key `key`; there are keys, revoked, images here (did you mean `keys`?)",
        ),
        (
            format!("{keys}signed = true\nprogram = 'sha256:{hex}'\nevidence = 'observed'"),
            "p:3: principal.a: `signed` is for what the coordinator has started",
        ),
        (format!("{keys}signed = false"), "p:3: principal.a: no fact"),
        (format!("{keys}signed = 1"), "p:4: `signed`: true, false or \"image\""),
        (format!("{keys}signed = 'program'"), "p:4: `signed`: true, false or \"image\""),
        (
            format!("[engine.docker]\napi = '/d'\n{keys}signed = 'image'"),
            "p:5: principal.a: `signed = \"image\"`, and nobody knows where signatures of images are; add",
        ),
        (
            "[signatures]\nimages = 'i'".into(),
            "p:2: signatures.images: write an absolute path, as `/etc/partywall/images`",
        ),
        (
            format!(
                "{}signed = 'image'",
                keys.replace("]\n[principal", "]\nimages = '/i'\n[principal")
            ),
            "p:4: principal.a: `signed = \"image\"` is what an engine says, and none can be asked",
        ),
    ] {
        let error = Policy::parse("p", &text).unwrap_err().to_string();
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
    assert!(Policy::parse("p", &format!("{keys}signed = true")).is_ok());
}

#[test]
fn keys_are_read_with_the_policy_and_checked_like_it() {
    let dir = tempfile::tempdir().unwrap();
    let (file, key) = (dir.path().join("policy.toml"), dir.path().join("builder.pub"));
    let text = format!("[signatures]\nkeys = ['{}']\n", key.display());
    fs::write(&file, format!("{text}[principal.a]\nsigned = true\n")).unwrap();
    let load = || Policy::load(&file).map(drop).map_err(|e| e.to_string());
    let missing = load().unwrap_err();
    assert!(missing.starts_with("[signatures]: ") && missing.contains("builder.pub: No such"));
    fs::write(&key, SigningKey::generate().public().to_pem()).unwrap();
    load().unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o666)).unwrap();
    let refused = load().unwrap_err();
    assert!(
        refused.contains("could have its own programs trusted; remedy: chmod go-w"),
        "{refused}"
    );
}

/// Without its keys a policy believes nobody.
#[test]
fn a_policy_that_is_not_loaded_trusts_no_signature() {
    let text = "[signatures]\nkeys = ['/k.pub']\n[principal.a]\nsigned = true\nuid = 1000\n\
                [principal.b]\nuid = 1000\n";
    let policy = Policy::parse("p", text).unwrap();
    assert_eq!(policy.principals(&facts()), ["b"]);
    let why = policy.unsigned(&facts());
    assert!(why.len() == 1 && why[0].contains("has not started it"), "{why:?}");
    let b = ["b".to_owned()];
    assert!(policy.listed(&facts(), &b).is_empty());
}
