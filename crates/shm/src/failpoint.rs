//! Failpoints: labelled steps of the protocol, where a test can stop the process.
//!
//! Without the feature `failpoints` a label costs nothing. With it, the process that runs with
//! `PARTYWALL_FAILPOINT=label` writes the label to standard error and stops there for ever (to be
//! killed by the test), the `PARTYWALL_FAILPOINT_AFTER`-th time it comes by (default: the first).

/// The steps of every link, in the order in which a call passes them.
pub const LABELS: &[&str] = &[
    "setup.mapped",
    "setup.sealed",
    "setup.sent",
    "setup.filled",
    "push.written",
    "push.published",
    "notify.fenced",
    "notify.belled",
    "sleep.announced",
    "wake.awake",
    "take.copied",
    "take.released",
];

/// The steps of parcels, on links whose long messages travel in some.
pub const PARCEL_LABELS: &[&str] =
    &["parcel.made", "parcel.mapped", "parcel.copied", "packet.sent", "packet.received"];

/// Stops here when the test says so.
#[inline(always)]
pub fn failpoint(_label: &'static str) {
    #[cfg(feature = "failpoints")]
    imp::hit(_label);
}

#[cfg(feature = "failpoints")]
mod imp {
    use std::io::Write;
    use std::sync::{Mutex, OnceLock};

    struct Plan {
        label: String,
        left: Mutex<u64>,
    }

    static PLAN: OnceLock<Option<Plan>> = OnceLock::new();

    pub(super) fn hit(label: &'static str) {
        let known = || super::LABELS.contains(&label) || super::PARCEL_LABELS.contains(&label);
        debug_assert!(known(), "{label} is in no list");
        let plan = PLAN.get_or_init(|| {
            let label = std::env::var("PARTYWALL_FAILPOINT").ok()?;
            let after = std::env::var("PARTYWALL_FAILPOINT_AFTER").ok();
            let left = after.and_then(|n| n.parse().ok()).unwrap_or(1);
            Some(Plan { label, left: Mutex::new(left) })
        });
        let Some(plan) = plan.as_ref().filter(|p| p.label == label) else { return };
        let mut left = plan.left.lock().expect("no one panics here");
        *left = left.saturating_sub(1);
        if *left == 0 {
            let mut err = std::io::stderr().lock();
            let _ = writeln!(err, "stopped at {label}");
            let _ = err.flush();
            loop {
                std::thread::park();
            }
        }
    }
}
