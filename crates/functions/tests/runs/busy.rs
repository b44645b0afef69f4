//! What other programs have of a worker's CPU is no function's time, whoever stops functions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use partywall_functions::dispatcher::{Id, Outcome, Preemption};

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

/// The time that a call of so many rounds takes, the shortest of some.
fn took(rig: &mut Rig, burns: Id, rounds: u64) -> Duration {
    let took = (0..20).map(|_| {
        rig.call(burns, rounds.to_string().as_bytes());
        rig.done().cpu_ns
    });
    Duration::from_nanos(took.min().unwrap())
}

/// The rounds that take so long.
fn rounds(rig: &mut Rig, time: Duration) -> u64 {
    let burns = rig.register(BURNS, |_| ());
    (100 * time.as_nanos() / took(rig, burns, 100).as_nanos()) as u64
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
        for _ in 0..5 {
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
fn row_47_long_functions_on_a_busy_cpu_have_their_budgets() {
    for preemption in BOTH {
        is_nobody_stopped(preemption, [20, 60].map(Duration::from_millis), 20);
    }
}

#[test]
fn row_47_short_functions_on_a_busy_cpu_have_their_budgets() {
    for preemption in BOTH {
        is_nobody_stopped(preemption, [200, 10_000].map(Duration::from_micros), 300);
    }
}
