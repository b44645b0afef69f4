//! What is written, how much of it, and when.

use super::*;

fn someone(uid: u32) -> Identity {
    let mut identity = Identity::new(uid, 5);
    identity.pid = Some(7);
    identity.digest = Digest::Observed([0xab; 32]);
    identity.cgroup = "/a".into();
    identity.principals = vec!["web".into()];
    identity
}

fn denied(uid: u32) -> Event {
    Event::denied(&someone(uid), &Account::User(uid), "connect", "no \"way\"\n")
}

/// A disk that takes its time for each line.
struct Slow(Arc<AtomicUsize>);

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        std::thread::sleep(Duration::from_millis(20));
        self.0.fetch_add(bytes.iter().filter(|byte| **byte == b'\n').count(), Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_end_of_a_log_waits_for_its_last_lines() {
    let lines = Arc::new(AtomicUsize::new(0));
    let mut audit = Audit::new("log".into(), Slow(Arc::clone(&lines))).unwrap();
    (0..20).for_each(|_| audit.event(&denied(3)));
    drop(audit);
    assert_eq!(lines.load(Ordering::Relaxed), 20);
}

#[test]
fn each_event_is_one_line_of_json_whatever_a_text_holds() {
    let at = UNIX_EPOCH + Duration::from_micros(1_500_000);
    let text = line(&denied(3), at);
    assert_eq!(text.matches('\n').count(), 1);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["time"], 1.5);
    assert_eq!(value["event"], "denied");
    assert_eq!(value["uid"], 3);
    assert_eq!(value["account"], "user 3");
    assert_eq!(value["text"], "no \"way\"\n");
    assert_eq!(value["digest"], format!("observed sha256:{}", "ab".repeat(32)));
}

#[test]
fn an_account_has_so_many_lines_and_the_others_are_counted() {
    let mut limiter = Limiter::default();
    let (start, at) = (Instant::now(), UNIX_EPOCH);
    let mut written = 0;
    for _ in 0..1000 {
        written += limiter.lines(&denied(3), start, at).len();
    }
    assert_eq!(limiter.lines(&denied(4), start, at).len(), 1, "another account");
    assert!(limiter.due(start, at).is_empty());
    let later = start + Duration::from_secs(1);
    let due = limiter.due(later, at);
    assert_eq!(due.len(), 1);
    let value: serde_json::Value = serde_json::from_str(&due[0]).unwrap();
    assert_eq!((value["event"].as_str(), value["count"].as_u64()), (Some("left_out"), Some(900)));
    let in_a_second: usize = (0..100).map(|_| limiter.lines(&denied(3), later, at).len()).sum();
    assert_eq!((written, in_a_second), (100, 10));
}

#[test]
fn unwritten_lines_are_counted_and_delay_nobody() {
    struct Stuck(std::sync::mpsc::Receiver<()>);
    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _until = self.0.recv();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (go, wait) = std::sync::mpsc::channel();
    let mut audit = Audit::new("stuck".into(), Stuck(wait)).unwrap();
    let start = Instant::now();
    for uid in 0..2 * WAITING as u32 {
        audit.event(&denied(uid));
    }
    assert!(start.elapsed() < Duration::from_secs(10));
    assert!(audit.lost >= WAITING as u64 / 2, "{}", audit.lost);
    assert!(audit.owes());
    drop(go);
    std::thread::sleep(Duration::from_millis(50));
    audit.due();
    assert_eq!(audit.lost, 0);
}
