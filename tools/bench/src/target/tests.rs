use super::*;
use crate::case::{Case, Mode, Place, Placement, Wait};
use crate::ratio::Key;
use crate::row::Figures;

const CASE: Case = Case::call(Mode::Latency, Some(32), Placement::SameCore, Some(Wait::Block));

fn key(contender: &'static str) -> Key {
    Key { contender, case: CASE }
}

fn ratio(over: &'static str, under: &'static str, bound: Bound) -> Target {
    let quantity = Quantity::Ratio { over: key(over), under: key(under) };
    Target::new(format!("{over} over {under}"), quantity, Metric::P50, bound)
}

fn rows(contender: &'static str, p50: f64, rounds: u32) -> Vec<Row> {
    let figures = Figures { p50_ns: Some(p50), ..Figures::default() };
    (0..rounds).map(|rep| Row { contender, case: CASE, near: None, rep, figures }).collect()
}

fn verdict(bound: Bound, a: &[Row]) -> Verdict {
    let rows = [a.to_vec(), rows("b", 10.0, 30)].concat();
    judge(&rows, &[ratio("a", "b", bound)])[0].verdict
}

#[test]
fn judges_by_the_bound() {
    let bound = Bound::AtMost(0.5);
    assert_eq!(verdict(bound, &rows("a", 5.0, 30)), Verdict::Pass);
    assert_eq!(verdict(bound, &rows("a", 5.1, 30)), Verdict::Fail);
    assert_eq!(verdict(Bound::AtLeast(0.5), &rows("a", 5.1, 30)), Verdict::Pass);
    assert_eq!(verdict(Bound::Below(0.5), &rows("a", 5.0, 30)), Verdict::Fail);
    assert_eq!(verdict(Bound::Stated, &rows("a", 50.0, 30)), Verdict::Stated);
}

#[test]
fn fewer_than_five_rounds_are_not_judged() {
    assert_eq!(verdict(Bound::AtMost(0.5), &rows("a", 1.0, 4)), Verdict::TooFew);
    assert_eq!(verdict(Bound::AtMost(0.5), &rows("a", 1.0, 5)), Verdict::Pass);
    assert_eq!(verdict(Bound::Stated, &rows("a", 1.0, 4)), Verdict::TooFew);
}

#[test]
fn a_bound_within_the_interval_decides_nothing() {
    // Medians on either side of the bound, which is 0.5.
    for half in [4.4, 5.6] {
        let mut mixed = rows("a", half, 11);
        mixed.iter_mut().take(5).for_each(|row| row.figures.p50_ns = Some(10.0 - half));
        assert_eq!(verdict(Bound::AtMost(0.5), &mixed), Verdict::Undecided);
        assert_eq!(verdict(Bound::AtLeast(0.5), &mixed), Verdict::Undecided);
    }
}

#[test]
fn an_absent_party_is_not_a_failure() {
    let findings = judge(&rows("b", 10.0, 5), &[ratio("a", "b", Bound::AtMost(0.5))]);
    assert_eq!(findings[0].verdict, Verdict::NotRun);
}

#[test]
fn a_floor_that_does_not_hold_marks_only_what_depends_on_it() {
    let all =
        [rows("floor", 15.0, 5), rows("probe", 10.0, 5), rows("a", 2.0, 5), rows("b", 5.0, 5)];
    let floors = judge(&all.concat(), &[ratio("floor", "probe", Bound::AtMost(1.1))]);
    assert_eq!(floors[0].verdict, Verdict::Fail);
    let targets = [ratio("a", "floor", Bound::AtMost(1.3)), ratio("a", "b", Bound::AtMost(0.5))];
    let mut findings = judge(&all.concat(), &targets);
    apply_floors(&mut findings, &floors);
    assert_eq!(findings[0].verdict, Verdict::Void);
    assert!(findings[0].why.contains("floor over probe is 1.500, not at most 1.100"));
    assert_eq!((findings[1].verdict, findings[1].why.as_str()), (Verdict::Pass, ""));
    // Where the cores are elsewhere the floor says nothing.
    let mut findings = judge(&all.concat(), &targets);
    findings[0].near = Some(true);
    apply_floors(&mut findings, &floors);
    assert_eq!(findings[0].verdict, Verdict::Pass);
}

