//! The example `camera` in containers: its page, as a browser shows it.

use std::io::{BufRead, BufReader, Cursor, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::browser::Browser;
use crate::engine::{Engine, Project, built, facts, finished, libraries, said};

/// Where the example is.
fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/camera")
}

/// The user of the viewer in the example's policy.
const DESK: u32 = 1000;

/// The viewer, on the host; ended with the value.
struct Viewer(Child);

impl Viewer {
    fn start(program: &Path, socket: &Path) -> (Self, String) {
        let mut command = Command::new(program);
        command.args(["view", "--port", "0"]).env("PARTYWALL_SOCKET", socket).uid(DESK).gid(DESK);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut page = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut page).unwrap();
        (Self(child), page.trim().to_owned())
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        self.0.wait().unwrap();
    }
}

/// Waits until figures of both ways are known.
fn wait_for_figures(page: &str) {
    let at = page.trim_start_matches("http://").trim_end_matches('/');
    let begin = Instant::now();
    loop {
        let mut stream = TcpStream::connect(at).unwrap();
        let request = format!("GET /figures HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        if answer.starts_with("HTTP/1.1 200") && !answer.contains("-rate\":\"–\"") {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{answer}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What an element of the page has.
fn text<'d>(dom: &'d str, id: &str) -> &'d str {
    let (_, after) =
        dom.split_once(&format!("id=\"{id}\"")).unwrap_or_else(|| panic!("{id}: {dom}"));
    after.split(['<', '>']).nth(1).unwrap()
}

fn number(dom: &str, id: &str) -> f64 {
    let word = text(dom, id).split(' ').next().unwrap();
    word.parse().unwrap_or_else(|_| panic!("{id}: {word}"))
}

/// Each colour of the test picture fills much of both halves of what is shown.
fn assert_both_pictures(png: &[u8]) {
    let mut reader = png::Decoder::new(Cursor::new(png));
    reader.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = reader.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    let (width, bytes) = (info.width as usize, info.color_type.samples());
    let bars = ["yellow", "cyan", "green", "magenta", "red", "blue"];
    let colours = [[1, 1, 0], [0, 1, 1], [0, 1, 0], [1, 0, 1], [1, 0, 0], [0, 0, 1]];
    let mut found = [[0; 6]; 2];
    for (at, pixel) in pixels.chunks_exact(bytes).enumerate() {
        let is = |colour: &[u8; 3]| {
            // Three quarters of full: 191.
            colour.iter().zip(pixel).all(|(on, value)| value.abs_diff(on * 191) < 8)
        };
        if let Some(bar) = colours.iter().position(is) {
            found[usize::from(at % width > width / 2)][bar] += 1;
        }
    }
    for (half, found) in ["left", "right"].iter().zip(found) {
        for (bar, pixels) in bars.iter().zip(found) {
            // A bar has 60 x 262 in the small picture.
            assert!(pixels > 8000, "{half}: {pixels} pixels are {bar}");
        }
    }
}

#[test]
fn a_browser_shows_what_a_camera_in_a_container_films() {
    let engine = Engine::start();
    let program = built("camera", "camera");
    let dockerfile = std::fs::read_to_string(example().join("Dockerfile")).unwrap();
    engine.build("partywall/camera", &dockerfile, &program, &libraries(&program));
    let project = Project::new(&engine, "camera", &[]);
    std::fs::copy(example().join("containers.yaml"), project.file()).unwrap();
    project.up(&["--policy", example().join("policy.toml").to_str().unwrap()]);
    let (_viewer, page) = Viewer::start(&program, &project.socket());

    wait_for_figures(&page);
    let browser = Browser::start();
    browser.open(&page);
    let dom = browser.wait_for("figures and second pictures by its script", |dom| {
        // The script has asked for another picture, since the first has come.
        let is_asked = |way: &&str| dom.contains(&format!("/picture/{way}?"));
        text(dom, "updated").starts_with("Updated at") && ["parcel", "message"].iter().all(is_asked)
    });
    assert_eq!(text(&dom, "fault"), "");
    for (way, copies) in [("parcel", 0.0), ("message", 4.0)] {
        let number = |key: &str| number(&dom, &format!("{way}-{key}"));
        assert_eq!(number("copies"), copies, "{way}");
        assert!(number("frame") > 0.0 && number("rate") > 0.0, "{way}: {dom}");
        let due = number("rate") + number("dropped");
        assert!((59.0..=61.0).contains(&due), "{way}: {due}");
        assert!(number("camera") + number("processor") > 0.0, "{way}: {dom}");
    }
    assert_both_pictures(&browser.picture());
    assert_eq!(browser.complaints(), [""; 0], "the page's script complains");
    browser.end();

    let [camera, processor] = ["camera", "processor"].map(|name| facts(project.pid(name)));
    for namespace in ["ns ipc", "ns mnt", "ns net", "ns pid"] {
        assert_ne!(camera[namespace], processor[namespace], "{namespace}");
    }
    for (end, uid) in [(&camera, "1002"), (&processor, "1001")] {
        assert!(end["Uid"].starts_with(uid), "{}", end["Uid"]);
        assert!(end["mount /"].split(',').any(|option| option == "ro"), "{}", end["mount /"]);
    }
    let links = project.links();
    let of = |caller: &str| {
        let is = |link: &&serde_json::Value| {
            link["open"] == true && link["caller"]["principals"] == serde_json::json!([caller])
        };
        links.iter().find(is).unwrap_or_else(|| panic!("{caller}: {links:?}"))
    };
    assert_eq!(of("camera")["caller"]["container"], project.id("camera"));
    assert_eq!(of("viewer")["caller"]["uid"], DESK);
    for caller in ["camera", "viewer"] {
        assert_eq!(of(caller)["server"]["container"], project.id("processor"));
    }
    drop(_viewer);
    let (code, text) = finished(&mut project.order(&["down"]));
    assert_eq!(code, Some(0), "{text}");
    project.assert_nothing_left();
    said(&mut engine.docker(&["volume", "prune", "--force"]));
}
