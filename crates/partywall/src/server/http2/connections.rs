//! The connections of one HTTP/2 listener: how many there may be, and which one goes for another.
//!
//! ```text
//! accepted    there is room, and a share of it for its user      taken in
//!             not, but a connection is idle                      that one is ended, and it is taken in
//!             not                                                closed
//! taken in    no preface (RFC 9113, section 3.4) in 10 s         ended
//! ```
//!
//! A connection is idle while it has no call open. Of these one that has not sent its preface for a
//! second goes first, then the one that has been idle for longest: of the caller's own user where that
//! has its share, else of the user that has most. The kernel names the user at the other end of a Unix
//! socket, and a user has at most half of what the others leave, as in the coordinator's quotas; root
//! and the server's own user have all that is left. At a TCP port nobody is named, and all callers are
//! as one.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::lock::lock;
use partywall_shm::users::Subordinates;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// How long a connection may take to send its preface, unless a listener is told otherwise.
const PREFACE: Duration = Duration::from_secs(10);
/// One that is younger is not taken for silent, though its preface is still to be read.
const YOUNG: Duration = Duration::from_secs(1);
/// Bytes of a preface.
const PREFACE_BYTES: usize = 24;
/// Connections that a listener takes in at least, however few descriptors there are.
const LEAST: usize = 16;

/// How many connections the HTTP/2 listeners of a server may have together, by this process's descriptors.
pub(in crate::server) fn most(names: bool) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    most_of(limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX)), names)
}

/// Three quarters of the descriptors, or where names take that many for links, three quarters of the rest.
fn most_of(descriptors: usize, names: bool) -> usize {
    if names { descriptors / 16 * 3 } else { descriptors / 4 * 3 }
}

/// Those of one listener.
pub(super) struct Connections {
    most: usize,
    /// How long each may take to send its preface.
    preface: Duration,
    own: u32,
    lent: Subordinates,
    rows: Mutex<Vec<Arc<Connection>>>,
}

/// One connection.
pub(crate) struct Connection {
    /// The caller's user, where the kernel says so.
    user: Option<u32>,
    /// How long its preface may take.
    preface: Duration,
    /// Its preface has come.
    heard: AtomicBool,
    /// Calls that are open.
    calls: AtomicUsize,
    /// Since when none is.
    idle: Mutex<Instant>,
    /// It has to go for another one.
    over: Notify,
}

/// An admitted connection, until it has ended.
pub(super) struct Admitted {
    connection: Arc<Connection>,
    of: Arc<Connections>,
}

/// A call that is open.
pub(super) struct Open(Arc<Connection>);

impl Connections {
    /// At most so many, which may take the usual time.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Self::within(most, PREFACE)
    }

    /// The same, with a time of the listener's own.
    pub(super) fn within(most: usize, preface: Duration) -> Arc<Self> {
        let own = rustix::process::geteuid().as_raw();
        let lent = Subordinates::read();
        Arc::new(Self { most: most.max(LEAST), preface, own, lent, rows: Mutex::default() })
    }

    /// How many there may be.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Takes in a connection of this user, or to whom that number is lent; none when there is no room
    /// for one.
    pub(super) fn admit(self: &Arc<Self>, user: Option<u32>) -> Option<Admitted> {
        let user = user.map(|uid| self.lent.owner(uid, self.own));
        let mut rows = lock(&self.rows);
        let has = rows.iter().filter(|row| row.user == user).count();
        let has_share = has < self.share(user, self.most - (rows.len() - has));
        if !has_share || rows.len() >= self.most {
            let whose = if has_share { who_has_most(&rows) } else { user };
            end_first(&mut rows, |row| row.user == whose)?;
        }
        let connection = Connection::of(user, self.preface);
        rows.push(Arc::clone(&connection));
        Some(Admitted { connection, of: Arc::clone(self) })
    }

    /// Ends a connection that is idle, if there is one: there are no descriptors for others.
    pub(super) fn end_one(&self) {
        let _none_is_idle = end_first(&mut lock(&self.rows), |_| true);
    }

    fn share(&self, user: Option<u32>, left: usize) -> usize {
        match user {
            Some(uid) if uid != 0 && uid != self.own => (left / 2).max(1),
            _ => left,
        }
    }
}

/// Ends the first of those that are idle: silent ones, then by how long they have been idle.
fn end_first(rows: &mut Vec<Arc<Connection>>, of: impl Fn(&Connection) -> bool) -> Option<()> {
    let idle = rows.iter().enumerate().filter(|(_, row)| row.is_idle() && of(row));
    let first = |(_, row): &(usize, &Arc<Connection>)| {
        let since = *lock(&row.idle);
        (row.is_heard() || since.elapsed() < YOUNG, since)
    };
    let (at, _) = idle.min_by_key(first)?;
    rows.swap_remove(at).over.notify_one();
    Some(())
}

/// Who has most connections.
fn who_has_most(rows: &[Arc<Connection>]) -> Option<u32> {
    let mut of_each = std::collections::HashMap::<_, usize>::new();
    for row in rows {
        *of_each.entry(row.user).or_default() += 1;
    }
    of_each.into_iter().max_by_key(|(_, has)| *has).and_then(|(user, _)| user)
}

