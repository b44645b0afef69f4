//! What the tests of a worker need: it, and its dispatcher by hand.

use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use partywall_abi::function::{Completion, Input, Short, Submission, Task};
use partywall_functions::builder::{Builder, Layer, Toolchain};
use partywall_functions::clock::{Clock, Exactness};
use partywall_functions::dispatcher::worker::Worker;
use partywall_functions::dispatcher::{Preemption, Workers};
use partywall_functions::image::Image;
use partywall_functions::isolation::Wanted;
use partywall_functions::layout::Layout;
use partywall_functions::sandbox::Limits;
use partywall_functions::signed::{Made, Signed};
use partywall_functions::source::File;
use partywall_functions::store::{Loaded, Store};
use partywall_trust::SigningKey;

/// Builds as for anybody.
pub(crate) static BUILDER: LazyLock<Builder> = LazyLock::new(|| builder(&[]));

/// A builder without these layers.
pub(crate) fn builder(without: &[Layer]) -> Builder {
    let toolchain = Toolchain::of(Path::new("rustc")).unwrap();
    let sandbox = vec![env!("CARGO_BIN_EXE_functions-sandbox").to_owned()];
    Builder::new(toolchain, sandbox, Limits::default()).without_for_tests(without)
}

/// Where requests and replies are, among the payloads.
pub(crate) const IN: u32 = 0;
pub(crate) const OUT: u32 = 1024;
/// The room for a reply with its log lines.
pub(crate) const ROOM: u32 = 64 << 10;

/// A function that always answers the same.
pub(crate) const UPPER: &str =
    "pub fn handle(r: Request<'_>) -> Reply { Ok(r.text()?.to_uppercase().into_bytes()) }";

/// Safe code that reads any address, as the request says it (rust-lang/rust#25860).
pub(crate) const WILD: &str = "static UNIT: &'static &'static () = &&();\n\
     fn same<'a, 'b, T: ?Sized>(_: &'a &'b (), v: &'b mut T) -> &'a mut T { v }\n\
     fn longer<'a, 'b, T: ?Sized>(v: &'a mut T) -> &'b mut T {\n\
     let f: for<'x> fn(_, &'x mut T) -> &'b mut T = same; f(UNIT, v) }\n\
     enum Either<A, B> { A(Option<Box<A>>), B(Option<Box<B>>) }\n\
     #[inline(never)] fn turn<A, B>(either: &mut Either<A, B>, a: A) -> B {\n\
     let Either::B(b) = either else { unreachable!() };\n\
     let b = longer(b);\n\
     *either = Either::A(Some(Box::new(a)));\n\
     core::hint::black_box(either);\n\
     *b.take().unwrap() }\n\
     fn turned<A, B>(a: A) -> B { turn(core::hint::black_box(&mut Either::B(None)), a) }\n\
     pub fn handle(r: Request<'_>) -> Reply {\n\
     let address = usize::from_str_radix(r.text()?, 16).map_err(|_| Error::invalid(\"an address\"))?;\n\
     let place: &'static [u8; 8] = turned::<usize, _>(address);\n\
     Ok(core::hint::black_box(place).to_vec()) }";

/// The image of a function.
pub(crate) fn image(text: &str) -> Image {
    BUILDER.build(&[main_rs(text)]).unwrap().image
}

/// The same, signed by a key of this run.
pub(crate) fn signed(text: &str) -> Signed {
    signed_by(&BUILDER, text)
}

/// One that this builder has built.
pub(crate) fn signed_by(builder: &Builder, text: &str) -> Signed {
    static KEY: LazyLock<SigningKey> = LazyLock::new(SigningKey::generate);
    let built = builder.build(&[main_rs(text)]).unwrap();
    let made = Made::of(&built, "rustc");
    Signed::new("f", built.image, made, &KEY)
}

/// The only file of a function.
pub(crate) fn main_rs(text: &str) -> File {
    File { path: "main.rs".into(), text: text.into() }
}

