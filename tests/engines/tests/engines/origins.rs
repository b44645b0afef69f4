//! What an engine says of its containers: whom a policy knows by it, and who is nobody.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::engine::{Caller, Engine, IMAGE, Project, partywall, said, service};
use super::shop;

const DENIED: &str = "failed PermissionDenied";
const TURNED: &str = "turned false false";

/// Compose's labels of a container, as options of `docker run`, with this number, if any.
fn labels(project: &Project<'_>, service: &str, number: Option<&str>) -> Vec<String> {
    let label = |name: &str, value: &str| {
        ["--label".to_owned(), format!("com.docker.compose.{name}={value}")]
    };
    let number = number.map(|number| label("container-number", number));
    let known = [label("project", &project.name), label("service", service)];
    known.into_iter().chain(number).flatten().collect()
}

/// What a call comes to from a container that was started by hand, with the mount of the run.
fn by_hand(project: &Project<'_>, image: &str, more: &[String]) -> String {
    let mount = format!("{}:/run/partywall:ro", project.run_dir().join("socket").display());
    let run = ["run", "--rm", "--interactive", "--user", "1002", "--read-only", "--network=none"];
    let mut command = project.engine.docker(&run);
    command.args(["--volume", &mount]).args(more).args([image, "/bin/et-end", "ask", "store"]);
    Caller::start(&mut command).call(100)
}

/// An image with these labels beside what it is made of; its id.
fn build(project: &Project<'_>, name: &str, labels: &[String]) -> String {
    let context = tempfile::tempdir().unwrap();
    fs::write(context.path().join("Dockerfile"), format!("FROM {IMAGE}\n")).unwrap();
    let mut build = project.engine.docker(&["build", "--quiet", "--tag", name]);
    said(build.args(labels).arg(context.path()).env("DOCKER_BUILDKIT", "0"));
    id(project, name)
}

fn id(project: &Project<'_>, image: &str) -> String {
    let inspect = ["image", "inspect", "--format", "{{.Id}}", image];
    said(&mut project.engine.docker(&inspect)).trim().to_owned()
}

/// `docker-compose ORDER` with all files of the run.
fn compose(project: &Project<'_>, order: &[&str]) {
    let mut command = project.engine.with("docker-compose", &["-p", &project.name]);
    command.arg("-f").arg(project.file()).arg("-f").arg(project.run_dir().join("override.json"));
    said(command.args(order));
}

/// The running containers of a service.
fn ids(project: &Project<'_>, service: &str) -> Vec<String> {
    let of_project = format!("label=com.docker.compose.project={}", project.name);
    let of_service = format!("label=com.docker.compose.service={service}");
    let list = ["ps", "--quiet", "--no-trunc", "--filter", &of_project, "--filter", &of_service];
    said(&mut project.engine.docker(&list)).lines().map(str::to_owned).collect()
}

fn caller(project: &Project<'_>, id: &str) -> Caller {
    let exec = ["exec", "--interactive", id, "/bin/et-end", "ask", "store"];
    Caller::start(&mut project.engine.docker(&exec))
}

#[test]
fn containers_that_come_later_are_of_their_service() {
    let engine = Engine::start();
    let project = Project::new(&engine, "later", &shop(0));
    project.up(&[]);
    let first = ids(&project, "web");
    compose(&project, &["up", "-d", "--no-recreate", "--scale", "web=3"]);
    let webs = ids(&project, "web");
    assert!(webs.len() == 3 && first.iter().all(|id| webs.contains(id)), "{webs:?}");
    let mut callers: Vec<Caller> = webs.iter().map(|id| caller(&project, id)).collect();
    callers.iter_mut().for_each(|caller| assert_eq!(caller.call(100), TURNED));
    let links = project.links();
    let open: Vec<&Value> = links.iter().filter(|link| link["open"] == true).collect();
    assert_eq!(open.len(), 3, "{links:?}");
    for link in open {
        for (end, service) in [("caller", "web"), ("server", "store")] {
            let end = &link[end];
            assert_eq!(end["compose"], format!("{}/{service}", project.name), "{end}");
            assert_eq!(end["image"], id(&project, IMAGE), "{end}");
            assert_eq!(end["principals"], serde_json::json!([service]), "{end}");
        }
    }
    // One that is made anew has another id.
    let before = ids(&project, "store");
    compose(&project, &["up", "-d", "--no-deps", "--force-recreate", "--scale", "web=3", "store"]);
    assert_ne!(ids(&project, "store"), before);
    callers.iter_mut().for_each(|caller| caller.call_until(100, TURNED));
    let denied = project.caller("stranger", "store").call(100);
    assert!(denied.starts_with(DENIED), "{denied}");
}

