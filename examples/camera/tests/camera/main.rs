//! Camera, processor and viewer as processes: the page shows what the camera has filmed, by both ways.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use camera::picture::{self, SCALE, SMALL_HEIGHT, SMALL_WIDTH, SQUARE};
use camera::processor_client::ProcessorClient;
use camera::{Frame, Way};
use partywall::parcel::{Attach, Draft, Owned, ParcelError};
use partywall_testkit::Host;
use tonic::{Code, Request};

/// More than anything takes on a busy machine.
const WITHIN: Duration = Duration::from_secs(60);

fn policy(descriptors: u32) -> String {
    format!(
        "[service.processor]\nregister = ['anyone']\n[service.processor.call]\n\
         anyone = {{ methods = ['*'], descriptors = {descriptors} }}\n"
    )
}

/// A process that ends with the value.
struct Program(Child);

impl Program {
    fn start(host: &Host, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_camera"));
        command.args(arguments).env("PARTYWALL_SOCKET", &host.socket);
        Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// The next line that it prints.
    fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        self.0.wait().unwrap();
    }
}

/// The body of an answer of the page.
fn get(page: &str, path: &str) -> Vec<u8> {
    let at = page.strip_prefix("http://").unwrap().trim_end_matches('/');
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    answer.split_off(end + 4)
}

/// Blue, green and red of a pixel of a picture.
fn pixel(bmp: &[u8], x: usize, y: usize) -> [u8; 3] {
    let at = 54 + (y * SMALL_WIDTH + x) * 3;
    bmp[at..at + 3].try_into().unwrap()
}

/// All of it is the camera's frame of the number that stands in it; that number.
fn check(bmp: &[u8]) -> u64 {
    assert_eq!(bmp.len(), 54 + SMALL_WIDTH * SMALL_HEIGHT * 3);
    let number = picture::number(|x, y| pixel(bmp, x, y)[1]);
    let mut frame = vec![0; picture::BYTES];
    picture::draw(&mut frame, None, number);
    let (words, _) = frame.as_chunks();
    let drawn = picture::bmp(&picture::shrink(|at| u64::from_ne_bytes(words[at])), None);
    let orange = [0, 140, 255];
    let other = (0..SMALL_WIDTH * SMALL_HEIGHT).map(|at| (at % SMALL_WIDTH, at / SMALL_WIDTH));
    let other = other.filter(|&(x, y)| ![pixel(&drawn, x, y), orange].contains(&pixel(bmp, x, y)));
    assert_eq!(other.count(), 0, "frame {number}");
    number
}

async fn client(host: &Host) -> ProcessorClient<partywall::Channel> {
    let endpoint = partywall::Endpoint::from_static("partywall:///processor");
    let endpoint = endpoint.coordinator(&host.socket).wait_for_ready(true);
    ProcessorClient::new(endpoint.connect().await.unwrap())
}

