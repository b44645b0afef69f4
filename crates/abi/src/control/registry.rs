//! Names: who serves them, and who wants to know how many do.

use alloc::string::String;

use super::fields::{name, put_name, put_text};
use super::{start, unknown};
use crate::codec::{DecodeError, Reader, Writer};
use crate::limits;
use crate::name::ServiceName;

pub(super) const KINDS: u16 = 0x0200;
const REGISTER: u16 = KINDS | 1;
const REGISTERED: u16 = KINDS | 2;
const UNREGISTER: u16 = KINDS | 3;
const UNREGISTERED: u16 = KINDS | 4;
const WATCH: u16 = KINDS | 5;
const WATCHED: u16 = KINDS | 6;
const UNWATCH: u16 = KINDS | 7;

/// Messages about names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistryMessage {
    /// To the coordinator: I serve this name.
    Register {
        /// Request number.
        request: u32,
        /// The name.
        name: ServiceName,
        /// Links that it can serve at once, under all names of this process together.
        places: u32,
    },
    /// To the process: you do.
    Registered {
        /// Request number.
        request: u32,
        /// Number of this registration.
        registration: u64,
    },
    /// To the coordinator: I no longer serve it; open links go on.
    Unregister {
        /// Number of the registration.
        registration: u64,
    },
    /// To the server: this registration is over.
    Unregistered {
        /// Number of the registration.
        registration: u64,
        /// Why.
        text: String,
    },
    /// To the coordinator: tell me now, and at each change, how many serve this name.
    Watch {
        /// Request number.
        request: u32,
        /// The name.
        name: ServiceName,
    },
    /// To the process: so many.
    Watched {
        /// Number of the watch request.
        request: u32,
        /// Instances that serve the name now.
        instances: u32,
    },
    /// To the coordinator: enough.
    Unwatch {
        /// Number of the watch request.
        request: u32,
    },
}

impl RegistryMessage {
    pub(super) fn put(&self, w: &mut Writer<'_>) {
        match self {
            Self::Register { request, name, places } => {
                start(w, REGISTER, *request);
                put_name(w, name);
                w.u32(*places);
            }
            Self::Registered { request, registration } => {
                start(w, REGISTERED, *request);
                w.u64(*registration);
            }
            Self::Unregister { registration } => {
                start(w, UNREGISTER, 0);
                w.u64(*registration);
            }
            Self::Unregistered { registration, text } => {
                start(w, UNREGISTERED, 0);
                w.u64(*registration);
                put_text(w, text, limits::ERROR_TEXT_BYTES);
            }
            Self::Watch { request, name } => {
                start(w, WATCH, *request);
                put_name(w, name);
            }
            Self::Watched { request, instances } => {
                start(w, WATCHED, *request);
                w.u32(*instances);
            }
            Self::Unwatch { request } => start(w, UNWATCH, *request),
        }
    }

    pub(super) fn take(kind: u16, request: u32, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match kind {
            REGISTER => Self::Register { request, name: name(r)?, places: r.u32("places")? },
            REGISTERED => Self::Registered { request, registration: r.u64("registration")? },
            UNREGISTER => Self::Unregister { registration: r.u64("registration")? },
            UNREGISTERED => Self::Unregistered {
                registration: r.u64("registration")?,
                text: r.short_text("text", limits::ERROR_TEXT_BYTES)?,
            },
            WATCH => Self::Watch { request, name: name(r)? },
            WATCHED => Self::Watched { request, instances: r.u32("instances")? },
            UNWATCH => Self::Unwatch { request },
            _ => return Err(unknown(kind)),
        })
    }
}