#[test]
fn where_cores_are_near_differences_are_compared() {
    let at = |near, contender: &'static str, p50| {
        let figures = Figures { p50_ns: Some(p50), ..Figures::default() };
        let case = Case { placement: Placement::TwoCores, wait: Some(Wait::Spin), ..CASE };
        let bare = Case { size: None, ..case };
        let case = if contender == "line-probe" { bare } else { case };
        let row = |rep| Row { contender, case, near: Some(near), rep, figures };
        (0..5).map(row).collect::<Vec<_>>()
    };
    let floors = |rows: &[Row]| -> Vec<_> {
        let found = judge(rows, &floors(Bench::Calls));
        found.into_iter().filter(|f| f.near.is_some()).map(|f| (f.near, f.verdict)).collect()
    };
    // 45 ns more are 1.36 times 125 ns.
    let near = [at(true, "ring-floor", 170.0), at(true, "line-probe", 125.0)].concat();
    assert_eq!(floors(&near), [(Some(true), Verdict::Pass)]);
    let slow = [at(true, "ring-floor", 225.0), at(true, "line-probe", 125.0)].concat();
    assert_eq!(floors(&slow), [(Some(true), Verdict::Fail)]);
    let far = [at(false, "ring-floor", 540.0), at(false, "line-probe", 400.0)].concat();
    assert_eq!(floors(&far), [(Some(false), Verdict::Fail)]);
}

#[test]
fn words_are_judged_through_the_stubs_as_well_as_raw_on_both_clocks() {
    let found = targets(Bench::Words, Bench::Words.sizes());
    for contender in ["partywall-raw", "partywall-tonic"] {
        let clocks = [crate::case::Clock::A, crate::case::Clock::B];
        let places = [Place::Host, Place::TwoContainers];
        for (clock, place) in
            clocks.into_iter().flat_map(|clock| places.map(|place| (clock, place)))
        {
            let judged = |target: &&Target| match target.quantity {
                Quantity::Ratio { over, under } => {
                    let clocked = over.case.clock == Some(clock) && over.case.place == place;
                    let bound = !matches!(target.bound, Bound::Stated);
                    let there = clocked && over.case.place == under.case.place;
                    there && bound && over.contender == contender && under.contender == "uds"
                }
                _ => false,
            };
            let count = found.iter().filter(judged).count();
            assert_eq!(
                count,
                Bench::Words.sizes().len(),
                "{contender}, clock {clock:?}, {place:?}"
            );
        }
    }
}

#[test]
fn native_calls_are_judged_beside_every_opponent_in_time_and_in_number() {
    let found = targets(Bench::Calls, Bench::Calls.sizes());
    for opponent in ["tonic-uds", "iceoryx2", "rapace", "xrpc"] {
        for (mode, size) in [Mode::Latency, Mode::Pipelined].map(|m| [(m, 32), (m, 1024)]).concat()
        {
            let judged = |target: &&Target| match target.quantity {
                Quantity::Ratio { over, under } => {
                    let ours = over.contender == "partywall-native" && over.case == under.case;
                    let bound = match target.bound {
                        Bound::Below(limit) => mode == Mode::Latency && limit == 1.0,
                        Bound::AtLeast(limit) => mode == Mode::Pipelined && limit == 1.0,
                        _ => false,
                    };
                    let there = (over.case.mode, over.case.size) == (Some(mode), Some(size));
                    ours && bound && there && under.contender == opponent
                }
                _ => false,
            };
            // Sides that spin as well, where they can.
            let wanted = if opponent == "iceoryx2" { 2 } else { 1 };
            assert_eq!(
                found.iter().filter(judged).count(),
                wanted,
                "{opponent}, {size} B, {mode:?}"
            );
        }
    }
}

#[test]
fn cpu_time_is_judged_as_it_is_and_less_the_pacing() {
    let found = targets(Bench::Domain, Bench::Domain.sizes());
    for rate in crate::case::RATES {
        let judged = |target: &&Target| {
            let case = target.quantity.keys()[0].case;
            let bound = matches!(target.bound, Bound::AtMost(limit) if limit == 0.2);
            target.metric == Metric::Cpu && case.rate == Some(rate) && bound
        };
        let kinds: Vec<_> = found.iter().filter(judged).map(|t| t.quantity).collect();
        assert!(
            matches!(kinds[..], [Quantity::Ratio { .. }, Quantity::Net { .. }]),
            "{rate}: {kinds:?}"
        );
    }
}