/// The values of the page, when they are as wanted.
fn values(page: &str, wanted: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let begin = Instant::now();
    loop {
        let values = serde_json::from_slice(&get(page, "/figures")).unwrap();
        if wanted(&values) {
            return values;
        }
        assert!(begin.elapsed() < WITHIN, "{values:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_page_shows_what_the_camera_films_by_both_ways() {
    let host = Host::with(&policy(1));
    let socket = tempfile::tempdir().unwrap();
    let socket = socket.path().join("processor.sock");
    let grpc = ["--grpc", socket.to_str().unwrap()];
    let _processor = Program::start(&host, &[&["process"][..], &grpc].concat());
    let mut viewer = Program::start(&host, &["view", "--port", "0"]);
    let page = viewer.line();
    let html = String::from_utf8(get(&page, "/")).unwrap();
    assert!(html.contains(r#"<td id="parcel-rate">–</td>"#), "nothing is known yet: {html}");
    // Two seconds have one whole one.
    let film = ["film", "--turn", "2", "--rate", "20"];
    let _camera = Program::start(&host, &[&film[..], &grpc].concat());

    let both = |values: &serde_json::Value| {
        ["parcel", "message"].iter().all(|way| values[format!("{way}-rate")] != "–")
    };
    let shown = values(&page, both);
    for (way, copies) in [("parcel", "0"), ("message", "4")] {
        let number = check(&get(&page, &format!("/picture/{way}")));
        assert!(number > 0, "{way}");
        let value = |key: &str| shown[format!("{way}-{key}")].as_str().unwrap();
        assert_eq!(value("copies"), copies);
        let figure = |key: &str| {
            let word = value(key).split(' ').next().unwrap();
            word.parse::<f64>().unwrap_or_else(|_| panic!("{way}: {key} of {shown:#}"))
        };
        let due = figure("rate") + figure("dropped");
        assert!((19.7..=20.3).contains(&due), "{way}: {shown:#}");
        assert!(
            figure("rate") > 0.0 && figure("time") > 0.0 && figure("camera") > 0.0,
            "{shown:#}"
        );
        assert!(figure("processor") > 0.0 && figure("brightness") > 16.0, "{shown:#}");
    }
    // What is filmed goes on: other frames come, and the page without a script has the same values.
    let later = values(&page, |now| both(now) && now["parcel-frame"] != shown["parcel-frame"]);
    assert_ne!(later["parcel-frame"], shown["parcel-frame"]);
    let html = String::from_utf8(get(&page, "/")).unwrap();
    assert!(!html.contains("<td id=\"parcel-rate\">–") && !html.contains("{parcel"), "{html}");
}

#[tokio::test]
async fn a_frame_in_a_parcel_is_seen_where_it_lies() {
    let host = Host::with(&policy(1));
    let _processor = Program::start(&host, &["process"]);
    let mut client = client(&host).await;
    let mut owned = Owned::new(picture::BYTES).unwrap();
    for (turn, number, after) in [(1, 100, 0), (1, 103, 1), (2, 110, 2)] {
        let before = (number != 100).then_some(if number == 103 { 100 } else { 103 });
        owned.write(|pixels| picture::draw(pixels, before, number));
        let mut request = Request::new(Frame { number, turn, ..Frame::default() });
        request.attach(&owned);
        client.process(request).await.unwrap();
        let view = client.next(camera::NextRequest { after }).await.unwrap().into_inner();
        assert_eq!((view.way(), view.frame, view.number), (Way::Parcel, number, after + 1));
        check(&picture::bmp(&view.picture, view.motion.as_ref()));
        // The first of a turn has none before it.
        let motion = (number == 103).then(|| {
            let [(left, top), (right, bottom)] = [100, 103].map(picture::square);
            let side = |from: usize, to: usize| ((to - from + SQUARE) / SCALE) as u32;
            let at = |side: usize| (side / SCALE) as u32;
            camera::Area {
                left: at(left),
                top: at(top),
                width: side(left, right),
                height: side(top, bottom),
            }
        });
        assert_eq!(view.motion, motion, "{number}");
    }
}

/// Puts something beside a frame, or into it.
type Attaching<'a> = &'a dyn Fn(&mut Request<Frame>);

/// What is no frame is refused, and a frame that the camera writes again has changed; the next one is seen.
#[tokio::test]
async fn what_is_no_whole_frame_is_refused() {
    let host = Host::with(&policy(2));
    let _processor = Program::start(&host, &["process"]);
    let mut client = client(&host).await;
    let mut short = Owned::new(picture::BYTES - 1).unwrap();
    short.write(|pixels| pixels.fill(1));
    let mut written = Owned::new(picture::BYTES).unwrap();
    written.write(|pixels| pixels.fill(1));
    let stale = written.view();
    written.write(|pixels| pixels.fill(2));
    let sealed = Draft::new(picture::BYTES).unwrap().seal().unwrap();
    let mut ask = async |attach: Attaching<'_>| {
        let mut request = Request::new(Frame { number: 1, turn: 1, ..Frame::default() });
        attach(&mut request);
        client
            .process(request)
            .await
            .map(drop)
            .map_err(|status| (status.code(), status.message().to_owned()))
    };
    let no_frame = (Code::InvalidArgument, "no frame".to_owned());
    let refused: [Attaching<'_>; 5] = [
        &|_| {},
        &|request| request.attach(&short),
        &|request| request.attach(sealed.clone()),
        &|request| (0..2).for_each(|_| request.attach(&written)),
        &|request| request.get_mut().pixels = vec![1; 1000].into(),
    ];
    for attach in refused {
        let (code, text) = ask(attach).await.unwrap_err();
        assert_eq!((code, text.split(':').next().unwrap().to_owned()), no_frame);
    }
    let changed = ask(&|request| request.attach(stale.clone())).await.unwrap_err();
    assert_eq!(changed, (Code::Aborted, ParcelError::Changed.to_string()));
    ask(&|request| request.attach(&written)).await.unwrap();
}

#[test]
fn mistakes_of_the_commands_name_the_remedy() {
    let host = Host::with(&policy(0));
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_camera"));
        let out = command.args(arguments).env("PARTYWALL_SOCKET", &host.socket).output().unwrap();
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        String::from_utf8(out.stderr).unwrap()
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let said = run(&["view", "--port", &port]);
    assert!(said.contains(&port) && said.contains("remedy: another `--port`"), "{said}");
    let said = run(&["process", "--grpc", "/no/such/directory/s"]);
    assert!(said.contains("/no/such/directory/s") && said.contains("remedy"), "{said}");
    let _processor = Program::start(&host, &["process"]);
    let said = run(&["film", "--grpc", "/no/such/directory/s"]);
    assert!(said.contains("no gRPC at /no/such") && said.contains("remedy"), "{said}");
    let said = run(&["film"]);
    assert!(said.contains("`descriptors = 1`"), "{said}");
}
