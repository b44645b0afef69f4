//! Which texts are a container's, and which groups a policy may name.

use super::*;

fn id(digit: char) -> String {
    digit.to_string().repeat(DIGITS)
}

/// All engines that are known.
fn known() -> Engines {
    let mut engines = Engines::default();
    for (name, _) in KNOWN {
        engines.add(name, &[]).unwrap();
    }
    engines
}

/// What a text with `ID`, `OTHER`, `POD` and `UID` filled in comes to: the engine, or the reason.
fn found(text: &str) -> Result<Option<String>, String> {
    let uid = "0f0e0d0c-1a2b-3c4d-5e6f-001122334455";
    let text = text
        .replace("OTHER", &id('b'))
        .replace("ID", &id('a'))
        .replace("POD_", &uid.replace('-', "_"))
        .replace("POD", uid);
    found_bytes(text.as_bytes())
}

fn found_bytes(text: &[u8]) -> Result<Option<String>, String> {
    let container = known().container(text)?;
    Ok(container.map(|c| {
        assert_eq!(c.id, id('a'), "{c:?}");
        c.engine.into()
    }))
}

/// What cgroupfs's driver of runc makes of a process on version 1.
fn legacy(path: &str, named: &str, unified: &str) -> String {
    format!(
        "12:rdma:/\n11:pids:{path}\n10:cpuset:{path}\n9:cpu,cpuacct:{path}\n8:net_cls,net_prio:{path}\n\
         7:blkio:{path}\n6:freezer:{path}\n5:devices:{path}\n4:memory:{path}\n3:hugetlb:{path}\n\
         2:perf_event:{path}\n1:name=systemd:{named}\n0::{unified}\n"
    )
}

#[test]
fn group_of_an_engine_is_a_container() {
    for (text, engine) in [
        ("0::/docker/ID\n", "docker"),
        ("0::/docker/ID/init.scope/x:y\n", "docker"),
        ("0::/docker/ID/docker/OTHER\n", "docker"),
        ("0::/docker/ID/kubepods/podPOD/OTHER\n", "docker"),
        ("0::/system.slice/docker-ID.scope\n", "docker"),
        ("0::/libpod_parent/libpod-ID\n", "podman"),
        ("0::/libpod_parent/OTHER/libpod-ID\n", "podman"),
        ("0::/machine.slice/libpod-ID.scope/container\n", "podman"),
        ("0::/machine.slice/machine-libpod_pod_OTHER.slice/libpod-ID.scope\n", "podman"),
        ("0::/kubepods/podPOD/ID\n", "kubernetes"),
        ("0::/kubepods/burstable/podPOD/ID/x\n", "kubernetes"),
        ("0::/kubepods/besteffort/podPOD/crio-ID\n", "kubernetes"),
        ("0::/kubepods/pod0123456789abcdef0123456789abcdef/ID\n", "kubernetes"),
        ("0::/kubepods.slice/kubepods-podPOD_.slice/cri-containerd-ID.scope\n", "kubernetes"),
        (
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podPOD_.slice/crio-ID.scope\n",
            "kubernetes",
        ),
        // Beside version 2, a hierarchy of a firewall.
        ("1:net_cls:/\n0::/system.slice/docker-ID.scope\n", "docker"),
    ] {
        assert_eq!(found(text), Ok(Some(engine.into())), "{text}");
    }
}

#[test]
fn group_that_no_engine_has_made_is_no_container() {
    let upper = id('a').replace('a', "A");
    let (short, long) = (id('a')[1..].to_string(), id('a') + "a");
    let deep = format!("0::/{}docker/ID\n", "x/".repeat(16 * 1024));
    let hex = |text: &str| text.replace("HEX", &upper);
    for text in [
        "0::/\n",
        "0::/docker\n",
        "0::/init.scope\n",
        // The id, elsewhere.
        "0::/x/docker/ID\n",
        "0::/docker/x/ID\n",
        "0::/docker/buildkit/ID\n",
        "0::/system.slice/x.service/docker-ID.scope\n",
        "0::/machine.slice/x.slice/libpod-ID.scope\n",
        "0::/kubepods/podPOD/x/ID\n",
        "0::/kubepods/pod/ID\n",
        "0::/kubepods/podPOD_x/ID\n",
        "0::/kubepods/burstable/besteffort/podPOD/ID\n",
        "0::/ID\n",
        // Another name with the id in it.
        "0::/docker/xID\n",
        "0::/docker/ID.scope\n",
        "0::/docker/docker-ID.scope\n",
        "0::/docker-ID\n",
        "0::/dockerx/ID\n",
        "0::/system.slice/ID\n",
        "0::/system.slice/docker-ID.service\n",
        "0::/system.slice/x-docker-ID.scope\n",
        "0::/machine.slice/libpod-conmon-ID.scope\n",
        "0::/kubepods.slice/kubepods-podPOD_.slice/crio-conmon-ID.scope\n",
        // No id.
        &hex("0::/docker/HEX\n"),
        &format!("0::/docker/{short}\n"),
        &format!("0::/docker/{long}\n"),
        "0::/docker/ID (deleted)\n",
        "0::/docker/ID \n",
        "0::/docker/ID:\n",
        "0::/docker:/docker/ID\n",
        // A rootless engine's, whose user can write them.
        "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container\n",
        "0::/user.slice/user-1000.slice/user@1000.service/docker/ID\n",
        &deep,
        &legacy("/", "/", "/"),
        &legacy("/user.slice", "/user.slice/docker/ID", "/user.slice"),
    ] {
        assert_eq!(found(text), Ok(None), "{}", &text[..text.len().min(200)]);
    }
    let not_utf8 = [b"0::/docker/\xff".as_slice(), id('a').as_bytes(), b"\n"].concat();
    assert_eq!(found_bytes(&not_utf8), Ok(None));
    // What a container makes below its own group may be called anything.
    let below = [b"0::/docker/", id('a').as_bytes(), b"/\xff\n"].concat();
    assert_eq!(found_bytes(&below), Ok(Some("docker".into())));
}

