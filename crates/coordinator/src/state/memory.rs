//! Memory that processes make for parcels, by their own word: how much of it an account may have.
//!
//! ```text
//! process   Want, of all that it has and wants --> charged: Given
//!                                              --> more than its account may have: Refused, no change
//!           Want of less than it has           --> the rest is given back
//!           closes                             --> all is given back
//! ```
//!
//! No coordinator sees what memory a process has. This bounds the processes that keep to it, together, for
//! each account; the kernel bounds the others, by their control group. After a restart of the coordinator
//! each process says again what it has: one that has more than is left is refused, keeps it and makes no
//! more.

use std::sync::Arc;

use partywall_abi::control::MemoryMessage;

use super::{Conn, RESOURCE_EXHAUSTED, Socket, State};
use crate::quota::{Account, Charge, Exceeded, Resource, Usage};

impl State {
    pub(super) fn memory_message(&mut self, conn: Conn, message: MemoryMessage) {
        match message {
            MemoryMessage::Want { request, bytes } => self.want_memory(conn, request, bytes),
            _ => self.breaks_rule(conn),
        }
    }

    fn want_memory(&mut self, conn: Conn, request: u32, bytes: u64) {
        let c = self.connection(conn);
        // A process has said so at its other connection.
        if c.came_by != Socket::Operators {
            let amount = usize::try_from(bytes).unwrap_or(usize::MAX);
            let usage = Arc::clone(&c.standing.usage);
            let before = c.memory.as_ref().map_or(0, Charge::amount);
            let charged = match &mut c.memory {
                Some(charge) if charge.usage().account() == usage.account() => charge.set(amount),
                // Of the account that it has now: what it has already is in no question's way.
                charge => {
                    if let Some(old) = charge {
                        old.force(0);
                    }
                    match usage.charge(Resource::ParcelBytes, amount) {
                        Ok(new) => {
                            *charge = Some(new);
                            Ok(())
                        }
                        Err(why) => {
                            if let Some(old) = charge {
                                old.force(before.min(amount));
                            }
                            // Less always goes.
                            if amount <= before { Ok(()) } else { Err(why) }
                        }
                    }
                }
            };
            if let Err(why) = charged {
                let text = refusal(&why, &usage, before, bytes);
                return self.refuse(conn, request, RESOURCE_EXHAUSTED, text);
            }
        }
        if request != 0 {
            self.send(conn, MemoryMessage::Given { request, bytes });
        }
    }

    /// How much a connection's process has.
    pub(super) fn parcel_bytes(&self, conn: Conn) -> u64 {
        let charge = self.connections.get(&conn).and_then(|c| c.memory.as_ref());
        charge.map_or(0, |charge| Charge::amount(charge) as u64)
    }
}

/// Why a process that has so many bytes cannot have so many, and the remedy.
fn refusal(why: &Exceeded, usage: &Usage, before: usize, bytes: u64) -> String {
    let (account, most) = (usage.account(), usage.limit(Resource::ParcelBytes));
    let has = usage.used(Resource::ParcelBytes);
    let asks = format!("a process of it that has {before} asks for {bytes} in all");
    let Exceeded::Own { .. } = why else {
        return format!("{why}: {asks}; remedy: drop parcels, here or in other processes");
    };
    let place = match account {
        Account::Principal(name) => format!("[principal.{name}.quota] in the policy"),
        Account::Service(_) | Account::Descendants => {
            "[quota] in the policy (`partywall up` has none)".into()
        }
        _ => "[quota] in the policy".into(),
    };
    format!(
        "{account} has {has} bytes of parcels, and may have {most}: {asks}; remedy: drop parcels, or raise \
         `parcel_bytes` under {place}"
    )
}