#[test]
fn labels_of_an_image_make_nobody_a_service() {
    let engine = Engine::start();
    let project = Project::new(&engine, "labels", &shop(0));
    let built = labels(&project, "web", None);
    let all = labels(&project, "web", Some("1"));
    // As Compose builds it, and one that looks like a container of Compose.
    build(&project, "partywall-test:built", &built);
    build(&project, "partywall-test:forger", &all);
    let calls = "x-partywall: {calls: [store/*]}";
    let of = |name: &str, uid, image: &str| service(name, uid, "idle", calls).replace(IMAGE, image);
    let [store, web, stranger] = shop(0);
    let more =
        [of("built", 1003, "partywall-test:built"), of("forger", 1004, "partywall-test:forger")];
    fs::write(project.file(), format!("services:\n{store}{web}{stranger}{}", more.concat()))
        .unwrap();
    project.up(&[]);
    assert_eq!(project.caller("web", "store").call(100), TURNED);
    assert_eq!(project.caller("built", "store").call(100), TURNED);
    for refused in [
        project.caller("forger", "store").call(100),
        by_hand(&project, IMAGE, &[]),
        by_hand(&project, IMAGE, &built),
        by_hand(&project, "partywall-test:built", &[]),
        by_hand(&project, "partywall-test:forger", &[]),
    ] {
        assert!(refused.starts_with(DENIED), "{refused}");
    }
    // Who may give a container all labels may do as the engine does.
    assert_eq!(by_hand(&project, IMAGE, &all), TURNED);
}

#[test]
fn image_is_a_fact_of_a_container() {
    let engine = Engine::start();
    let services = [service("store", 1001, "serve, store", "x-partywall:")];
    let project = Project::new(&engine, "image", &services);
    let other = build(&project, "partywall-test:other", &["--label".into(), "other=1".into()]);
    let image = id(&project, IMAGE);
    assert_ne!(image, other);
    let policy = project.write(
        "policy.toml",
        &format!(
            "[principal.camera]\nimage = '{image}'\nuid = 1002\n[service.store]\nregister = ['store']\n\
             [service.store.call]\ncamera = ['*']\n"
        ),
    );
    project.up(&["--policy", policy.to_str().unwrap()]);
    assert_eq!(by_hand(&project, IMAGE, &[]), TURNED);
    let links = project.links();
    assert_eq!(links[0]["caller"]["image"], image, "{links:?}");
    assert_eq!(links[0]["caller"]["compose"], Value::Null, "{links:?}");
    let refused = by_hand(&project, "partywall-test:other", &[]);
    assert!(refused.starts_with(DENIED), "{refused}");
}

/// The signature counts for the bytes of an image, whatever it is called, and is looked for at each connect.
#[test]
fn an_image_that_is_signed_is_its_principal_and_no_other_is() {
    let engine = Engine::start();
    let services = [service("store", 1001, "serve, store", "x-partywall:")];
    let project = Project::new(&engine, "signed", &services);
    let keys = tempfile::tempdir().unwrap();
    let (key, images) = (keys.path().join("builder.key"), keys.path().join("images"));
    fs::create_dir(&images).unwrap();
    let sign = |words: &[&str]| {
        said(Command::new(partywall()).arg("sign").args(words).current_dir(keys.path()))
    };
    sign(&["--new-key", "builder.key"]);
    let [key, directory] = [&key, &images].map(|path| path.to_str().unwrap());
    let other = build(&project, "partywall-test:signed", &["--label".into(), "other=2".into()]);
    let image = id(&project, IMAGE);
    let policy = project.write(
        "policy.toml",
        &format!(
            "[signatures]\nkeys = ['{}']\nimages = '{directory}'\n[principal.camera]\nsigned = 'image'\n\
             uid = 1002\n[service.store]\nregister = ['store']\n[service.store.call]\n\
             camera = {{ methods = ['*'], require = {{ evidence = 'observed' }} }}\n",
            keys.path().join("builder.pub").display()
        ),
    );
    project.up(&["--policy", policy.to_str().unwrap()]);
    let refused = by_hand(&project, IMAGE, &[]);
    assert!(refused.starts_with(DENIED), "{refused}");
    // For another service, which is another reason than none at all.
    sign(&["--image", &image, "--service", "web", "--key", key, "-o", directory]);
    let refused = by_hand(&project, IMAGE, &[]);
    assert!(refused.starts_with(DENIED), "{refused}");
    sign(&["--image", &image, "--service", "camera", "--key", key, "-o", directory]);
    assert_eq!(by_hand(&project, IMAGE, &[]), TURNED);
    let links = project.links();
    let caller = &links.iter().find(|link| link["caller"]["image"] == image).unwrap()["caller"];
    assert_eq!(caller["evidence"], "image", "{links:?}");
    assert_eq!(caller["principals"], serde_json::json!(["camera"]), "{links:?}");
    // The signature of another image is none of this one, under whatever name it lies there.
    let file = |id: &str| images.join(format!("{}.sig", id.strip_prefix("sha256:").unwrap()));
    fs::copy(file(&image), file(&other)).unwrap();
    let refused = by_hand(&project, "partywall-test:signed", &[]);
    assert!(refused.starts_with(DENIED), "{refused}");
}