impl Admitted {
    pub(super) fn connection(&self) -> Arc<Connection> {
        Arc::clone(&self.connection)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        lock(&self.of.rows).retain(|row| !Arc::ptr_eq(row, &self.connection));
    }
}

impl Connection {
    /// One that is not counted.
    pub(crate) fn alone() -> Arc<Self> {
        Self::of(None, PREFACE)
    }

    fn of(user: Option<u32>, preface: Duration) -> Arc<Self> {
        Arc::new(Self {
            user,
            preface,
            heard: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            idle: Mutex::new(Instant::now()),
            over: Notify::new(),
        })
    }

    /// Whether its preface has come.
    pub(super) fn is_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.calls.load(Ordering::Acquire) == 0
    }

    /// A call begins.
    pub(super) fn begin(self: &Arc<Self>) -> Open {
        self.calls.fetch_add(1, Ordering::AcqRel);
        Open(Arc::clone(self))
    }

    /// Waits until it has to go for another one, or because its preface has not come.
    pub(super) async fn has_to_go(&self) {
        let silent = async {
            tokio::time::sleep(self.preface).await;
            if self.is_heard() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.over.notified() => {}
            () = silent => {}
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // Before the count, by which it is found.
        *lock(&self.0.idle) = Instant::now();
        self.0.calls.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A connection's socket, which notes that the preface has come.
pub(super) struct Heard<I> {
    pub(super) io: I,
    connection: Arc<Connection>,
    missing: usize,
}

impl<I> Heard<I> {
    pub(super) fn new(io: I, connection: Arc<Connection>) -> Self {
        Self { io, connection, missing: PREFACE_BYTES }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Heard<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        if self.missing > 0 {
            self.missing = self.missing.saturating_sub(buffer.filled().len() - before);
            self.connection.heard.store(self.missing == 0, Ordering::Relaxed);
        }
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Heard<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(most: usize) -> Arc<Connections> {
        let lent = Subordinates::default();
        Arc::new(Connections { most, preface: PREFACE, own: 1, lent, rows: Mutex::default() })
    }

    fn all(table: &Arc<Connections>, user: u32) -> Vec<(Admitted, Open)> {
        let admit = |_| {
            let admitted = table.admit(Some(user))?;
            let call = admitted.connection.begin();
            Some((admitted, call))
        };
        (0..1000).map_while(admit).collect()
    }

    /// The numbers were in no test, and the time was another one in tests.
    #[test]
    fn listener_has_its_share_of_descriptors_and_10_s_per_preface() {
        let parts =
            [(1024, false), (1024, true), (1 << 20, false)].map(|(n, names)| most_of(n, names));
        assert_eq!(parts, [768, 192, 3 << 18]);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.map_or(usize::MAX, |n| n as usize);
        assert_eq!([most(false), most(true)], [limit / 4 * 3, limit / 16 * 3]);
        let table = Connections::new(most(false));
        assert_eq!(table.most, limit / 4 * 3);
        let admitted = table.admit(None).unwrap();
        for connection in [admitted.connection(), Connection::alone()] {
            assert_eq!(connection.preface, Duration::from_secs(10));
        }
    }

    #[test]
    fn users_have_shares_and_the_servers_own_has_what_is_left() {
        let table = table(64);
        let shares: Vec<_> = [7, 8, 9, 1].map(|user| all(&table, user)).into();
        assert_eq!(shares.iter().map(Vec::len).collect::<Vec<_>>(), [32, 16, 8, 8]);
        assert!(table.admit(None).is_none() && table.admit(Some(0)).is_none());
        drop(shares);
        assert!(lock(&table.rows).is_empty());
    }

    #[tokio::test]
    async fn idle_connections_are_replaced_silent_ones_first() {
        let table = table(4);
        let [silent, idle, busy, last] = [(); 4].map(|()| table.admit(None).unwrap());
        for row in [&idle, &busy, &last] {
            row.connection.heard.store(true, Ordering::Relaxed);
        }
        let _call = busy.connection.begin();
        drop(last.connection.begin());
        let mut kept = Vec::new();
        for gone in [&silent, &idle, &last] {
            let next = table.admit(None).unwrap();
            let call = next.connection.begin();
            kept.push((next, call));
            gone.connection.has_to_go().await;
        }
        // These are counted no more, and take no other's row with them.
        drop((silent, idle, last));
        assert_eq!(lock(&table.rows).len(), 4);
        assert!(table.admit(None).is_none(), "all have calls");
    }

    #[test]
    fn a_user_that_has_its_share_gives_up_one_of_its_own() {
        let table = table(8);
        let others: Vec<_> = (0..4).map(|_| table.admit(Some(7)).unwrap()).collect();
        let own: Vec<_> = (0..2).map(|_| table.admit(Some(8)).unwrap()).collect();
        let _next = table.admit(Some(8)).unwrap();
        let rows = lock(&table.rows);
        let there = |a: &Admitted| rows.iter().any(|row| Arc::ptr_eq(row, &a.connection));
        assert!(others.iter().all(there));
        assert_eq!(own.iter().filter(|a| there(a)).count(), 1);
    }
}
