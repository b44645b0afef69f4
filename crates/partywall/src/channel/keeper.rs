//! The task that keeps the links of a channel with a [`Balance`](super::Balance).
//!
//! ```text
//! calls     pick a link that can be used; where there is none, one of them connects (named)
//! keeper    while fewer links than instances can be used, it asks for another one, which the coordinator
//!           gives to the next instance
//! woken by  the watch on the name: an instance has come or gone; a call that finds a link over;
//!           and every RECHECK, for what was refused may be given then
//! ends      with the channel
//! ```
//!
//! Instances are told apart by what the coordinator knows of their processes. A second link to one that
//! has a link already is given back, and as many of these in a row as there are instances end a round: the
//! others take no link of this caller now. So does a quota that is used up. The channel goes on with the
//! links that it has.
//!
//! An instance that ends its links as soon as it has them costs its callers little: a round asks at most
//! twice for each instance, and rounds that follow each other closely have a backoff between them.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::Kind;
use super::named::{Connection, Named};
use crate::backoff::Backoff;
use crate::coordinator::Watching;
use crate::error::Error;

/// How often the keeper looks whether there is more to have, beside being woken.
const RECHECK: Duration = Duration::from_secs(10);

/// Has a task keep the links of a channel with a balance, if there is none yet.
pub(super) fn keep(kind: &Arc<Kind>) {
    if let Kind::Name(named) = &**kind {
        named.links.keep(|| tokio::spawn(kept(Arc::downgrade(kind))).abort_handle());
    }
}

/// The keeper's task, which does not keep the channel.
async fn kept(of: Weak<Kind>) {
    let (mut watch, mut short) = (None::<Watching>, false);
    let mut backoff = Backoff::new();
    loop {
        let begun = Instant::now();
        let wanted = {
            let Some(kind) = of.upgrade() else { return };
            let Kind::Name(named) = &*kind else { return };
            if watch.is_none() {
                watch = named.watch().await.ok();
            }
            let instances = watch.as_mut().map_or(0, |w| *w.instances.borrow_and_update());
            let filled = fill(named, instances as usize).await;
            if let Err(error) = &filled
                && !short
            {
                let (name, links) = (&named.name, named.links.usable());
                tracing::warn!(%name, instances, links, %error, "some instances get no calls");
            }
            short = filled.is_err();
            Arc::clone(&named.links.wanted)
        };
        let changed = async {
            match &mut watch {
                Some(watch) => watch.instances.changed().await,
                None => std::future::pending().await,
            }
        };
        let lost = tokio::select! {
            changed = changed => changed.is_err(),
            () = wanted.notified() => false,
            () = tokio::time::sleep(RECHECK) => false,
        };
        if begun.elapsed() > Backoff::LONGEST {
            backoff = Backoff::new();
        } else {
            tokio::time::sleep(backoff.pause()).await;
        }
        if lost {
            tracing::warn!("the coordinator tells no more how many instances there are");
            watch = None;
            tokio::time::sleep(RECHECK).await;
        }
    }
}

/// Asks for links until there is one to each of so many instances.
///
/// # Errors
/// Why there are fewer, where time alone does not mend that.
async fn fill(named: &Named, instances: usize) -> Result<(), Error> {
    let mut twice = 0;
    for _ in 0..2 * instances {
        if named.links.usable() >= instances || twice >= instances {
            break;
        }
        match named.attempt_once().await {
            Ok(connection @ Connection::Ring { .. }) => {
                twice = if named.links.add(connection) { 0 } else { twice + 1 };
            }
            // The last instance has gone meanwhile.
            Ok(Connection::Http2 { .. }) => break,
            Err(error) if error.may_pass() => {
                tracing::debug!(name = %named.name, %error, "no link to another instance");
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