/// So many workers, on any CPU.
pub(crate) fn workers(number: usize, exactness: Exactness) -> Workers {
    Workers {
        program: vec![env!("CARGO_BIN_EXE_functions-worker").to_owned()],
        cpus: vec![None; number],
        processes: 16,
        exactness,
        preemption: Preemption::Dispatcher,
        resident: 1 << 30,
        recycle: 10_000,
        isolation: Wanted::Prefer,
        archive: std::env::temp_dir(),
    }
}

/// A store, and one worker.
pub(crate) struct Host {
    pub(crate) store: Store,
    pub(crate) link: Worker,
    pub(crate) clock: Clock,
    calls: u64,
    /// Where what is submitted runs.
    pub(crate) cell: u16,
    /// The quanta that it has, of a worker with a timer.
    pub(crate) quanta: u16,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self::with(Exactness::Exact)
    }

    /// One whose functions see the time so.
    pub(crate) fn with(exactness: Exactness) -> Self {
        Self::of(&workers(1, exactness))
    }

    /// One with the first of these workers.
    pub(crate) fn of(workers: &Workers) -> Self {
        let layout = Layout::draw([std::process::id().into(), 7]);
        let store = Store::new(layout, 2).unwrap();
        let mut link = Worker::start(workers, 0, &store).unwrap();
        link.wait().unwrap();
        let clock = Clock::new(&store, workers.exactness).unwrap();
        Self { store, link, clock, calls: 0, cell: 0, quanta: 0 }
    }

    pub(crate) fn put(&mut self, text: &str) -> Loaded {
        self.load(&image(text))
    }

    pub(crate) fn load(&mut self, image: &Image) -> Loaded {
        self.store.put(image).unwrap().unwrap()
    }

    pub(crate) fn submit(&mut self, loaded: &Loaded, request: &[u8]) -> u32 {
        self.calls += 1;
        let mut payload = Vec::new();
        payload.extend(loaded.data.map(|data| data.to_bytes()).into_iter().flatten());
        payload.extend_from_slice(request);
        let input = match Short::new(&payload) {
            Some(short) if loaded.data.is_none() => Input::Short(short),
            _ => {
                self.link.write(IN, &payload);
                Input::Long { at: IN, parameters: 0, has_data: loaded.data.is_some() }
            }
        };
        self.link.submit(&Submission {
            task: Task::Invoke,
            cell: self.cell,
            entry: loaded.entry,
            quanta: self.quanta,
            call: self.calls,
            bytes: request.len() as u32,
            input,
            output: OUT,
            room: ROOM,
        })
    }

    /// The text of a reply or an error, and the log lines.
    pub(crate) fn said(&self, done: &Completion) -> (String, String) {
        let bytes = match done.short {
            Some(short) => short.bytes()[..done.bytes as usize].to_vec(),
            None => self.link.read(OUT, (done.bytes + done.log) as usize),
        };
        let (text, log) = bytes.split_at(done.bytes as usize);
        (String::from_utf8_lossy(text).into(), String::from_utf8_lossy(log).into())
    }

    /// Lets the function go on that waits in a cell, with its service's answer: a status code, and bytes.
    pub(crate) fn resume(&mut self, cell: u16, code: u32, answer: &[u8]) -> u32 {
        self.link.write(IN, answer);
        self.link.submit(&Submission {
            task: Task::Resume,
            cell,
            entry: 0,
            quanta: 0,
            call: 0,
            bytes: answer.len() as u32,
            input: Input::Long { at: IN, parameters: code, has_data: false },
            output: OUT,
            room: ROOM,
        })
    }

    pub(crate) fn wait(&mut self) -> Completion {
        let begun = Instant::now();
        loop {
            if let Some((_, completion)) = self.link.completion() {
                return completion;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{:?}",
                self.link.child().try_wait()
            );
        }
    }

    /// Bytes of cell 0 that are not zero when the last function was cleaned up behind.
    pub(crate) fn cell_bytes_in_use(&mut self) -> usize {
        let in_use = |host: &Self| host.link.cell(0).into_iter().filter(|byte| *byte != 0).count();
        // Cleaning comes after the completion.
        let begun = Instant::now();
        while in_use(self) != 0 && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
        in_use(self)
    }

    pub(crate) fn call(&mut self, loaded: &Loaded, request: &[u8]) -> Completion {
        self.submit(loaded, request);
        self.wait()
    }
}
