//! Values of the wrong type.

use super::*;

#[test]
fn wrong_types() {
    for (extension, expected) in [
        ("      [a]\n", "3: services.client.x-partywall: expected a mapping, found a list"),
        (
            "      package: [a]\n",
            "4: services.client.x-partywall.package: expected the name of a package, found a list",
        ),
        (
            "      package:\n",
            "4: services.client.x-partywall.package: expected the name of a package, found nothing",
        ),
        (
            "      package: ''\n",
            "4: services.client.x-partywall.package: expected the name of a package, found an \
             empty text",
        ),
        (
            "      package: p\n      bin: {a: b}\n",
            "5: services.client.x-partywall.bin: expected the name of a binary, found a mapping",
        ),
        (
            "      package: p\n      args: a b\n",
            "5: services.client.x-partywall.args: expected a list of arguments, found the text \
             `a b`",
        ),
        (
            "      package: p\n      args:\n        - a\n        -\n",
            "7: services.client.x-partywall.args[1]: expected an argument, found nothing",
        ),
        (
            "      package: p\n      calls: wordcount/*\n",
            "5: services.client.x-partywall.calls: expected a list of `service/method`, found \
             the text `wordcount/*`",
        ),
        (
            "      package: p\n      link: [ring]\n",
            "5: services.client.x-partywall.link: expected `ring` or `domain`, found a list",
        ),
    ] {
        assert_eq!(error(&with_extension(extension)), format!("compose.yaml:{expected}"));
    }
    assert_eq!(error("- a\n"), "compose.yaml:1: expected a mapping, found a list");
    assert_eq!(
        error("services: [a]\n"),
        "compose.yaml:1: services: expected a mapping, found a list"
    );
    assert_eq!(
        error("services:\n  a: text\n"),
        "compose.yaml:2: services.a: expected a mapping, found the text `text`"
    );
}

#[test]
fn wrong_environments() {
    let file = |environment: &str| {
        error(&format!(
            "services:\n  a:\n    x-partywall: {{package: a}}\n    environment:{environment}\n"
        ))
    };
    assert_eq!(
        file(" A=b"),
        "compose.yaml:4: services.a.environment: expected a mapping or a list of `NAME=value`, \
         found the text `A=b`"
    );
    assert_eq!(
        file("\n      A: [b]"),
        "compose.yaml:5: services.a.environment.A: expected a value, found a list"
    );
    assert_eq!(
        file("\n    - A=b\n    - =b"),
        "compose.yaml:6: services.a.environment[1]: `` is no variable name; write `NAME=value` \
         or `NAME: value`"
    );
    assert_eq!(
        file("\n      A=b: c"),
        "compose.yaml:5: services.a.environment.A=b: `A=b` is no variable name; write `NAME=value` \
         or `NAME: value`"
    );
    assert!(file(r#" {A: "x\0y"}"#).contains("a NUL character cannot be passed"));
}
