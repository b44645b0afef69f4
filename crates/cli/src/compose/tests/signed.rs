//! The `x-partywall` of the whole file.

use super::*;

fn file(extension: &str) -> String {
    format!("services:\n  a:\n    x-partywall: {{program: a}}\n{extension}")
}

#[test]
fn signers_are_read_with_paths_from_the_file_on() {
    let signers = |extension: &str| good(&file(extension)).signers;
    assert_eq!(signers(""), None);
    assert_eq!(signers("x-partywall: {signed: false, keys: [k.pub]}\n"), None);
    assert_eq!(signers("x-partywall: {}\n"), None);
    let read = signers("x-partywall:\n  signed: true\n  keys: [k.pub, '${RUN_DIR}/l.pub']\n");
    let Signers { keys, revoked } = read.unwrap();
    assert!(keys[0].is_absolute() && keys[0].ends_with("k.pub"), "{keys:?}");
    assert_eq!((keys[1].as_path(), revoked), (Path::new("/run/x/l.pub"), None));
    let read = signers("x-partywall: {signed: true, keys: [k.pub], revoked: lists/revoked}\n");
    assert!(read.unwrap().revoked.unwrap().ends_with("lists/revoked"));
}

#[test]
fn mistakes_in_signers_name_place_and_remedy() {
    for (extension, part) in [
        ("x-partywall: {signed: true}", "x-partywall: `signed: true`, and no key is trusted; add"),
        ("x-partywall: {signed: true, keys: []}", "and no key is trusted"),
        ("x-partywall: {keys: [a]}", "x-partywall.keys: this is for signed programs; add `signed"),
        ("x-partywall: {revoked: a}", "x-partywall.revoked: this is for signed programs"),
        ("x-partywall: {signed: yes}", "x-partywall.signed: expected `true` or `false`"),
        ("x-partywall: {signed: true, keys: a}", "x-partywall.keys: expected a list of files"),
        ("x-partywall: {signed: true, keys: ['']}", "x-partywall.keys[0]: expected the path"),
        (
            "x-partywall: {package: a}",
            "x-partywall.package: this stands in a service; move it there",
        ),
        ("x-partywall: {singed: true}", "signed, keys, revoked (did you mean `signed`?)"),
        ("x-partywal: {signed: true}", "x-partywal: Compose has no such key"),
    ] {
        let text = error(&file(&format!("{extension}\n")));
        assert!(
            text.starts_with("compose.yaml:4: ") && text.contains(part),
            "{text:?} lacks {part:?}"
        );
    }
}

#[test]
fn containers_are_refused_signatures() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("compose.yaml");
    fs::write(&path, file("x-partywall: {signed: true, keys: [a]}\n")).unwrap();
    let Err(refused) = load_containers(&[path], &vars) else { panic!("it is taken") };
    assert!(refused.to_string().contains("`partywall compose` checks no signatures"), "{refused}");
}

#[test]
fn documented_keys_of_the_file_are_those_that_are_read() {
    let documented = partywall_testkit::documented_keys("compose.md", "Signed programs");
    assert_eq!(documented, crate::compose::signed::KEYS);
}
