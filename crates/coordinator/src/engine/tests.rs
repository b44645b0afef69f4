use super::*;
use crate::signatures::Found;
use partywall_testkit::Random;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream as Stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// What a false engine answers to a path.
type Answer = Box<dyn Fn(&str, &mut Stream) + Send>;

/// A false engine, and what it was asked.
struct False {
    dir: tempfile::TempDir,
    asked: Arc<Mutex<Vec<String>>>,
}

impl False {
    fn start(answer: Answer) -> Self {
        let (dir, asked) = (tempfile::tempdir().unwrap(), Arc::<Mutex<Vec<String>>>::default());
        let listener = UnixListener::bind(dir.path().join("engine.sock")).unwrap();
        let log = Arc::clone(&asked);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut text) = (stream.unwrap(), Vec::new());
                let mut byte = [0];
                while !text.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                    text.push(byte[0]);
                }
                let text = String::from_utf8(text).unwrap();
                let path = text.split(' ').nth(1).unwrap().to_owned();
                log.lock().unwrap().push(path.clone());
                answer(&path, &mut stream);
            }
        });
        Self { dir, asked }
    }

    /// One that says this of containers, and this of images.
    fn saying(container: Value, image: Value) -> Self {
        let is_image = |path: &str| path.starts_with("/images/");
        Self::start(Box::new(move |path, to| {
            say(to, if is_image(path) { &image } else { &container })
        }))
    }

    fn question(&self, digit: char) -> Question {
        let api = Some(self.dir.path().join("engine.sock"));
        Question { container: container(digit), api, signatures: None }
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

fn say(to: &mut Stream, body: &Value) {
    let body = body.to_string();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    // Whoever does not like it takes no more.
    let _taken = to.write_all((head + &body).as_bytes());
}

fn container(digit: char) -> Container {
    Container { engine: "docker".into(), id: digit.to_string().repeat(64), pod: None }
}

fn image() -> String {
    format!("sha256:{}", "1f".repeat(32))
}

/// What an engine says of a container, or of an image, with these labels.
fn made(digit: char, labels: &Value) -> Value {
    json!({ "Id": container(digit).id, "Image": image(), "Config": { "Labels": labels }, "Path": "/x" })
}

fn built(labels: &Value) -> Value {
    json!({ "Id": image(), "Config": { "Labels": labels }, "RepoTags": ["shop/web:1"] })
}

/// Compose's labels of a container, and of an image that it has built.
fn of_container() -> Value {
    json!({ PROJECT: "shop", SERVICE: "web", NUMBER: "2", "other": "x" })
}

fn of_image() -> Value {
    json!({ PROJECT: "shop", SERVICE: "web", "com.docker.compose.version": "2.20.0" })
}

#[test]
fn engine_says_image_and_service_once_for_each_container() {
    let engine = False::start(Box::new(|path, to| match path.strip_prefix("/containers/") {
        Some(rest) if rest.starts_with('a') => say(to, &made('a', &of_container())),
        Some(_) => say(to, &made('b', &Value::Null)),
        None => say(to, &built(&Value::Null)),
    }));
    let answers = Answers::default();
    let origin = |compose: Option<&str>| {
        Ok(Origin { image: image(), compose: compose.map(str::to_owned), signature: None })
    };
    for _ in 0..3 {
        assert_eq!(answers.ask(&engine.question('a')), origin(Some("shop/web")));
        assert_eq!(answers.ask(&engine.question('b')), origin(None));
    }
    let path = |digit| format!("/containers/{}/json", container(digit).id);
    let of_image = format!("/images/{}/json", image());
    let expected = [path('a'), of_image.clone(), path('b'), of_image];
    assert_eq!(*engine.asked.lock().unwrap(), expected);
    // Another engine's container is another one.
    let mut other = engine.question('a');
    other.container.engine = "podman".into();
    assert_eq!(answers.ask(&other), origin(Some("shop/web")));
    assert_eq!(engine.asked(), 6);
}

#[test]
fn the_signature_of_an_image_is_looked_for_each_time() {
    let engine = False::saying(made('a', &of_container()), built(&Value::Null));
    let (answers, place) = (Answers::default(), tempfile::tempdir().unwrap());
    let question = Question { signatures: Some(place.path().into()), ..engine.question('a') };
    let found = || answers.ask(&question).unwrap().signature.unwrap().found;
    assert_ne!(found(), Arc::new(Found::at(Path::new("/no/file"))), "it names the file");
    let file = place.path().join(format!("{}.sig", image().strip_prefix("sha256:").unwrap()));
    assert_eq!(found(), Arc::new(Found::at(&file)));
    std::fs::write(&file, "text").unwrap();
    assert_eq!(found(), Arc::new(Found::at(&file)));
    assert_eq!(engine.asked(), 2, "the engine was asked for the container and for the image once");
    assert_eq!(digest_of(&format!("sha256:{}", "0a".repeat(32))), [10; 32]);
}

#[test]
fn what_a_container_is_called_by_its_image_proves_nothing() {
    let says = |container: &Value, image: &Value| {
        let engine = False::saying(made('a', container), built(image));
        Answers::default().ask(&engine.question('a')).unwrap().compose
    };
    let web = Some("shop/web".to_owned());
    assert_eq!(says(&of_container(), &Value::Null), web);
    // Compose gives project and service to what it builds.
    assert_eq!(says(&of_container(), &of_image()), web);
    // Such an image without Compose, and one that brings all.
    assert_eq!(says(&of_image(), &of_image()), None);
    assert_eq!(says(&of_container(), &of_container()), None);
    assert_eq!(says(&of_container(), &json!({ NUMBER: "" })), None);
    assert_eq!(says(&json!({ PROJECT: "shop", NUMBER: "1" }), &Value::Null), None);
}

#[test]
fn answer_that_is_no_engines_is_an_error_and_is_forgotten() {
    let other = format!("sha256:{}", "2e".repeat(32));
    let (right, of_image) = (made('a', &of_container()), built(&Value::Null));
    let answers = Answers::default();
    let json = |container: Value, image: Value| False::saying(container, image);
    let text = |text: &'static str| {
        False::start(Box::new(move |_, to| drop(to.write_all(text.as_bytes()))))
    };
    let labels = |project: &str| json!({ PROJECT: project, SERVICE: "web", NUMBER: "1" });
    let long = "x".repeat(limits::COMPOSE_BYTES);
    for (engine, part) in [
        (json(made('b', &of_container()), of_image.clone()), "speaks of `bbbb"),
        (json(right.clone(), json!({ "Id": other, "Config": null })), "speaks of `sha256:2e2e"),
        (json(json!({ "Id": container('a').id }), of_image.clone()), "no id of its image"),
        (json(made('a', &labels("a/b")), of_image.clone()), "no service of Compose, but `a/b/web`"),
        (json(made('a', &labels("")), of_image.clone()), "no service of Compose"),
        (json(made('a', &labels(&long)), of_image.clone()), "no service of Compose"),
        (json(made('a', &json!(7)), of_image.clone()), "no engine's answer"),
        (text("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), "404 Not Found"),
        (text("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{"), "no whole answer"),
        (text("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), "no engine's answer"),
        (text("SSH-2.0-OpenSSH\r\n"), "no engine's answer"),
        (text(""), "no engine's answer"),
    ] {
        let question = engine.question('a');
        let why = answers.ask(&question).unwrap_err();
        let place = question.api.as_ref().unwrap().display().to_string();
        assert!(why.starts_with(&format!("container aaaaaaaaaaaa of docker: {place}: ")), "{why}");
        assert!(why.contains(part), "{part}: {why}");
        // It is asked again.
        let before = engine.asked();
        answers.ask(&question).unwrap_err();
        assert!(engine.asked() > before, "{part}");
    }
}

#[test]
fn huge_or_late_answer_is_given_up() {
    let taken = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&taken);
    let huge = False::start(Box::new(move |_, to| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1_u64 << 40);
        let mut said = to.write_all(head.as_bytes());
        while said.is_ok() && count.fetch_add(65536, Relaxed) < 16 * LARGEST {
            said = to.write_all(&[b' '; 65536]);
        }
    }));
    let why = Answers::default().ask(&huge.question('a')).unwrap_err();
    assert!(why.contains("at most 4194304 bytes"), "{why}");
    assert!((LARGEST..4 * LARGEST).contains(&taken.load(Relaxed)), "{taken:?} of it is read");
    // Nothing, a part of a head, a part of a body: then silence, without an end.
    for text in ["", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"] {
        let open = Mutex::new(Vec::new());
        let silent = False::start(Box::new(move |_, to| {
            to.write_all(text.as_bytes()).unwrap();
            open.lock().unwrap().push(to.try_clone().unwrap());
        }));
        let Question { container, api, .. } = silent.question('a');
        let begin = Instant::now();
        let why = ask(&container, &api.unwrap(), Duration::from_millis(200)).unwrap_err();
        assert!(why.contains("no answer within 0.2 s; remedy: see why"), "{why}");
        let waited = begin.elapsed();
        assert!(waited >= Duration::from_millis(200) && waited < TIME, "{waited:?}");
    }
}

#[test]
fn engine_that_is_not_there_has_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| Some(dir.path().join(name));
    let ask = |api| {
        Answers::default()
            .ask(&Question { container: container('a'), api, signatures: None })
            .unwrap_err()
    };
    let gone = UnixListener::bind(at("gone").unwrap()).unwrap();
    drop(gone);
    std::fs::write(at("file").unwrap(), "").unwrap();
    for (api, part) in [
        (at("none"), "remedy: start the engine, or correct `api` under [engine.docker]"),
        (at("gone"), "remedy: start the engine"),
        (at("file"), "this is no socket"),
        (None, "remedy: add `api`, the path of its socket, under [engine.docker]"),
    ] {
        let why = ask(api);
        assert!(
            why.starts_with("container aaaaaaaaaaaa of docker: ") && why.contains(part),
            "{why}"
        );
    }
}

#[test]
fn fuzz_engine_accepts_and_refuses() {
    let (container, image) = (
        json!({ "Id": "0a".repeat(32), "Image": image(), "Config": { "Labels": of_container() } }),
        [built(&Value::Null), built(&of_image()), built(&of_container())],
    );
    let seeds = image.map(|image| format!("{container}\0{image}").into_bytes());
    let (mut random, mut accepted) = (Random::new(7), [0_u32; 2]);
    for seed in &seeds {
        assert!(fuzz_engine(seed));
    }
    for _ in 0..20_000 {
        accepted[usize::from(fuzz_engine(&random.mutated(&seeds)))] += 1;
    }
    assert!(accepted.iter().all(|count| *count > 100), "{accepted:?}");
}
