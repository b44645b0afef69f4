//! Bytes that no honest caller sends, over HTTP and to the page, and texts of functions that are to be shown.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use partywall_testkit::{Random, trials};

use crate::SHOUT;
use crate::rig::{Rig, Served, http, me, text};

/// A policy by which anybody on the network may call.
fn open() -> String {
    format!("[owner.\"{}\"]\ncall = [\"network\"]\n", me())
}

/// A host that answers calls and shows its page: where it does.
fn serve_both(rig: &Rig) -> (Served, SocketAddr, SocketAddr) {
    let file = rig.file("policy.toml", &open());
    let both = ["--policy", &file, "--http", "127.0.0.1:0", "--page", "127.0.0.1:0"];
    let served = rig.serve("state", &both);
    let (calls, page) = (served.address("calls at http://"), served.address("page at http://"));
    (served, calls, page)
}

/// Sends bytes and reads all that comes: the codes of the answers, and the whole.
fn send(at: SocketAddr, bytes: &[u8]) -> (Vec<u16>, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // One that is refused early is not read to its end.
    let _unread = stream.write_all(bytes);
    let mut all = Vec::new();
    let ended = stream.read_to_end(&mut all);
    let timed_out = ended.is_err_and(|why| why.kind() == std::io::ErrorKind::WouldBlock);
    assert!(!timed_out, "no end of {:?}", text(&bytes[..bytes.len().min(200)]));
    let all = text(&all);
    let codes = all.split("HTTP/1.1 ").skip(1).map(|rest| rest[..3].parse().unwrap()).collect();
    (codes, all)
}