#[test]
fn text_that_makes_no_sense_has_a_reason() {
    let paths = |path: &str| format!("0::{path}\n");
    for (text, part) in [
        (paths("/docker/../docker/ID"), "not one below the coordinator's root"),
        (paths("/docker/ID/.."), "not one below"),
        (paths("/../docker/ID"), "not one below"),
        (paths("/docker//ID"), "not one below"),
        (paths("/docker/ID/"), "not one below"),
        (paths("/./docker/ID"), "not one below"),
        (paths("docker/ID"), "not one below"),
        (paths(""), "not one below"),
        (paths("/docker\n/ID"), "a line of its control groups is none"),
        ("0::/docker/ID\n\n".into(), "a line of its control groups is none"),
        ("0:/docker/ID\n".into(), "a line of its control groups is none"),
        ("\n".into(), "a line of its control groups is none"),
        ("nonsense\n".into(), "a line of its control groups is none"),
        // Cut, or nothing at all.
        ("0::/docker/ID".into(), "no whole text"),
        (String::new(), "no whole text"),
        // By what no engine goes by.
        ("1:name=x:/docker/ID\n".into(), "by the hierarchy of name=x alone"),
        ("1:net_cls:/docker/ID\n".into(), "by the hierarchy of net_cls alone"),
        ("1:net_cls:/docker/ID\n0::/\n".into(), "in no container by the hierarchy of version 2"),
    ] {
        let reason = found(&text).unwrap_err();
        assert!(reason.contains(part), "{text:?}: {reason}");
    }
}

#[test]
fn all_hierarchies_of_an_engine_agree() {
    let docker = Ok(Some("docker".to_string()));
    for (path, named, unified) in [
        ("/docker/ID", "/docker/ID", "/"),
        ("/docker/ID", "/docker/ID/init.scope", "/system.slice/containerd.service"),
        ("/docker/ID", "/docker/ID", "/docker/ID"),
        ("/system.slice/docker-ID.scope", "/system.slice/docker-ID.scope", "/"),
        ("/system.slice/docker-ID.scope", "/docker/ID", "/system.slice/docker-ID.scope"),
    ] {
        let text = legacy(path, named, unified);
        assert_eq!(found(&text), docker, "{text}");
        for free in ["12:rdma:/docker/ID", "12:misc:/x", "12:name=openrc:/x", "12:debug:/"] {
            assert_eq!(found(&text.replace("12:rdma:/", free)), docker, "{free}");
        }
    }
    let good = legacy("/docker/ID", "/docker/ID", "/");
    let elsewhere = ["/", "/docker", "/x/docker/ID", "/docker/OTHER", "/system.slice/ID"];
    let managed: Vec<&str> = good.lines().filter(|line| line.ends_with("/docker/ID")).collect();
    assert_eq!(managed.len(), 11, "{good}");
    for line in managed {
        for path in elsewhere {
            let other = line.replace("/docker/ID", path);
            let reason = found(&good.replace(line, &other)).unwrap_err();
            let (_, rest) = other.split_once(':').unwrap();
            let (controllers, _) = rest.split_once(':').unwrap();
            assert!(reason.contains("its control groups disagree"), "{other}: {reason}");
            assert!(reason.contains(controllers), "{other}: {reason}");
        }
    }
    // What the engine leaves alone is in no other container.
    for line in ["12:rdma:", "12:name=x:", "0::"] {
        let (number, _) = line.split_once(':').unwrap();
        let before = good.lines().find(|line| line.starts_with(&format!("{number}:"))).unwrap();
        let reason = found(&good.replace(before, &format!("{line}/docker/OTHER"))).unwrap_err();
        assert!(reason.contains("disagree"), "{line}: {reason}");
    }
    // Another engine's container of the same id is another container.
    let other = good.replace("4:memory:/docker/ID", "4:memory:/machine.slice/libpod-ID.scope");
    assert!(found(&other).unwrap_err().contains("of podman"));
}

