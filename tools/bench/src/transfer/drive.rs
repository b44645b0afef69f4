//! The loops of both sides, for connections whose ends wait in a thread of their own.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::turn::{Reader, Turn};
use super::{clients, makers};
use crate::contender::Side;
use crate::error::Result;
use crate::memory::Held;
use crate::row::Figures;
use crate::seat::Seat;
use crate::stopwatch::Stopwatch;

/// One side's end of a connection. Each side passes and receives by turns, the client passes first.
pub trait End {
    /// Sets all bytes of a block for `turn`, and passes it to the other side.
    fn pass(&mut self, turn: Turn) -> Result<()>;

    /// Lets `reader` read the block that the other side passes. False if that has gone.
    fn receive(&mut self, reader: &mut Reader) -> Result<bool>;
}

/// After so many wrong blocks the sample is given up.
const WRONG_MAX: u64 = 1000;

/// The least data whose memory is looked at.
const MEMORY_MIN: u64 = 1 << 20;

/// How often memory is looked at, at least.
const LOOKS: u32 = 50;

/// Iterations of each client meanwhile, at least.
const LOOKED_AT: u64 = 2;

/// Serves the connections of `pairs`.
pub fn serve_pairs<E: End + 'static>(
    seat: &mut Seat,
    make: fn(OwnedFd, usize) -> Result<E>,
) -> Result<()> {
    let makers = makers(seat, Side::Server, make)?;
    serve(seat, makers)
}

/// Measures with the connections of `pairs`.
pub fn measure_pairs<E: End + 'static>(
    seat: &mut Seat,
    make: fn(OwnedFd, usize) -> Result<E>,
) -> Result<Figures> {
    let makers = makers(seat, Side::Client, make)?;
    measure(seat, makers)
}

/// Serves until the clients have gone, with an end of each maker.
pub fn serve<E: End + 'static>(
    seat: &Seat,
    makers: Vec<impl FnOnce() -> Result<E> + Send + 'static>,
) -> Result<()> {
    seat.note_idle()?;
    let bytes = seat.case().bytes();
    let (threads, made) = spawn(makers, move |end, client| answer(end, client, bytes));
    made.iter().collect::<Result<Vec<()>>>()?;
    seat.ready();
    join(threads)
}

/// Answers one client until that has gone.
fn answer(mut end: impl End, client: usize, bytes: usize) -> Result<()> {
    let mut turn = Turn::first(client);
    loop {
        let mut reader = Reader::new(turn, bytes);
        if !end.receive(&mut reader)? {
            return Ok(());
        }
        turn = turn.next();
        end.pass(if reader.is_right() { turn } else { turn.spoilt() })?;
        turn = turn.next();
    }
}

/// Runs the clients of a sample, with an end of each maker.
pub fn measure<E: End + 'static>(
    seat: &Seat,
    makers: Vec<impl FnOnce() -> Result<E> + Send + 'static>,
) -> Result<Figures> {
    let (case, idle) = (seat.case(), seat.idle()?);
    let mut starts = Vec::new();
    let started = makers.into_iter().map(|make| {
        let (start, started) = channel::<Start>();
        starts.push(start);
        move || Ok((make()?, started))
    });
    let makers: Vec<_> = started.collect();
    let run = move |(end, started): (E, Receiver<Start>), client| {
        iterate(end, client, case.bytes(), started.recv()?)
    };
    let (threads, made) = spawn(makers, run);
    made.iter().collect::<Result<Vec<()>>>()?;
    let count = Arc::new(Mutex::new(Count::new(seat.stopwatch()?)));
    let (is_over, over) = channel();
    for start in starts {
        start.send((Arc::clone(&count), is_over.clone()))?;
    }
    drop(is_over);
    let data = clients(&case) as u64 * case.bytes() as u64;
    let mut memory = [None; 3];
    // Where no thread says that the sample is over, all have failed.
    if over.recv().is_ok() && data >= MEMORY_MIN {
        memory = look(seat, &count, &threads)?.above(idle, data).map(Some);
    }
    lock(&count).is_finished = true;
    join(threads)?;
    let [pss_ratio, shmem_ratio, socket_ratio] = memory;
    let count = lock(&count);
    Ok(Figures { pss_ratio, shmem_ratio, socket_ratio, ..count.watch.figures(count.wrong) })
}

/// What a client starts with: what all count together, and where to say that the sample is over.
type Start = (Arc<Mutex<Count>>, Sender<()>);

/// Passes and receives until that is enough.
fn iterate(mut end: impl End, client: usize, bytes: usize, start: Start) -> Result<()> {
    let (count, is_over) = start;
    let clock = lock(&count).watch.ticker();
    let mut turn = Turn::first(client);
    loop {
        let begun = clock.now();
        end.pass(turn)?;
        let mut reader = Reader::new(turn.next(), bytes);
        if !end.receive(&mut reader)? {
            return Err("the server has gone".into());
        }
        let ended = clock.now();
        turn = reader.turn().next();
        let mut count = lock(&count);
        if !count.add(begun, ended, reader.is_right())? {
            // Nobody listens after the first.
            let _ = is_over.send(());
        }
        if count.is_finished {
            return Ok(());
        }
    }
}

/// What the clients of a sample count together.
struct Count {
    watch: Stopwatch,
    iterations: u64,
    wrong: u64,
    is_finished: bool,
}

impl Count {
    fn new(watch: Stopwatch) -> Self {
        Self { watch, iterations: 0, wrong: 0, is_finished: false }
    }

