//! Reading the policy again, on a thread of its own: its file system may take its time.
//!
//! One reading follows the other, so that the last one asked for is the one in force. While a file system
//! hangs, the policy stays as it is and later readings wait.

use std::path::Path;
use std::time::Instant;

use partywall_shm::threads;
use partywall_shm::users::Subordinates;

use super::{Asked, EventLoop, Loaded, Notify, Order};
use crate::policy::{AuthorityPlace, Policy, PolicyError};

impl EventLoop {
    /// Has the policy read for `asked` and `notify`, after those who have asked before.
    pub(super) fn read_policy(&mut self, asked: Asked, notify: Notify) {
        self.to_read.push_back((asked, notify));
        if self.to_read.len() == 1 {
            self.read_next();
        }
    }

    fn read_next(&mut self) {
        let Some(&(asked, _)) = self.to_read.front() else { return };
        let Some(file) = self.file.clone() else {
            return self.loaded(Err(PolicyError::NoFile));
        };
        let before = self.state.policy().authority().clone();
        let (orders, name) = (self.sender.clone(), file.display().to_string());
        let read = move || orders.send(Order::Loaded(Box::new(load(&file, &before))));
        let thread = std::thread::Builder::new().name("policy".into());
        if let Err(source) = threads::spawn(thread, read) {
            tracing::error!(error = %source, ?asked, "no thread to read the policy");
            self.loaded(Err(PolicyError::Read { file: name, source }));
        }
    }

    pub(super) fn loaded(&mut self, loaded: Loaded) {
        let Some((asked, notify)) = self.to_read.pop_front() else { return };
        self.reader.subordinates = Subordinates::read();
        let result = match loaded {
            Ok((policy, trust)) => {
                self.reader.engines = policy.engines().clone();
                if let Some(trust) = trust {
                    self.state.trust(trust);
                }
                let changed = self.state.reload(policy, asked, Instant::now());
                tracing::info!(?changed, "the policy was read again");
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "the policy stays as it was");
                self.state.reload_failed(&error.to_string(), asked);
                Err(error)
            }
        };
        if let Some(notify) = notify {
            notify(result);
        }
        self.read_next();
    }
}

/// A policy, and its authority: one for this run goes on, unless something is said of it that is new.
fn load(file: &Path, before: &AuthorityPlace) -> Loaded {
    let policy = Policy::load(file)?;
    let place = policy.authority();
    let trust = match place.is_for_this_run() && place == before {
        true => None,
        false => Some(place.open(policy.clock())?),
    };
    Ok((policy, trust))
}