/// Two ways to say where a request ends are refused: no part of a body is taken for another request.
#[test]
fn no_request_is_smuggled_in_another_ones_body() {
    let rig = Rig::new();
    let (_served, at) = rig.serve_http(&open());
    rig.deploy("shout", SHOUT, &[]);
    let inner =
        "POST /shout HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 8\r\n\r\nsmuggled";
    let whole =
        |head: &str, body: &str| format!("POST /shout HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n{body}");
    let chunked = "transfer-encoding: chunked";
    let length = inner.len();
    let both = format!("content-length: 5\r\n{chunked}");
    for (head, body) in [
        (format!("content-length: 4\r\ncontent-length: {length}"), inner.to_owned()),
        (format!("content-length: 4, {length}"), inner.to_owned()),
        ("content-length: +4".into(), inner.into()),
        ("content-length: -1".into(), inner.into()),
        ("content-length: 0x4".into(), inner.into()),
        ("content-length: 4 4".into(), inner.into()),
        ("content-length: 99999999999999999999999".into(), inner.into()),
        ("content-length : 4".into(), inner.into()),
        (" content-length: 4".into(), inner.into()),
        ("transfer-encoding: identity".into(), inner.into()),
        ("transfer-encoding: chunked, identity".into(), format!("0\r\n\r\n{inner}")),
        ("transfer-encoding: xchunked".into(), format!("0\r\n\r\n{inner}")),
        ("transfer-encoding : chunked".into(), format!("0\r\n\r\n{inner}")),
        (chunked.into(), format!("-1\r\n\r\n{inner}")),
        (chunked.into(), format!("fffffffffffffffff\r\n{inner}")),
        (chunked.into(), format!("4\r\nabcdXX\r\n0\r\n\r\n{inner}")),
        (chunked.into(), format!("four\r\nabcd\r\n0\r\n\r\n{inner}")),
        (chunked.into(), format!("4;{}\r\nabcd\r\n0\r\n\r\n{inner}", "x".repeat(100_000))),
        (chunked.into(), format!("4\nabcd\n0\n\n{inner}")),
        ("x: a\u{0}b".into(), inner.into()),
        ("x: a\rb\r\ncontent-length: 4".into(), inner.into()),
    ] {
        let (codes, all) = send(at, whole(&head, &body).as_bytes());
        assert!(!all.contains("SMUGGLED"), "{head:?} {all}");
        assert!(codes.len() <= 1 && codes.iter().all(|code| *code >= 400), "{head:?} {all}");
    }
    // Of both, the chunks count, and the connection ends behind them; so says RFC 9112.
    let (codes, all) = send(at, whole(&both, &format!("4\r\nabcd\r\n0\r\n\r\n{inner}")).as_bytes());
    let is_one = codes == [200] && all.ends_with("ABCD") && !all.contains("SMUGGLED");
    assert!(is_one || codes == [400], "{all}");
    // A chunk that is longer than all that will come is waited for, and is no request.
    let endless = whole(chunked, &format!("ffffffffffffffff\r\n{inner}"));
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(endless.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    assert!(!all.contains("SMUGGLED") && !all.contains("200 OK"), "{all}");
    // What is said right is two requests.
    let two = format!("{}{inner}", whole("content-length: 2", "ab"));
    let (codes, all) = send(at, two.as_bytes());
    assert!(codes == [200, 200] && all.contains("AB") && all.ends_with("SMUGGLED"), "{all}");
}

#[test]
fn heads_bodies_and_names_that_are_too_much_are_refused() {
    let rig = Rig::new();
    let (_served, at) = rig.serve_http(&open());
    rig.deploy("shout", SHOUT, &[]);
    let many = (0..5000).map(|n| format!("x{n}: y\r\n")).collect::<String>();
    let long = format!("x: {}\r\n", "y".repeat(1 << 20));
    for head in [many, long] {
        let (codes, all) = send(at, format!("POST /shout HTTP/1.1\r\n{head}\r\n").as_bytes());
        assert_eq!(codes, [431], "{all}");
    }
    let (codes, all) =
        send(at, format!("POST /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000)).as_bytes());
    assert!(codes.iter().all(|code| [404, 414].contains(code)), "{all}");
    // Beyond the limit by chunks, of which nobody has said how many there are.
    let chunk = format!("100000\r\n{}\r\n", "z".repeat(1 << 20));
    let body = chunk.repeat(9);
    let chunked =
        format!("POST /shout HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{body}");
    let (codes, _) = send(at, chunked.as_bytes());
    assert_eq!(codes, [413]);
    // Who sends all of it before it looks for an answer has one, and may ask again.
    let length = (16 << 20).to_string();
    let sized = format!("POST /shout HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
    let chunks = format!("{}0\r\n\r\n", chunk.repeat(16));
    let by_chunks = "POST /shout HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    for whole in [sized + &"z".repeat(16 << 20), by_chunks.to_owned() + &chunks] {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(whole.as_bytes()).unwrap();
        let last =
            "POST /shout HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi";
        stream.write_all(last.as_bytes()).unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        assert!(all.starts_with("HTTP/1.1 413") && all.ends_with("HI"), "{all}");
    }
    // Names are looked up as they are, and never are paths.
    for name in [
        "..",
        "../shout",
        "%2e%2e",
        "shout/..",
        "shout/",
        "/shout",
        "%00",
        "shout%00",
        "shout%0d%0ax:%20y",
        "%ff",
        "sh%6Fut%20",
        "shout?x=/../y/",
        "SHOUT",
        "*",
        "%2fshout",
        "shout%2f..",
        "<b>x",
        "%3Cscript%3E",
    ] {
        let answer = http(at, &format!("POST /{name}"), b"x");
        let is_it = name == "shout?x=/../y/";
        assert_eq!(answer.code == 200, is_it, "{name}: {answer:?}");
        assert!(is_it || [400, 404].contains(&answer.code), "{name}: {answer:?}");
        // What a name says is a text and no page, and no header.
        assert!(answer.header("x").is_none(), "{name}: {answer:?}");
        let kind = answer.header("content-type").unwrap_or("text/plain");
        assert!(!kind.contains("html"), "{name}: {answer:?}");
    }
    assert_eq!(http(at, "POST /shout", b"goes on").body, "GOES ON");
}

/// Whatever comes, the host answers the next one.
#[test]
fn random_bytes_over_http_and_to_the_page_end_nothing() {
    let rig = Rig::new();
    let (_served, calls, page) = serve_both(&rig);
    rig.deploy("shout", SHOUT, &[]);
    let mut random = Random::of_this_run();
    let seeds = [
        &b"POST /shout HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc"[..],
        b"POST /shout HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"GET /functions.json HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        b"GET http://elsewhere/../shout HTTP/1.0\r\n\r\n",
        b"CONNECT shout:80 HTTP/1.1\r\n\r\n",
        b"POST /shout HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\nupgrade: h2c\r\ncontent-length: 1\r\n\r\n",
    ];
    for round in 0..trials(2000) {
        let mut bytes = random.mutated(&seeds);
        if random.below(4) == 0 {
            bytes = random.bytes(2000);
        }
        for at in [calls, page] {
            let mut stream = TcpStream::connect(at).unwrap();
            let _unread = stream.write_all(&bytes);
            let _gone = stream.shutdown(Shutdown::Write);
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut all = Vec::new();
            let ended = stream.read_to_end(&mut all);
            let timed_out = ended.is_err_and(|why| why.kind() == std::io::ErrorKind::WouldBlock);
            assert!(!timed_out, "round {round}: {:?}", text(&bytes));
        }
    }
    assert_eq!(http(calls, "POST /shout", b"next").body, "NEXT");
    assert_eq!(http(page, "GET /", b"").code, 200);
}

/// Bodies that come slowly take a place of their own and hold no other caller up.
#[test]
fn slow_bodies_hold_no_other_caller_up() {
    let rig = Rig::new();
    let (_served, at) = rig.serve_http(&open());
    rig.deploy("shout", SHOUT, &[]);
    let begin = |_| {
        let mut stream = TcpStream::connect(at).unwrap();
        let head = "POST /shout HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 8388608\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(b"x").unwrap();
        stream
    };
    let slow: Vec<_> = (0..100).map(begin).collect();
    let begun = Instant::now();
    for _ in 0..10 {
        assert_eq!(http(at, "POST /shout", b"ok").body, "OK");
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    drop(slow);
    // One that is slow and whole is answered.
    let mut stream = TcpStream::connect(at).unwrap();
    for part in [
        "POST /shout HTTP/1.1\r\nhost: x\r\nconnec",
        "tion: close\r\ncontent-length: 4\r\n",
        "\r\na",
        "bc",
        "d",
    ] {
        stream.write_all(part.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    assert!(all.starts_with("HTTP/1.1 200") && all.ends_with("ABCD"), "{all}");
}

/// Texts of functions and names are shown as they are, and are never markup, headers or commands of a
/// terminal.
#[test]
fn what_functions_say_is_no_markup_and_no_header() {
    let rig = Rig::new();
    let (_served, calls, page) = serve_both(&rig);
    let evil = "<script>alert(1)</script>\\r\\nset-cookie: a=b\\r\\n\\u{1b}[2J\\u{0}";
    let says = format!(
        "pub fn handle(r: Request<'_>) -> Reply {{\n\
         log!(\"{evil}\");\n\
         match r.text()? {{\n\
         \"error\" => Err(Error::invalid(\"{evil}\")),\n\
         \"panic\" => panic!(\"{evil}\"),\n\
         _ => Ok(b\"<script>alert(1)</script>\".to_vec()) }}\n}}\n"
    );
    rig.deploy("says", &says, &[]);
    for (body, code) in [("error", 400), ("panic", 500), ("reply", 200)] {
        let answer = http(calls, "POST /says", body.as_bytes());
        assert_eq!(answer.code, code, "{answer:?}");
        assert!(answer.body.contains("<script>"), "{answer:?}");
        assert!(!answer.head.contains("set-cookie"), "{answer:?}");
        let kind = answer.header("content-type").unwrap();
        assert!(!kind.contains("html"), "{answer:?}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{answer:?}");
    }
    let log = rig.good(&["logs", "says"], "");
    assert!(log.contains("<script>") && !log.contains('\u{1b}') && !log.contains('\0'), "{log:?}");
    assert!(!log.lines().any(|line| line.starts_with("set-cookie")), "{log:?}");
    for request in ["error", "panic"] {
        let (_, said) = rig.bad(&["invoke", "says", "--request", request], "");
        assert!(
            said.contains("<script>") && !said.contains('\u{1b}') && !said.contains('\0'),
            "{said:?}"
        );
    }
    // No name of a function can be markup, and the page has names and counts alone.
    for name in ["<b>x", "a\nb", "a\u{1b}[2J", "..", "a/b", "a\"b"] {
        let path = rig.file("f.rs", SHOUT);
        let (code, said) = rig.bad(&["deploy", &path, "--name", name], "");
        assert!(code == 2 && said.contains("is no name of a function"), "{name:?}: {said}");
    }
    let shown = http(page, "GET /functions.json", b"");
    assert_eq!(shown.header("content-type"), Some("application/json"));
    assert!(!shown.body.contains("script") && shown.body.contains("\"says\""), "{shown:?}");
    for path in ["/", "/page.js", "/functions.json"] {
        let answer = http(page, &format!("GET {path}"), b"");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
    }
    let script = http(page, "GET /page.js", b"").body;
    for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
        assert!(!script.contains(way), "{way}");
    }
}
