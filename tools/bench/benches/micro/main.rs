//! What one step costs, in nanoseconds: all within one thread of one process, so that little beside the
//! code decides. A run takes ten seconds, and says what has changed since the one before.
//!
//! ```sh
//! cargo bench -p partywall-bench --bench micro
//! ```
//!
//! | benchmark | what is measured |
//! |---|---|
//! | `ring/N` | a record of N bytes: pushed, looked for, read, released |
//! | `ring/nothing` | a look at a ring that holds nothing |
//! | `ring/bell` | what a writer does for a reader that is awake |
//! | `call/protocol` | a unary call by the protocol alone: what both ends ask their connections |
//! | `call/empty` | a unary call by its stubs, its service a task of the same runtime |
//! | `gate/none` | a thread goes into a domain and comes back |
//!
//! Figures for documents come from `partywall-bench`, which measures two processes.

use std::fs::File;
use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};
use partywall_abi::domain::GateStatus;
use partywall_abi::layout::Geometry;
use partywall_abi::security::Isolation;
use partywall_domain::address_space::AddressSpace;
use partywall_domain::task::{Domain, Program};
use partywall_interop::proto::Empty;
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_interop::service::{Handle, test_service_with};
use partywall_shm::setup::local_pair;

mod launcher;
mod protocol;

/// A launcher's threads have no restartable sequences (docs/isolation-levels.md).
const TUNABLES: [&str; 2] = ["GLIBC_TUNABLES", "glibc.pthread.rseq=0"];

const LIMIT: Duration = Duration::from_secs(3);

fn main() {
    let [name, value] = TUNABLES;
    if std::env::var_os(name).is_none_or(|set| set != value) {
        let own = std::env::current_exe().expect("a path of its own");
        let error = Command::new(own).args(std::env::args_os().skip(1)).env(name, value).exec();
        panic!("this program cannot be started again: {error}");
    }
    let mut criterion = Criterion::default()
        .without_plots()
        .sample_size(40)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(900))
        .configure_from_args();
    ring(&mut criterion);
    call(&mut criterion);
    gate(&mut criterion);
    criterion.final_summary();
}

fn ring(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring");
    let (mut ours, mut theirs) = local_pair(Geometry::DEFAULT).expect("a link");
    let mut buffer = Vec::with_capacity(4096);
    for len in [32, 1024] {
        let payload = vec![7; len];
        group.bench_function(BenchmarkId::from_parameter(len), |bencher| {
            bencher.iter(|| {
                assert!(
                    ours.producer.try_push(5, 0, 1, &[black_box(&payload)]).expect("its rules")
                );
                let record = theirs.consumer.peek().expect("its rules").expect("a record");
                buffer.clear();
                theirs.consumer.read(&mut buffer);
                theirs.consumer.release();
                assert_eq!(record.len as usize, black_box(&buffer).len());
            });
        });
    }
    group.bench_function("nothing", |bencher| {
        bencher.iter(|| assert!(theirs.consumer.peek().expect("its rules").is_none()));
    });
    group.bench_function("bell", |bencher| {
        bencher.iter(|| ours.producer.notify().expect("its rules"));
    });
    group.finish();
}

fn call(criterion: &mut Criterion) {
    let mut protocol = protocol::Protocol::new();
    criterion.bench_function("call/protocol", |bencher| bencher.iter(|| protocol.call()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    partywall::allow_spinning(false);
    let mut client = runtime.block_on(async {
        let service = test_service_with(Handle::default());
        let channel = partywall::Server::builder().add_service(service).in_process();
        TestServiceClient::new(channel.expect("a channel"))
    });
    criterion.bench_function("call/empty", |bencher| {
        bencher.iter_custom(|calls| {
            runtime.block_on(async {
                let begin = Instant::now();
                for _ in 0..calls {
                    black_box(client.empty_call(Empty {}).await.expect("an answer"));
                }
                begin.elapsed()
            })
        });
    });
}

fn gate(criterion: &mut Criterion) {
    let space = AddressSpace::new(Isolation::None).expect("a space for domains");
    let (ours, theirs) = rustix::pipe::pipe().expect("a pipe");
    let null: OwnedFd = File::open("/dev/null").expect("/dev/null").into();
    let program = Program {
        image: compiled(),
        args: vec!["callee".into()],
        environment: Vec::new(),
        directory: "/".into(),
        descriptors: vec![null, theirs.try_clone().expect("a descriptor"), theirs],
    };
    let _domain = Domain::start(&space, program).expect("a domain");
    let mut line = String::new();
    BufReader::new(File::from(ours)).read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    let guest = launcher::launcher(&space);
    let link = guest.take(7).expect("the link that it offers");
    let call = || guest.call(link, [black_box(3), 4, 5], LIMIT);
    // Its thread may not have parked yet.
    let begin = Instant::now();
    while call() == Err(GateStatus::Busy) {
        assert!(begin.elapsed() < LIMIT, "no thread is lent");
    }
    criterion.bench_function("gate/none", |bencher| {
        bencher.iter(|| assert_eq!(call(), Ok(12)));
    });
}

/// The callee, ready to be loaded.
fn compiled() -> OwnedFd {
    use std::io::Write;
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("callee");
    let compiler = Command::new("cc")
        .args(["-static-pie", "-O2", "-mno-red-zone", "-pthread", "-Wall", "-Werror", "-I"])
        .arg(here.join("../../crates/guest/include"))
        .arg("-o")
        .arg(&out)
        .arg(here.join("benches/micro/callee.c"))
        .status();
    assert!(compiler.expect("cc starts").success());
    let image = rustix::fs::memfd_create("callee", rustix::fs::MemfdFlags::ALLOW_SEALING);
    let mut image = File::from(image.expect("a memfd"));
    image.write_all(&std::fs::read(out).expect("what cc has made")).expect("room");
    use rustix::fs::SealFlags;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&image, seals).expect("seals");
    image.into()
}
