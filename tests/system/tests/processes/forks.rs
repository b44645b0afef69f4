#![allow(unsafe_code, reason = "fork(2)")]
//! Processes that leave copies of themselves: a copy has their sockets, and nobody sees a hang-up. It has no
//! memory that its parent writes for others.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use partywall::parcel::{Draft, Lease, Owned, ParcelError};
use partywall_interop::proto::SimpleRequest;
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_system_tests::{connect, request};
use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};
use tonic::Code;

use partywall_testkit::{Host, alone};

use crate::SERVER;

/// How long until a death is heard of.
const IN_TIME: Duration = Duration::from_secs(1);

#[test]
fn death_is_noticed_while_a_forked_copy_lives() {
    let _alone = alone();
    let host = Host::open();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let dies = host.start(SERVER, &[]);
        host.until_served();
        let mut client = TestServiceClient::new(connect(&host.socket).await);
        let mut blocking = {
            let socket = host.socket.clone();
            tokio::task::spawn_blocking(move || {
                partywall::blocking::Channel::connect(
                    partywall::Endpoint::from_static("partywall:///test").coordinator(socket),
                )
                .unwrap()
            })
            .await
            .unwrap()
        };
        let mut copy = tonic::Request::new(request(1, 32));
        copy.metadata_mut().insert("x-fail", "copy".parse().unwrap());
        client.unary_call(copy).await.unwrap();
        let (_requests, requests) = tokio::sync::mpsc::channel(1);
        let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
        let mut stream = client.full_duplex_call(requests).await.unwrap().into_inner();
        let _other = host.start(SERVER, &[]);
        let start = Instant::now();
        dies.kill();
        let ended = tokio::time::timeout(IN_TIME, stream.message()).await.expect("no word of it");
        assert_eq!(ended.unwrap_err().code(), Code::Unavailable);
        assert!(start.elapsed() < IN_TIME);
        // The next call is the other one's.
        let call = client.unary_call(request(2, 32));
        tokio::time::timeout(Duration::from_secs(10), call).await.expect("a call hangs").unwrap();
        let again = tokio::task::spawn_blocking(move || {
            let call = tonic::Request::new(request(3, 32));
            blocking.unary::<SimpleRequest, partywall_interop::proto::SimpleResponse>(
                "/grpc.testing.TestService/UnaryCall",
                call,
            )
        });
        again.await.unwrap().unwrap();
    });
}

/// How a copy of this process ends that does this, and exits with 0 if that is right.
fn copied(does: impl FnOnce() -> bool) -> WaitStatus {
    ended(copy(does))
}

/// A copy of this process that does this, and exits with 0 if that is right.
fn copy(does: impl FnOnce() -> bool) -> Pid {
    // SAFETY: the child does nothing but `does`, which takes no lock and allocates nothing, and _exit(2).
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = i32::from(!does());
        // SAFETY: nothing that is to run at the end of the process runs in its copy.
        unsafe { libc::_exit(code) };
    }
    Pid::from_raw(child).expect("a child")
}

fn ended(child: Pid) -> WaitStatus {
    waitpid(Some(child), WaitOptions::empty()).unwrap().expect("it has ended").1
}

#[test]
fn a_forked_copy_has_no_memory_that_its_parent_writes() {
    let _alone = alone();
    let (mut owned, mut lease) = (Owned::new(8192).unwrap(), Lease::new(8192).unwrap());
    owned.write(|bytes| bytes.fill(1));
    let view = owned.view();
    let reads = |byte| {
        let mut read = [0; 8192];
        view.read_at(0, &mut read).is_ok() && read == [byte; 8192]
    };
    assert!(reads(1));
    // What it may read it reads, until the owner writes.
    assert_eq!(copied(|| reads(1)).exit_status(), Some(0));
    let segv = Some(libc::SIGSEGV);
    let writes = copied(|| {
        owned.write(|bytes| bytes.fill(2));
        true
    });
    assert_eq!(writes.terminating_signal(), segv, "{writes:?}");
    let stores = copied(|| {
        lease.words()[0].store(5, Relaxed);
        true
    });
    assert_eq!(stores.terminating_signal(), segv, "{stores:?}");
    let loads = copied(|| {
        lease.read_at(4096, &mut [1; 8]);
        true
    });
    assert_eq!(loads.terminating_signal(), segv, "{loads:?}");
    // Its parent goes on.
    assert!(reads(1));
    owned.write(|bytes| bytes.fill(3));
    assert!(matches!(view.read_at(0, &mut [0; 1]), Err(ParcelError::Changed)));
    let mut read = [0; 8192];
    owned.view().read_at(0, &mut read).unwrap();
    assert_eq!(read, [3; 8192]);
    lease.write_at(8, &[1]);
    assert_eq!([0, 1].map(|number| lease.words()[number].load(Relaxed)), [0, 1]);
}

#[test]
fn a_draft_is_sealed_while_a_forked_copy_lives() {
    let _alone = alone();
    let mut draft = Draft::new(8192).unwrap();
    let (until, end) = rustix::pipe::pipe().unwrap();
    let lives = copy(|| rustix::io::read(&until, &mut [0; 1]) == Ok(1));
    draft.fill(1);
    let sealed = draft.seal().unwrap();
    rustix::io::write(&end, &[0]).unwrap();
    assert_eq!(ended(lives).exit_status(), Some(0));
    assert_eq!(*sealed, [1; 8192]);
    // What is sealed is a copy's as well.
    assert_eq!(copied(|| *sealed == [1; 8192]).exit_status(), Some(0));
}

/// Both would seal records by the same key and the same numbers: whoever has both would read them.
#[test]
fn row_42_a_forked_copy_of_a_sender_seals_nothing() {
    const PATH: &str = "/grpc.testing.TestService/EmptyCall";
    let _alone = alone();
    let uid = rustix::process::geteuid().as_raw();
    let host = Host::with(&format!(
        "[principal.me]\nuid = {uid}\n[service.test]\nregister = ['me']\nseal = 'required'\n\
         [service.test.call]\nme = ['*']\n"
    ));
    let _server = host.start(SERVER, &[]);
    host.until_served();
    let endpoint = partywall::Endpoint::from_static("partywall:///test");
    let endpoint = endpoint.coordinator(&host.socket).wait_for_ready(true);
    let mut channel = partywall::blocking::Channel::connect(endpoint).unwrap();
    assert_eq!(channel.server().unwrap().security().seal, partywall::Seal::Sealed);
    channel.call_bytes(PATH, b"").unwrap();
    let refused = copied(|| {
        let refused = channel.call_bytes(PATH, b"").unwrap_err();
        refused.message().contains("this process is a copy that fork(2) has made")
    });
    assert_eq!(refused.exit_status(), Some(0), "{refused:?}");
    // Its parent goes on, on the same link.
    let link = channel.server().unwrap().link();
    channel.call_bytes(PATH, b"").unwrap();
    assert_eq!(channel.server().unwrap().link(), link);
}