#[test]
fn copies_of_native_stubs_are_stated_for_sizes_that_were_run() {
    use crate::case::{BULK_SIZES, RECORD_SIZES};
    for contender in ["ring-native", "domain-native"] {
        let stated = |sizes: &[u64]| -> Vec<_> {
            let slope = |target: Target| match target.quantity {
                Quantity::Slope { over, sizes, .. } if over.contender == contender => Some(sizes),
                _ => None,
            };
            targets(Bench::Domain, sizes).into_iter().filter_map(slope).collect()
        };
        let both = [&RECORD_SIZES[..], &BULK_SIZES];
        assert_eq!(stated(Bench::Domain.sizes()), both, "{contender}");
        assert_eq!(stated(&RECORD_SIZES), both[..1], "{contender}");
        assert!(stated(&RECORD_SIZES[1..]).is_empty(), "{contender}");
    }
}

#[test]
fn blocks_are_judged_at_every_size_beside_floors_and_others() {
    const KIB: u64 = 1 << 10;
    let judged = |place, ours: &str, under: &str, metric, bytes: u64| -> Vec<Bound> {
        let is_it = |target: &Target| {
            let keys = target.quantity.keys();
            let other = keys.get(1).map_or("", |key| key.contender);
            let at = keys[0].contender == ours && keys[0].case.size == Some(bytes);
            at && keys[0].case.place == place && other == under && target.metric == metric
        };
        let found = targets(Bench::Transfer, Bench::Transfer.sizes());
        found.into_iter().filter(is_it).map(|target| target.bound).collect()
    };
    let limit =
        |place, ours, under, metric, bytes| match judged(place, ours, under, metric, bytes)[..] {
            [] => None,
            [Bound::AtMost(limit) | Bound::Below(limit)] => Some(limit),
            ref other => panic!("{ours}, {under}: {other:?}"),
        };
    for (bytes, memfd, fill, tcp, pss) in [
        (4 * KIB, [Some(1.3); 2], [None; 2], None, [None; 2]),
        (256 * KIB, [Some(1.3); 2], [None; 2], None, [None; 2]),
        (KIB * KIB, [Some(1.1); 2], [None; 2], None, [None; 2]),
        (64 * KIB * KIB, [Some(1.1); 2], [Some(1.05), Some(1.1)], Some(0.15), [None; 2]),
        (KIB * KIB * KIB, [None; 2], [Some(1.05), Some(1.1)], Some(0.15), [Some(1.02), Some(2.02)]),
    ] {
        let all = [("memfd-floor", memfd), ("fill-floor", fill), ("tcp", [tcp; 2])];
        for (i, ours) in ["partywall-lease", "partywall-owned"].into_iter().enumerate() {
            for place in [Place::Host, Place::ClientInContainer] {
                for (under, most) in all {
                    let found = limit(place, ours, under, Metric::P50, bytes);
                    assert_eq!(found, most[i], "{ours} {under} {bytes} {place:?}");
                }
                let found = limit(place, ours, "", Metric::Pss, bytes);
                assert_eq!(found, pss[i], "{ours} {bytes} {place:?}");
            }
            for carrier in ["uds", "tonic-tcp", "tonic-uds"] {
                let found = limit(Place::ClientInContainer, ours, carrier, Metric::P50, bytes);
                assert_eq!(found, tcp.map(|_| 1.0), "{ours} {carrier} {bytes}");
            }
        }
        let sealed = limit(Place::Host, "partywall-sealed", "seal-floor", Metric::P50, bytes);
        assert_eq!(sealed, Some(1.3), "{bytes}");
    }
}

#[test]
fn cpu_time_of_blocks_is_below_that_of_everyone_else_s() {
    use crate::contender::Kind;
    for ours in ["partywall-lease", "partywall-owned", "partywall-sealed"] {
        for &bytes in Bench::Transfer.sizes() {
            let cpu = |target: &Target| {
                let keys = target.quantity.keys();
                let at = keys[0].contender == ours && keys[0].case.size == Some(bytes);
                at && target.metric == Metric::Cpu && matches!(target.bound, Bound::Below(1.0))
            };
            let found = targets(Bench::Transfer, &[bytes]);
            let target = found.iter().find(|target| cpu(target)).expect("a target");
            let others: Vec<_> = target.quantity.keys().split_off(1);
            for contender in crate::registry::of(Bench::Transfer) {
                let measured = (contender.cases)().iter().any(|case| case.size == Some(bytes));
                let key = others.iter().find(|key| key.contender == contender.name);
                let wanted = measured && contender.kind == Kind::Other;
                assert_eq!(key.is_some(), wanted, "{}, {bytes}", contender.name);
            }
        }
    }
}