#[test]
fn without_engines_nothing_is_a_container() {
    for text in ["0::/docker/ID\n", "0::/docker/../ID\n", ""] {
        let text = text.replace("ID", &id('a'));
        assert_eq!(Engines::default().container(text.as_bytes()), Ok(None), "{text:?}");
    }
    let mut podman = Engines::default();
    podman.add("podman", &[]).unwrap();
    let text = format!("0::/docker/{}\n", id('a'));
    assert_eq!(podman.container(text.as_bytes()), Ok(None));
}

#[test]
fn engine_has_groups_of_its_own() {
    let mut engines = Engines::default();
    let groups = ["/shop.slice/docker-{id}.scope", "/shop.slice/{id}"].map(String::from);
    engines.add("docker", &groups).unwrap();
    let container = |path: String| engines.container(format!("0::{path}\n").as_bytes()).unwrap();
    let (a, b) = (id('a'), id('b'));
    let found = container(format!("/shop.slice/docker-{a}.scope/x")).unwrap();
    assert_eq!(found.to_string(), "container aaaaaaaaaaaa of docker");
    assert_eq!(container(format!("/shop.slice/{b}/{a}")).unwrap().id, b);
    assert_eq!(container(format!("/docker/{a}")), None, "the known groups are not added");
}

#[test]
fn group_that_proves_nothing_is_refused() {
    let add = |name: &str, groups: &[&str]| {
        let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
        let mut engines = Engines::default();
        engines.add("podman", &[]).unwrap();
        engines.add(name, &groups)
    };
    add("docker", &[]).unwrap();
    add("mine", &["/{id}", "/a/b-{pod}.slice/c-{id}.scope"]).unwrap();
    let rootless = "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{id}.scope";
    let many: Vec<String> = (0..GROUPS).map(|n| format!("/x{n}/{{id}}")).collect();
    for (name, groups, part) in [
        ("mine", &[][..], "no engine of this name is known (docker, podman, kubernetes are)"),
        ("mine", &["docker/{id}"], "`docker/{id}`: it begins without `/`"),
        ("mine", &["/docker"], "it has one `{id}`, which is in its last component"),
        ("mine", &["/{id}/x"], "in its last component"),
        ("mine", &["/{id}/{id}"], "it has one `{id}`"),
        ("mine", &["/{id}{id}"], "more in braces"),
        ("mine", &["/{pod}-{id}"], "more in braces"),
        ("mine", &["/{name}/{id}"], "more in braces"),
        ("mine", &["/docker/../{id}"], "no group is called `..`"),
        ("mine", &["//{id}"], "no group is called ``"),
        ("mine", &["/docker/{id}/"], "no group is called ``"),
        ("mine", &[rootless], "no more than its uid"),
        ("mine", &["/user.slice/user-1000.slice/{id}"], "no more than its uid"),
        ("mine", &["/machine.slice/libpod-{id}.scope"], "engine `podman` has the same group"),
        ("mine", &many.iter().map(String::as_str).collect::<Vec<_>>(), "at most 64 groups"),
    ] {
        let error = add(name, groups).unwrap_err();
        assert!(error.contains(part), "{groups:?}: {error}");
    }
}

