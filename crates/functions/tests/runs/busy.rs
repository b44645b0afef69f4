//! What other programs have of a worker's CPU is no function's time, whoever stops functions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use partywall_functions::dispatcher::{Outcome, Preemption};

use super::limits::cpu_of;
use super::rig::Rig;

/// Spins so many rounds, in thousands: a number in the request.
const BURNS: &str = "pub fn handle(r: Request<'_>) -> Reply {\n\
     let rounds = core::str::from_utf8(r.body()).unwrap().parse::<u64>().unwrap();\n\
     let mut sum = 7_u64;\n\
     for n in 0..1000 * rounds { sum = core::hint::black_box(sum.rotate_left(5) ^ n); }\n\
     Ok(sum.to_le_bytes().to_vec()) }";
const ENDLESS: &str =
    "pub fn handle(_: Request<'_>) -> Reply { loop { core::hint::black_box(0); } }";

/// Who stops functions.
const BOTH: [Preemption; 2] =
    [Preemption::Dispatcher, Preemption::Timer(Duration::from_micros(50))];

/// Has each CPU wanted by four others meanwhile.
fn busy<R>(what: impl FnOnce() -> R) -> R {
    /// Says that it is over, however it ends.
    struct Over<'a>(&'a AtomicBool);

    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let is_over = AtomicBool::new(false);
    let cpus = rustix::thread::sched_getaffinity(None).unwrap().count();
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        for _ in 0..4 * cpus {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
        what()
    })
}

/// The rounds, in thousands, that take so long, by the kernel's account of the worker.
fn rounds(rig: &mut Rig, time: Duration) -> u64 {
    const ROUNDS: u64 = 200_000;
    let burns = rig.register(BURNS, |it| it.budget = Duration::from_secs(30));
    let pid = rig.dispatcher.workers()[0].pid;
    let before = cpu_of(pid);
    assert!(matches!(rig.outcome(burns, ROUNDS.to_string().as_bytes()), Outcome::Reply(_)));
    let took = cpu_of(pid) - before;
    assert!(took > Duration::from_millis(50), "{took:?} is too short to be measured");
    (u128::from(ROUNDS) * time.as_nanos() / took.as_nanos()) as u64
}

/// Each of so many calls, which take about `time` of a CPU, is answered within a budget of more; and one that
/// does not end is stopped. (A virtual CPU that its host stops for some milliseconds is billed for them.)
fn is_nobody_stopped(preemption: Preemption, [time, budget]: [Duration; 2], calls: u32) {
    let mut rig = Rig::with(1, |workers| workers.preemption = preemption);
    let request = rounds(&mut rig, time).to_string();
    let burns = rig.register(BURNS, |it| it.budget = budget);
    let endless = rig.register(ENDLESS, |it| it.budget = budget);
    busy(|| {
        let (mut most, mut most_cpu) = (Duration::ZERO, Duration::ZERO);
        for call in 0..calls {
            let begun = Instant::now();
            rig.call(burns, request.as_bytes());
            let done = rig.done();
            most = most.max(begun.elapsed());
            most_cpu = most_cpu.max(Duration::from_nanos(done.cpu_ns));
            let what = (call, begun.elapsed(), done.cpu_ns);
            assert!(matches!(done.outcome, Outcome::Reply(_)), "{what:?}: {:?}", done.outcome);
        }
        println!(
            "{preemption:?}: {time:?} of a CPU took {most:?} at most, and {most_cpu:?} were billed"
        );
        assert!(most > budget, "nobody else has had the CPU: {most:?}");
        assert_eq!(rig.dispatcher.strikes(burns), Some((false, 0)));
        for _ in 0..2 {
            let begun = Instant::now();
            rig.call(endless, b"");
            let done = rig.done();
            println!(
                "{preemption:?}: one that does not end had {} ns, in {:?}",
                done.cpu_ns,
                begun.elapsed()
            );
            assert_eq!(done.outcome, Outcome::Budget(budget));
        }
    });
}

#[test]
fn row_47_functions_on_a_busy_cpu_have_their_budgets() {
    for preemption in BOTH {
        is_nobody_stopped(preemption, [40, 120].map(Duration::from_millis), 10);
        is_nobody_stopped(preemption, [200, 10_000].map(Duration::from_micros), 200);
    }
    // Longer than a worker may have no CPU at all.
    is_nobody_stopped(BOTH[0], [300, 600].map(Duration::from_millis), 2);
}
