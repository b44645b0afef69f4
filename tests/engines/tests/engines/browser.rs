//! A browser that shows a page: Chromium, and Chromium's own driver, which is asked over WebDriver: HTTP and
//! JSON.
//!
//! The time of the page is the real one: whoever looks for something there asks until it has come. The driver
//! is the first process of a PID namespace, so all processes of the browser end with it, wherever a test
//! fails.

use std::error::Error;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::engine::processes_with;

/// How long the driver may take for an answer, and a page until it has what is looked for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Chromium with one window; ended with the value.
pub struct Browser {
    driver: Child,
    /// Where the driver listens.
    address: String,
    /// The path of what is asked of this window.
    session: String,
    runtime: Runtime,
    /// All that both write.
    dir: tempfile::TempDir,
}

impl Browser {
    pub fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("pw-browser-").tempdir().unwrap();
        let here = dir.path();
        let said = File::create(here.join("said")).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["chromedriver", "--port=0"]);
        command.arg(format!("--log-path={}", here.join("log").display()));
        command.env("HOME", here).env("TMPDIR", here).stdin(Stdio::null());
        command.stdout(said.try_clone().unwrap()).stderr(said);
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let driver = command.spawn().unwrap();
        let [address, session] = [const { String::new() }; 2];
        let mut browser = Self { driver, address, session, runtime, dir };
        browser.address = format!("127.0.0.1:{}", browser.wait_for_port());
        // It is root's here, and shows nothing but the page of a test.
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--window-size=1200,1000",
            &format!("--user-data-dir={}", browser.dir.path().join("user").display()),
        ];
        let wanted = json!({
            "browserName": "chrome",
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let wanted = json!({ "capabilities": { "alwaysMatch": wanted } });
        let session = browser.ask(Method::POST, "/session", &wanted);
        browser.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        browser
    }

    /// Waits until the driver listens, and says where.
    fn wait_for_port(&mut self) -> u16 {
        let begin = Instant::now();
        loop {
            let said = fs::read_to_string(self.dir.path().join("said")).unwrap();
            let port = said.split_once("successfully on port ").and_then(|(_, rest)| {
                // Its whole line is there.
                rest.split_once(".\n")?.0.parse().ok()
            });
            if let Some(port) = port {
                return port;
            }
            // `cargo xtask setup` installs it.
            let ended = self.driver.try_wait().unwrap();
            assert!(ended.is_none(), "chromedriver has ended, {ended:?}: {said}");
            assert!(begin.elapsed() < PATIENCE, "chromedriver does not listen: {said}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Opens a page, and waits until it is loaded.
    pub fn open(&self, page: &str) {
        self.ask_window(Method::POST, "/url", &json!({ "url": page }));
    }

    /// Waits until the page is as a test wants it: its elements, as they are then.
    pub fn wait_for(&self, what: &str, is_there: impl Fn(&str) -> bool) -> String {
        let begin = Instant::now();
        loop {
            let dom = self.ask_window(Method::GET, "/source", &Value::Null);
            let dom = dom.as_str().unwrap();
            if is_there(dom) {
                return dom.to_owned();
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "the page has no {what} after {PATIENCE:?}; complaints: {:?}; the page: {dom}",
                self.complaints()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the window shows, as a PNG file.
    pub fn picture(&self) -> Vec<u8> {
        let picture = self.ask_window(Method::GET, "/screenshot", &Value::Null);
        BASE64_STANDARD.decode(picture.as_str().unwrap()).unwrap()
    }

    /// What has come to the page's console since this was asked last.
    pub fn complaints(&self) -> Vec<String> {
        let log = self.ask_window(Method::POST, "/se/log", &json!({ "type": "browser" }));
        log.as_array().unwrap().iter().map(Value::to_string).collect()
    }

    /// Has Chromium end in good order.
    pub fn end(self) {
        self.ask_window(Method::DELETE, "", &Value::Null);
    }

    fn ask_window(&self, method: Method, what: &str, body: &Value) -> Value {
        self.ask(method, &format!("{}{what}", self.session), body)
    }

    /// Asks the driver, which has to do it.
    fn ask(&self, method: Method, path: &str, body: &Value) -> Value {
        let asked = format!("{method} {path}");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder().method(method).uri(path).header(HOST, &self.address);
        let request = request.header(CONTENT_TYPE, "application/json");
        let request = request.body(Full::<Bytes>::from(body)).unwrap();
        let answer = async {
            let stream = TcpStream::connect(&self.address).await?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            let answer = sender.send_request(request).await?;
            let status = answer.status();
            let body = answer.into_body().collect().await?.to_bytes();
            let mut body: Value = serde_json::from_slice(&body)?;
            if !status.is_success() {
                return Err(format!("{status}: {body}").into());
            }
            Ok::<_, Box<dyn Error>>(body["value"].take())
        };
        let answer = self.runtime.block_on(async { timeout(PATIENCE, answer).await });
        let answer = answer.unwrap_or_else(|_| Err(format!("no answer in {PATIENCE:?}").into()));
        answer.unwrap_or_else(|why| panic!("{asked}: {why}; the driver's log: {}", self.log()))
    }

    /// The end of what the driver has logged.
    fn log(&self) -> String {
        let log = fs::read(self.dir.path().join("log")).unwrap();
        String::from_utf8_lossy(&log[log.len().saturating_sub(10_000)..]).into_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends with `unshare`, and all others of the namespace with the driver.
        let _gone = self.driver.kill();
        let _status = self.driver.wait();
        let here = self.dir.path().display().to_string();
        let begin = Instant::now();
        let left = loop {
            let left = processes_with(&here);
            if left.is_empty() || begin.elapsed() > Duration::from_secs(10) {
                break left;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        if !std::thread::panicking() {
            assert!(left.is_empty(), "left of the browser: {left:?}");
        }
    }
}