/// By both drivers and all kinds of service, and below what a container has made.
#[test]
fn the_pod_of_a_container_is_its_uid() {
    let uid = "0f0e0d0c-1a2b-3c4d-5e6f-001122334455";
    let (digest, podman) = ("0123456789abcdef".repeat(2), id('c'));
    let engines = known();
    let found = |text: &str| {
        let under = uid.replace('-', "_");
        let text = text.replace("ID", &id('a')).replace("POD_", &under).replace("POD", uid);
        let text = text.replace("DIGEST", &digest).replace("LONGER", &podman);
        let found = engines.container(text.as_bytes()).unwrap().unwrap();
        assert_eq!(found.id, id('a'), "{text}");
        found.pod
    };
    let mut uids = Vec::new();
    for (groups, slices) in [("", ""), ("burstable/", "burstable"), ("besteffort/", "besteffort")] {
        for container in ["ID", "crio-ID", "ID/init.scope", "ID/kubepods/podDIGEST/x"] {
            uids.push(format!("/kubepods/{groups}podPOD/{container}"));
        }
        let parent = match slices {
            "" => "kubepods".to_owned(),
            class => format!("kubepods-{class}.slice/kubepods-{class}"),
        };
        for container in ["cri-containerd-ID.scope", "crio-ID.scope", "crio-ID.scope/x/y"] {
            uids.push(format!("/kubepods.slice/{parent}-podPOD_.slice/{container}"));
        }
    }
    assert_eq!(uids.len(), 21);
    for path in &uids {
        assert_eq!(found(&format!("0::{path}\n")).as_deref(), Some(uid), "{path}");
        assert_eq!(found(&legacy(path, path, "/")).as_deref(), Some(uid), "{path}");
    }
    // The hierarchies of version 1 where the runtime has both forms: it is the same pod.
    let slices = "/kubepods.slice/kubepods-podPOD_.slice/crio-ID.scope";
    assert_eq!(found(&legacy("/kubepods/podPOD/ID", slices, slices)).as_deref(), Some(uid));
    for (path, pod) in [
        ("/kubepods/podDIGEST/ID", Some(digest.as_str())),
        ("/machine.slice/machine-libpod_pod_LONGER.slice/libpod-ID.scope", Some(&podman)),
        ("/machine.slice/libpod-ID.scope", None),
        ("/docker/ID", None),
        ("/docker/ID/kubepods/podPOD/ID", None),
    ] {
        assert_eq!(found(&format!("0::{path}\n")).as_deref(), pod, "{path}");
    }
}

#[test]
fn a_path_of_another_form_has_no_pod() {
    let uid = "0f0e0d0c-1a2b-3c4d-5e6f-001122334455";
    for path in [
        // Elsewhere than at the root, and above a container.
        "/x/kubepods/podPOD/ID",
        "/kubepods/podPOD",
        "/kubepods/podPOD/init.scope",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-podPOD_.slice/crio-ID.scope",
        "/kubepods.slice/kubepods-burstable-podPOD_.slice/crio-ID.scope",
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-burstable-podPOD_.slice/crio-ID.scope",
        "/user.slice/user-1000.slice/user@1000.service/kubepods/podPOD/ID",
        // No UID.
        "/kubepods/podPOD-/ID",
        "/kubepods/podPODPOD/ID",
        "/kubepods/podPOD,POD/ID",
        "/kubepods/podPOD:/ID",
        "/kubepods/pod0F0E0D0C-1A2B-3C4D-5E6F-001122334455/ID",
        "/kubepods/pod0f0e0d0c-1a2b_3c4d-5e6f_001122334455/ID",
        "/kubepods/pod0f0e0d0c-1a2b-3c4d-5e6f0011-22334455/ID",
        "/kubepods/pod\u{ff10}f0e0d0c-1a2b-3c4d-5e6f-001122334455/ID",
        "/kubepods.slice/kubepods-podPOD_.slice.slice/crio-ID.scope",
        "/kubepods.slice/kubepods-pod.slice/crio-ID.scope",
    ] {
        let text = path.replace("ID", &id('a')).replace("POD_", &uid.replace('-', "_"));
        let text = format!("0::{}\n", text.replace("POD", uid));
        assert_eq!(known().container(text.as_bytes()), Ok(None), "{text}");
    }
    // Two pods of one container: of version 1, one of them is a lie.
    let [here, there] =
        ["a", "b"].map(|digit| format!("/kubepods/pod{}/{}", digit.repeat(32), id('a')));
    let reason = known().container(legacy(&here, &there, "/").as_bytes()).unwrap_err();
    let pods = ["a", "b"].map(|digit| format!(", in pod {}", digit.repeat(32)));
    assert!(reason.contains("disagree") && pods.iter().all(|pod| reason.contains(pod)), "{reason}");
    // Of several, the nearest to the container.
    let mut nested = Engines::default();
    nested.add("nested", &["/{pod}/x-{pod}/{id}".into()]).unwrap();
    let path = format!("0::/{}/x-{}/{}\n", id('b'), id('c'), id('a'));
    assert_eq!(nested.container(path.as_bytes()).unwrap().unwrap().pod, Some(id('c').into()));
}

#[test]
fn fuzz_container_accepts_and_refuses() {
    let paths = ["/docker/ID", "/kubepods/burstable/podPOD/ID/x", "/machine.slice/libpod-ID.scope"];
    let seeds = paths.map(|path| {
        let pod = "0f0e0d0c-1a2b-3c4d-5e6f-001122334455";
        legacy(path, path, path).replace("ID", &id('a')).replace("POD", pod)
    });
    let seeds = seeds.each_ref().map(String::as_str);
    let mut random = partywall_testkit::Random::new(1);
    let mut accepted = [0, 0];
    for _ in 0..2_000 {
        accepted[usize::from(fuzz_container(&random.mutated(&seeds)))] += 1;
    }
    assert!(accepted[0] > 50 && accepted[1] > 50, "{accepted:?}");
}