    /// Counts an iteration. False once the sample is complete.
    fn add(&mut self, begun: u64, ended: u64, is_right: bool) -> Result<bool> {
        self.iterations += 1;
        self.wrong += u64::from(!is_right);
        if self.wrong >= WRONG_MAX {
            return Err("too many wrong blocks".into());
        }
        Ok(self.watch.lap(begun, ended))
    }
}

fn lock(count: &Mutex<Count>) -> MutexGuard<'_, Count> {
    count.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most that is held while the clients go on.
fn look(seat: &Seat, count: &Mutex<Count>, threads: &[JoinHandle<Result<()>>]) -> Result<Held> {
    let others = seat.others();
    let enough = lock(count).iterations + LOOKED_AT * threads.len() as u64;
    let mut most = Held::default();
    for looks in 1.. {
        most = most.most(Held::look(&[std::process::id()])?.with(others.held()?));
        let is_enough = looks >= LOOKS && lock(count).iterations >= enough;
        if is_enough || threads.iter().any(JoinHandle::is_finished) {
            break;
        }
    }
    Ok(most)
}

/// Starts a thread for each maker. Each says whether it has made its end, and then runs with it.
fn spawn<E: 'static>(
    makers: Vec<impl FnOnce() -> Result<E> + Send + 'static>,
    run: impl FnOnce(E, usize) -> Result<()> + Clone + Send + 'static,
) -> (Vec<JoinHandle<Result<()>>>, Receiver<Result<()>>) {
    let (says, made) = channel();
    let mut threads = Vec::new();
    for (client, make) in makers.into_iter().enumerate() {
        let (says, run) = (says.clone(), run.clone());
        threads.push(thread::spawn(move || {
            let end = match make() {
                Ok(end) => end,
                // The error reaches whoever waits for all ends.
                Err(error) => return Ok(says.send(Err(error))?),
            };
            says.send(Ok(()))?;
            drop(says);
            run(end, client)
        }));
    }
    (threads, made)
}

fn join(threads: Vec<JoinHandle<Result<()>>>) -> Result<()> {
    threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::others::Others;
    use crate::stopwatch::Spans;
    use crate::sys::clock::Ticker;
    use crate::transfer::turn::PAGE;
    use std::time::Duration;

    const BYTES: usize = 3 * PAGE;

    /// A pair of queues; `damage` may change the block with this number that comes out.
    struct Queue {
        to: Sender<Vec<u8>>,
        from: Receiver<Vec<u8>>,
        received: usize,
        damage: fn(usize, &mut Vec<u8>),
    }

    impl End for Queue {
        fn pass(&mut self, turn: Turn) -> Result<()> {
            let mut block = vec![0; BYTES];
            turn.fill(&mut block);
            Ok(self.to.send(block)?)
        }

        fn receive(&mut self, reader: &mut Reader) -> Result<bool> {
            let Ok(mut block) = self.from.recv() else { return Ok(false) };
            (self.damage)(self.received, &mut block);
            self.received += 1;
            reader.read(&block);
            Ok(true)
        }
    }

    /// The figures of ten iterations, with what each side receives damaged so.
    fn wrong(server: fn(usize, &mut Vec<u8>), client: fn(usize, &mut Vec<u8>)) -> u64 {
        let spans = Spans { warm: Duration::ZERO, sample: Duration::ZERO, least: 9 };
        let watch =
            Stopwatch::start(Ticker::calibrate(), spans, Others::default()).expect("a stopwatch");
        let count = Arc::new(Mutex::new(Count::new(watch)));
        let ((there, from_client), (back, from_server)) = (channel(), channel());
        let end = |to, from, damage| Queue { to, from, received: 0, damage };
        let (server, client) = (end(back, from_client, server), end(there, from_server, client));
        let serving = thread::spawn(move || answer(server, 5, BYTES));
        let (is_over, over) = channel();
        let start = (Arc::clone(&count), is_over);
        let calling = thread::spawn(move || iterate(client, 5, BYTES, start));
        over.recv().expect("the sample is complete");
        lock(&count).is_finished = true;
        join(vec![serving, calling]).expect("both end");
        let count = lock(&count);
        assert!(count.iterations >= 10 && count.watch.figures(0).p50_ns.is_some());
        count.wrong
    }

    #[test]
    fn what_either_side_reads_wrong_is_counted() {
        assert_eq!(wrong(|_, _| {}, |_, _| {}), 0);
        let stale: fn(usize, &mut Vec<u8>) = |number, block| {
            if number == 4 {
                block[PAGE..2 * PAGE].fill(0)
            }
        };
        assert_eq!(wrong(stale, |_, _| {}), 1, "the server's");
        assert_eq!(wrong(|_, _| {}, stale), 1, "the client's");
        let short: fn(usize, &mut Vec<u8>) = |number, block| {
            if number == 7 {
                block.truncate(PAGE)
            }
        };
        assert_eq!(wrong(short, stale), 2, "both");
    }

    #[test]
    fn a_server_that_has_gone_is_an_error() {
        let watch = |spans| {
            Stopwatch::start(Ticker::calibrate(), spans, Others::default()).expect("a stopwatch")
        };
        let spans = Spans { warm: Duration::ZERO, sample: Duration::ZERO, least: 1 };
        let (to, _there) = channel();
        let (back, from) = channel();
        drop(back);
        let end = Queue { to, from, received: 0, damage: |_, _| {} };
        let start = (Arc::new(Mutex::new(Count::new(watch(spans)))), channel().0);
        let error = iterate(end, 0, BYTES, start).expect_err("it has gone");
        assert!(error.to_string().contains("has gone"), "{error}");
    }
}
