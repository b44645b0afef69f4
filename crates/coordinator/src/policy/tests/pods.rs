//! Principals that go by a pod.

use super::*;

const POD: &str = "0f0e0d0c-1a2b-3c4d-5e6f-001122334455";
const OTHER: &str = "aaaaaaaa-1a2b-3c4d-5e6f-001122334455";

fn inside(pod: Option<&str>) -> Facts {
    let id = "0a".repeat(32);
    let container = Container { engine: "kubernetes".into(), id, pod: pod.map(Box::from) };
    Facts { container: Some(container), contained: Some("".into()), ..facts() }
}

#[test]
fn a_pod_is_a_fact_by_its_whole_uid() {
    let text = format!(
        "[engine.kubernetes]\n[principal.pod]\npod = '{POD}'\n[principal.pods]\npod = ['{OTHER}', '{POD}']\n\
         [principal.of_user]\nuid = 5\npod = '{POD}'\n[principal.other]\npod = '{OTHER}'\n\
         [principal.its_container]\npod = '{POD}'\ncontainer = '0a0a0a0a0a0a'\n\
         [principal.another_container]\npod = '{POD}'\ncontainer = '0b0b0b0b0b0b'\n\
         [principal.nobody]\npod = []\n[principal.static]\npod = '{}'\n",
        "0a".repeat(16),
    );
    let p = Policy::parse("p", &text).unwrap();
    assert_eq!(p.principals(&inside(Some(POD))), ["its_container", "pod", "pods"]);
    assert_eq!(
        p.principals(&Facts { uid: 5, ..inside(Some(POD)) }),
        ["its_container", "of_user", "pod", "pods"]
    );
    assert_eq!(p.principals(&inside(Some(OTHER))), ["other", "pods"]);
    assert_eq!(p.principals(&inside(Some(&"0a".repeat(16)))), ["static"]);
    // A pod whose name begins likewise, a container without one, and a process of no container.
    for none in [inside(Some(&POD[..35])), inside(Some(&format!("{POD}0"))), inside(None), facts()]
    {
        assert_eq!(p.principals(&none), [""; 0]);
    }
}

/// A quota of a principal counts for a process in a container where the principal goes by its pod.
#[test]
fn a_pod_can_have_a_quota() {
    let policy = |fact: &str| {
        let text =
            format!("[engine.kubernetes]\n[principal.a]\n{fact}\n[principal.a.quota]\nlinks = 7\n");
        Policy::parse("p", &text).unwrap()
    };
    let inside = inside(Some(POD));
    let account = |p: &Policy| {
        let principals = p.principals(&inside);
        assert_eq!(principals, ["a"]);
        let (account, limits) = p.account(&inside, &principals, 0);
        (account, limits.map(|limits| limits.links))
    };
    let (of_pod, links) = account(&policy(&format!("pod = '{POD}'")));
    assert_eq!((of_pod, links), (Account::Principal("a".into()), Some(7)));
    let (of_user, links) = account(&policy("uid = 1000"));
    assert_eq!((of_user, links), (Account::Container(inside.container.clone().unwrap()), None));
}

#[test]
fn mistakes_about_pods_name_key_and_remedy() {
    let error = |text: &str| Policy::parse("policy.toml", text).unwrap_err().to_string();
    for wrong in [
        "",
        "web",
        "0f0e0d0c",
        "0F0E0D0C-1A2B-3C4D-5E6F-001122334455",
        "0f0e0d0c_1a2b_3c4d_5e6f_001122334455",
        "pod0f0e0d0c-1a2b-3c4d-5e6f-001122334455",
        "0f0e0d0c-1a2b-3c4d-5e6f-00112233445",
        "0f0e0d0c-1a2b-3c4d-5e6f-001122334455/x",
        "0f0e0d0c1a2b-3c4d-5e6f-0011-22334455",
    ] {
        let one = error(&format!("[engine.kubernetes]\n[principal.a]\npod = '{wrong}'"));
        let part = format!("policy.toml:2: principal.a: `{wrong}`: write a pod's UID, whole");
        assert!(one.contains(&part) && one.contains("jsonpath={.metadata.uid}"), "{one}");
        let of_list = format!("[engine.kubernetes]\n[principal.a]\npod = ['{POD}', '{wrong}']");
        assert!(error(&of_list).contains(&part), "{wrong}");
    }
    for engine in ["", "[engine.docker]\n", "[engine.kubernetes]\ngroups = ['/x/{id}']\n"] {
        let none = error(&format!("{engine}[principal.a]\npod = '{POD}'"));
        assert!(
            none.contains("principal.a: `pod` says nothing")
                && none.contains("add [engine.kubernetes]")
        );
    }
    assert!(error("[principal.a]\npod = 1").contains("`pod`: a text, or a list of texts"));
}