#[test]
fn long_blocks_are_judged_only_where_bare_memory_is_as_fast_as_filling() {
    let at = |contender, p50, wait| {
        let figures = Figures { p50_ns: Some(p50), ..Figures::default() };
        let case = Case::transfer(128 << 20, 1, wait);
        (0..5).map(|rep| Row { contender, case, near: None, rep, figures }).collect::<Vec<_>>()
    };
    let verdicts = |memfd| {
        let rows = [
            at("memfd-floor", memfd, Some(Wait::Block)),
            at("fill-floor", 10.0, None),
            at("partywall-lease", 10.2, Some(Wait::Block)),
        ];
        let floors = judge(&rows.concat(), &floors(Bench::Transfer));
        let mut found = judge(&rows.concat(), &targets(Bench::Transfer, &[128 << 20]));
        apply_floors(&mut found, &floors);
        let is_judged = |finding: &&Finding| {
            finding.text.contains("lease over fill-floor") && finding.measured.is_some()
        };
        found.iter().filter(is_judged).map(|finding| finding.verdict).collect::<Vec<_>>()
    };
    assert_eq!(verdicts(12.0), [Verdict::Pass]);
    assert_eq!(verdicts(14.0), [Verdict::Void]);
}

#[test]
fn calls_between_containers_are_judged_by_those_between_processes() {
    let found = targets(Bench::Calls, Bench::Calls.sizes());
    for contender in ["partywall-native", "partywall-tonic", "partywall-raw"] {
        for (placement, wait) in
            [(Placement::SameCore, Wait::Block), (Placement::TwoCores, Wait::Spin)]
        {
            let host = Case::call(Mode::Latency, Some(32), placement, Some(wait));
            let judged = |target: &&Target| match (target.quantity, target.bound) {
                (Quantity::Ratio { over, under }, Bound::AtMost(1.05)) => {
                    let ours = over.contender == contender && under.contender == contender;
                    ours && over.case == host.at(Place::TwoContainers) && under.case == host
                }
                _ => false,
            };
            assert_eq!(found.iter().filter(judged).count(), 1, "{contender}, {host}");
        }
    }
}

#[test]
fn a_target_of_containers_is_missed_where_there_are_none() {
    let contained = Key { contender: "a", case: CASE.at(Place::TwoContainers) };
    let quantity = Quantity::Ratio { over: contained, under: Key { contender: "b", case: CASE } };
    let of = |bound| Target::new("a in containers".into(), quantity, Metric::P50, bound);
    let verdicts = |missing: &[Key], measured: &[Row]| {
        let all = [of(Bound::AtMost(1.05)), of(Bound::Stated), ratio("a", "b", Bound::AtMost(0.5))];
        let mut findings = judge(measured, &all);
        miss(&mut findings, &missing.iter().copied().collect(), "no engine");
        assert!(
            findings.iter().all(|f| (f.verdict == Verdict::Fail) == f.why.contains("no engine"))
        );
        findings.iter().map(|finding| finding.verdict).collect::<Vec<_>>()
    };
    let host = rows("b", 10.0, 5);
    assert_eq!(verdicts(&[contained], &host), [Verdict::Fail, Verdict::NotRun, Verdict::NotRun]);
    // One that was not asked for is not run, and one that was measured is judged.
    assert_eq!(verdicts(&[], &host), [Verdict::NotRun; 3]);
    let mut both = host.clone();
    both.extend(rows("a", 10.0, 5).into_iter().map(|row| Row { case: contained.case, ..row }));
    let judged = verdicts(&[contained], &both);
    assert_eq!(judged, [Verdict::Pass, Verdict::Stated, Verdict::NotRun]);
}

#[test]
fn nothing_lost_is_within_a_bound_of_nothing() {
    use crate::functions::cell::More;
    let of = |lost| {
        let more = More {
            lost: Some(lost),
            leaked_bytes: Some(0.0),
            wrong_next: Some(0.0),
            ..More::default()
        };
        let harmed = |row: Row| Row {
            figures: Figures { functions: Some(more), errors: lost as u64, ..row.figures },
            ..row
        };
        let all: Vec<Row> = rows("a", 1.0, 5).into_iter().map(harmed).collect();
        let quantity = Quantity::Value { of: key("a") };
        let target = Target::new(String::new(), quantity, Metric::Harm, Bound::AtMost(0.0));
        judge(&all, &[target])[0].verdict
    };
    assert_eq!((of(0.0), of(1.0)), (Verdict::Pass, Verdict::Fail));
}
