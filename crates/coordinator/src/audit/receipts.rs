//! Receipts of signed messages: lines of the log of which none is left out. What there is no room for now
//! waits at whoever hands it in ([`Audit::keep`]).

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::TrySendError;
use std::time::{Duration, Instant, SystemTime};

use super::{ACCOUNTS, Audit, Bucket, Event, Lines, line};
use crate::quota::Account;

/// Receipts of an account, at once and a second.
const RATE: u32 = 20_000;
/// Bytes of receipts that wait for the thread that writes.
const WAITING: usize = 16 << 20;

/// Receipts of one account, as lines of the log.
#[derive(Debug)]
pub(crate) struct Receipts {
    /// One of them.
    pub(crate) one: Event,
    pub(crate) count: u32,
    text: String,
}

impl Receipts {
    /// These, at this time; none where there are none.
    pub(crate) fn new(events: Vec<Event>, at: SystemTime) -> Option<Self> {
        let text = events.iter().map(|event| line(event, at)).collect();
        let count = events.len() as u32;
        Some(Self { one: events.into_iter().next()?, count, text })
    }
}

/// How many receipts each account has left.
#[derive(Default)]
pub(super) struct Rates(HashMap<Account, Bucket>);

impl Rates {
    /// Whether an account may have so many kept now.
    fn may(&mut self, account: Account, count: u32, now: Instant) -> bool {
        if self.0.len() >= ACCOUNTS && !self.0.contains_key(&account) {
            let second = Duration::from_secs(1);
            self.0.retain(|_, b| now.saturating_duration_since(b.at) < second);
        }
        let new = || Bucket { left: f64::from(RATE), at: now, left_out: 0 };
        let bucket = self.0.entry(account).or_insert_with(new);
        bucket.fill_by(now, RATE, RATE);
        let may = bucket.left >= f64::from(count);
        if may {
            bucket.left -= f64::from(count);
        }
        may
    }
}

impl Audit {
    /// Writes all of these; whether there was room for them, else nothing has changed but that of the
    /// account.
    pub(crate) fn keep(&mut self, receipts: &mut Receipts, now: Instant) -> bool {
        let bytes = receipts.text.len();
        // This thread alone adds to it.
        let has_room = self.waiting.load(Ordering::Relaxed) + bytes <= WAITING;
        let may = |account| self.rates.may(account, receipts.count, now);
        if !has_room || !receipts.one.account().is_none_or(may) {
            return false;
        }
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
        let text = std::mem::take(&mut receipts.text);
        match self.to.try_send(Lines { text, receipts: bytes }) {
            Ok(()) => true,
            Err(TrySendError::Full(lines) | TrySendError::Disconnected(lines)) => {
                self.waiting.fetch_sub(bytes, Ordering::Relaxed);
                receipts.text = lines.text;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use partywall_abi::control::Identity;

    use super::*;

    fn receipts(uid: u32, count: usize, text: &str) -> Receipts {
        let (identity, account) = (Identity::new(uid, 5), Account::User(uid));
        let event =
            || Event::signed(&identity, &account, "spiffe://a.b/user/1".into(), text.into());
        Receipts::new((0..count).map(|_| event()).collect(), SystemTime::UNIX_EPOCH).unwrap()
    }

    /// A log that hands on what is written, once for each word that it gets.
    struct Slow(Receiver<()>, Sender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _until = self.0.recv();
            let _nobody_reads = self.1.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_account_has_so_many_receipts_and_the_rest_waits() {
        let (go, wait) = channel();
        let (to, written) = channel();
        let mut audit = Audit::new("slow".into(), Slow(wait, to)).unwrap();
        drop(go);
        let start = Instant::now();
        for _ in 0..RATE / 200 {
            assert!(audit.keep(&mut receipts(3, 200, "a"), start));
        }
        let mut back = receipts(3, 200, "b");
        assert!(!audit.keep(&mut back, start));
        assert!(audit.keep(&mut receipts(4, 200, "c"), start), "another account");
        // A hundredth of a second later it has room again, for as many.
        let later = start + Duration::from_millis(10);
        assert!(audit.keep(&mut back, later));
        assert!(!audit.keep(&mut receipts(3, 1, "d"), later));
        drop(audit);
        let all: Vec<u8> = written.iter().flatten().collect();
        let lines = all.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let texts = lines.map(|line| {
            let line: serde_json::Value = serde_json::from_slice(line).unwrap();
            assert_eq!(line["event"], "signed");
            line["receipt"].as_str().unwrap().to_owned()
        });
        let texts: Vec<_> = texts.collect();
        let count = |text: &str| texts.iter().filter(|found| *found == text).count();
        assert_eq!(["a", "b", "c", "d"].map(count), [RATE as usize, 200, 200, 0]);
    }

    #[test]
    fn receipts_beyond_the_room_wait_for_a_slow_disk() {
        let (go, wait) = channel();
        let (to, _written) = channel();
        let mut audit = Audit::new("slow".into(), Slow(wait, to)).unwrap();
        let (long, now) = ("x".repeat(1 << 20), Instant::now());
        let mut kept = 0;
        while audit.keep(&mut receipts(kept, 1, &long), now) {
            kept += 1;
        }
        assert_eq!(kept, 15, "lines are somewhat longer than their texts");
        // One is written.
        go.send(()).unwrap();
        let (begin, mut next) = (Instant::now(), receipts(kept, 1, &long));
        while !audit.keep(&mut next, now) {
            assert!(begin.elapsed() < Duration::from_secs(10), "there is never room");
        }
        assert!(!audit.keep(&mut receipts(99, 1, &long), now));
    }
}
