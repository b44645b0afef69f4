//! Callers that go away while the host does what they have asked for: a host in this process, and futures that
//! are dropped.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use partywall_fn_host::host::{Code, Deployment, Host, Settings};
use partywall_fn_host::policy::{Caller, Policy};
use partywall_functions::clock::Exactness;
use partywall_functions::dispatcher::{Preemption, Workers};
use partywall_functions::isolation::Wanted;
use partywall_functions::runtime;
use partywall_functions::source::File;

use crate::says;

const PATIENCE: Duration = Duration::from_secs(60);

fn start(directory: &std::path::Path) -> (Arc<Host>, Caller) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700)).unwrap();
    let uid = rustix::process::geteuid().as_raw();
    let workers = Workers {
        program: vec![env!("CARGO_BIN_EXE_partywall-worker").into()],
        cpus: vec![None],
        exactness: Exactness::Exact,
        preemption: Preemption::Timer(Duration::from_micros(100)),
        resident: 64 << 20,
        recycle: u32::MAX,
        processes: 1,
        isolation: Wanted::Prefer,
        archive: directory.into(),
    };
    let settings = Settings {
        directory: directory.into(),
        policy: Policy::of_user(uid),
        runtime: runtime::Settings { cpu: None, blocks: 1, workers },
        rustc: "rustc".into(),
        sandbox: vec![env!("CARGO_BIN_EXE_partywall").into(), "fn-sandbox".into()],
        coordinator: None,
    };
    (Host::start(settings).unwrap(), Caller::Process { uid, principals: Vec::new() })
}

fn deployment(code: Code) -> Deployment {
    Deployment {
        name: "f".into(),
        owner: String::new(),
        code,
        budget_us: 0,
        idempotent: false,
        parameters: Default::default(),
        secrets: Default::default(),
    }
}

fn sources(text: &str) -> Deployment {
    deployment(Code::Sources(vec![File { path: "main.rs".into(), text: says(text) }]))
}

/// The version that is called, if there is the function.
fn called(host: &Host) -> Option<u32> {
    let listed = host.list(None).unwrap();
    listed.first().map(|function| function.record.current)
}

/// Has a question begin, and drops it when it has gone on so often.
fn drop_after(polls: u32, question: impl Future) {
    let mut question = pin!(question);
    for _ in 0..polls {
        let mut context = Context::from_waker(Waker::noop());
        if question.as_mut().poll(&mut context).is_ready() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn wait(what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What is on disk is what is called, wherever in a change its caller goes.
#[test]
fn a_change_is_whole_when_its_caller_has_gone() {
    let directory = tempfile::tempdir().unwrap();
    let tokio = tokio::runtime::Runtime::new().unwrap();
    let _entered = tokio.enter();
    let (host, caller) = start(directory.path());
    tokio.block_on(host.deploy(&caller, sources("one"))).unwrap();
    let image = host.fetch(&caller, "f", 1).unwrap();
    for polls in 0..5 {
        drop_after(polls, host.deploy(&caller, deployment(Code::Image(image.clone()))));
    }
    // Later changes come behind those that have begun.
    let (last, _) = tokio.block_on(host.deploy(&caller, sources("last"))).unwrap();
    assert!(last.current > 2, "none of them has come as far as its commit");
    let before = last.current;
    for polls in 1..4 {
        drop_after(polls, host.roll_back(&caller, "f", 1));
        wait("a version that is the current one on disk is not called", || {
            called(&host) == Some(1)
        });
        drop_after(polls, host.ban(&caller, "f", true));
        wait("a ban on disk is none for callers", || host.list(None).unwrap()[0].record.is_banned);
        tokio.block_on(host.ban(&caller, "f", false)).unwrap();
        tokio.block_on(host.roll_back(&caller, "f", before)).unwrap();
    }
    drop_after(1, host.remove(&caller, "f"));
    wait("a function that is removed on disk is called", || called(&host).is_none());
}

/// A build that nobody waits for is one all the same.
#[test]
fn a_build_is_its_owners_until_it_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let tokio = tokio::runtime::Runtime::new().unwrap();
    let _entered = tokio.enter();
    let (host, caller) = start(directory.path());
    drop_after(2, host.deploy(&caller, sources("given up")));
    let second = tokio.block_on(host.deploy(&caller, sources("second"))).unwrap_err();
    assert_eq!(second.code(), tonic::Code::ResourceExhausted, "{second}");
    assert_eq!(called(&host), None);
    let since = Instant::now();
    while let Err(status) = tokio.block_on(host.deploy(&caller, sources("third"))) {
        assert!(status.code() == tonic::Code::ResourceExhausted, "{status}");
        assert!(since.elapsed() < PATIENCE, "the build that was given up does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(called(&host), Some(1), "nothing comes of a build that was given up");
}
