//! `partywall up` with signed programs.

use super::{Place, program, text};

const FILE: &str = "services:\n  web:\n    x-partywall: {program: web}\n  db:\n    x-partywall: {program: db}\n\
                    x-partywall:\n  signed: true\n  keys: [builder.pub]\n";

fn place() -> Place {
    let place = Place::new();
    place.good(&["sign", "--new-key", "builder.key"]);
    place.write("compose.yaml", FILE);
    for name in ["web", "db"] {
        program(&place, name);
        place.good(&["sign", name, "--service", name, "--key", "builder.key"]);
    }
    place
}

#[test]
fn up_starts_signed_programs() {
    let place = place();
    let out = place.run(&["up", "compose.yaml"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("running until the end of `web`, `db`"));
}

#[test]
fn up_starts_nothing_while_a_program_is_not_signed() {
    let place = place();
    let refused = |reason: &str, remedy: &str| {
        let out = place.run(&["up", "compose.yaml"]);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(
            said.contains("compose.yaml:4: services.db: the program of service `db`, "),
            "{said}"
        );
        assert!(said.contains(&format!("db: {reason}: ")), "{said:?} lacks {reason}");
        assert!(said.contains("; remedy: ") && said.contains(remedy), "{said}");
        assert!(said.ends_with("a program is not signed as it has to be; nothing was started\n"));
        assert!(!said.contains("PARTYWALL_SOCKET"), "{said}");
    };
    let sign = |more: &[&str]| {
        place.good(&[&["sign", "db", "--key", "builder.key", "--service"], more].concat());
    };
    std::fs::remove_file(place.path("db.sig")).unwrap();
    refused("unsigned", "`partywall sign PROGRAM --service db --key KEY`");
    sign(&["web"]);
    refused("wrong name", "give it the name that it is signed for");
    sign(&["db", "--expires", "1s"]);
    std::thread::sleep(std::time::Duration::from_millis(2100));
    refused("expired", "KEY` again");
    sign(&["db"]);
    let bytes = std::fs::read(place.path("db")).unwrap();
    place.write("db", [&bytes[..], b"!"].concat());
    refused("altered", "restore what was signed");
    place.write("db", bytes);
    place.good(&["sign", "--new-key", "other.key"]);
    place.good(&["sign", "db", "--service", "db", "--key", "other.key"]);
    refused("untrusted key", "a key that is trusted");
    place.write(
        "compose.yaml",
        FILE.replace("[builder.pub]", "[builder.pub, other.pub]\n  revoked: revoked"),
    );
    let key = place.good(&["verify", "db", "--trusted", "other.pub"]);
    place.write("revoked", key.trim_end().rsplit_once(' ').unwrap().1);
    refused("revoked", "a key that is not revoked");
}

#[test]
fn up_names_each_program_and_each_file_that_is_missing() {
    let place = place();
    for name in ["web.sig", "db.sig"] {
        std::fs::remove_file(place.path(name)).unwrap();
    }
    let said = text(&place.run(&["up", "compose.yaml"]).stderr);
    assert!(said.contains("services.web: ") && said.contains("services.db: "), "{said}");
    assert!(said.ends_with("2 programs are not signed as they have to be; nothing was started\n"));
    std::fs::remove_file(place.path("builder.pub")).unwrap();
    place.bad(
        &["up", "compose.yaml"],
        &["compose.yaml: x-partywall: ", "builder.pub: No such file"],
    );
    place.write("compose.yaml", FILE.replace("  keys: [builder.pub]\n", ""));
    place
        .bad(&["up", "compose.yaml"], &["compose.yaml:6: x-partywall: `signed: true`, and no key"]);
}
