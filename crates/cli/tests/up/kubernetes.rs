//! The files for Kubernetes: by its published schema, and by what the command makes of them.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use partywall_interop::python_client::says_with;
use serde_json::Value;

use super::{command, root, text};

/// It has the schemas of all releases up to 1.37.
const PACKAGE: &str = "kubernetes-validate==1.37.0";
const RELEASES: [&str; 3] = ["1.30", "1.34", "1.37"];

/// Says by which release documents are right, and no field in them is unknown; or what is wrong.
const VALIDATES: &str = r#"
import json, sys, yaml
from kubernetes_validate import ValidationError, validate
text, *releases = sys.argv[1:]
documents = list(yaml.safe_load_all(text))
for release in releases:
    for document in documents:
        try:
            assert validate(document, release, strict=True) == release
        except ValidationError as error:
            print("refused:", ".".join(str(step) for step in error.path), error.message)
            sys.exit()
print(json.dumps(documents))
"#;

/// A process that is ended with the value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().expect("it is our child");
        self.0.wait().expect("it is our child");
    }
}

fn file(name: &str) -> String {
    std::fs::read_to_string(root().join("packaging/kubernetes").join(name)).unwrap()
}

fn validated(text: &str) -> Result<Vec<Value>, String> {
    let said = says_with(PACKAGE, VALIDATES, &[&[text], &RELEASES[..]].concat()).unwrap();
    if said.starts_with("refused: ") { Err(said) } else { Ok(serde_json::from_str(&said).unwrap()) }
}

fn of_kind<'d>(documents: &'d [Value], kind: &str) -> &'d Value {
    documents.iter().find(|document| document["kind"] == kind).unwrap()
}

/// Its mounts: the paths in the container and those of the node, and whether it only reads there.
fn mounts(pod: &Value) -> Vec<(&str, &str, bool)> {
    let volumes = pod["volumes"].as_array().unwrap();
    let of_node = |mount: &Value| {
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
        volume["hostPath"]["path"].as_str()
    };
    let all = pod["containers"][0]["volumeMounts"].as_array().unwrap().iter();
    let mounts = all.filter_map(|mount| {
        let reads = mount["readOnly"] == true;
        Some((mount["mountPath"].as_str().unwrap(), of_node(mount)?, reads))
    });
    mounts.collect()
}

#[test]
fn the_files_for_kubernetes_are_as_its_schema_has_it() {
    let (coordinator, workload) = (file("coordinator.yaml"), file("workload.yaml"));
    let documents = validated(&coordinator).unwrap();
    let kinds: Vec<_> = documents.iter().map(|document| document["kind"].as_str()).collect();
    assert_eq!(kinds, [Some("Namespace"), Some("ConfigMap"), Some("DaemonSet")]);
    let pod = &of_kind(&documents, "DaemonSet")["spec"]["template"]["spec"];
    assert_eq!(pod["hostPID"], true);
    let operators = "/run/partywall-operators";
    let sockets = "/run/partywall";
    assert_eq!(mounts(pod), [(sockets, sockets, false), (operators, operators, false)]);

    let documents = validated(&workload).unwrap();
    let pod = &of_kind(&documents, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(mounts(pod), [(sockets, sockets, true)], "for reading, and not the operators'");
    for key in ["hostPID", "hostIPC", "hostNetwork", "hostUsers"] {
        assert_eq!(pod[key], Value::Null, "{key}");
    }
}

#[test]
fn unknown_and_wrong_fields_for_kubernetes_are_refused() {
    let text = file("coordinator.yaml");
    let wrong = [
        ("hostPID: true", "hostPIDs: true", "'hostPIDs' was unexpected"),
        ("hostPID: true", "hostPID: sure", "'sure' is not of type"),
        ("readOnly: true", "readonly: true", "'readonly' was unexpected"),
        ("type: DirectoryOrCreate", "kind: Directory", "'kind' was unexpected"),
        (
            "  selector:\n    matchLabels:",
            "  choice:\n    matchLabels:",
            "'selector' is a required property",
        ),
        ("        image: IMAGE", "        picture: IMAGE", "'picture' was unexpected"),
        ("\ndata:\n", "\nfiles:\n", "'files' was unexpected"),
    ];
    for (right, wrong, why) in wrong {
        assert!(text.contains(right), "{right}");
        let refused = validated(&text.replacen(right, wrong, 1)).unwrap_err();
        assert!(refused.contains(why), "{wrong}: {refused}");
    }
}

/// With the program and the directories of the test in place of the node's.
#[test]
fn the_coordinator_starts_as_kubernetes_is_told_to() {
    let documents = validated(&file("coordinator.yaml")).unwrap();
    let pod = &of_kind(&documents, "DaemonSet")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let words = |key: &str| -> Vec<String> {
        let words = container[key].as_array().unwrap().iter();
        words.map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(words("command"), ["/usr/bin/partywall", "coordinator"]);
    let dir = tempfile::tempdir().unwrap();
    let here = |path: &str| -> PathBuf { dir.path().join(path.strip_prefix('/').unwrap()) };
    for mount in container["volumeMounts"].as_array().unwrap() {
        let path = here(mount["mountPath"].as_str().unwrap());
        match mount["subPath"].as_str() {
            None => std::fs::create_dir_all(path).unwrap(),
            Some(key) => {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                let data = of_kind(&documents, "ConfigMap")["data"][key].as_str().unwrap();
                std::fs::write(&path, data).unwrap();
                // The files of the volume have that mode.
                let mode = u32::from_str_radix("0444", 8).unwrap();
                let volumes = pod["volumes"].as_array().unwrap();
                let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
                assert_eq!(volume["configMap"]["defaultMode"], mode);
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            }
        }
    }
    let arguments: Vec<String> = words("args")
        .iter()
        .map(|argument| argument.replacen("=/", &format!("={}/", dir.path().display()), 1))
        .collect();
    let mut coordinator = command(&["coordinator"]);
    coordinator.args(&arguments).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut coordinator = Running(coordinator.spawn().unwrap());
    let sockets = ["run/partywall/coordinator.sock", "run/partywall/workload.sock"];
    let operators = "run/partywall-operators/operators.sock";
    let mut lines =
        BufReader::new(coordinator.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let ready = lines.find(|line| line.starts_with("coordinator at "));
    assert_eq!(ready, Some(format!("coordinator at {}", dir.path().join(sockets[0]).display())));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for socket in sockets {
        assert_eq!(mode(&dir.path().join(socket)), 0o666, "{socket}");
    }
    assert_eq!(mode(&dir.path().join(operators)), 0o600);
    let links = command(&["links", "--socket"]).arg(dir.path().join(operators)).output().unwrap();
    assert_eq!(text(&links.stdout), "no links\n", "{}", text(&links.stderr));
}
