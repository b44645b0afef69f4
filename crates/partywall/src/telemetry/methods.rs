//! The instruments of each method, which are made once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, PoisonError, RwLock};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use tonic::Code;

use super::metrics::{
    BEGUN, BYTES, CLIENT_DURATION, MESSAGES, OTHER, SERVER_DURATION, SYSTEM, UNDER_WAY, name_of,
};

/// Methods of a side that have a label of their own.
pub(super) const MOST: usize = 512;

/// Of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Side {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// Of data.
#[derive(Clone, Copy)]
pub(super) enum Direction {
    Request,
    Answer,
}

/// Bytes and messages of each direction.
pub(super) type Early = [(AtomicU64, AtomicU64); 2];

/// The instruments of one method on one side.
pub(super) struct Method {
    side: Side,
    label: Arc<str>,
    pub(super) begun: Counter,
    pub(super) under_way: Gauge,
    bytes: [Counter; 2],
    messages: [Counter; 2],
    durations: [OnceLock<Histogram>; 17],
}

impl Method {
    fn new(side: Side, label: Arc<str>) -> Arc<Self> {
        let passed = |name: &'static str| {
            ["request", "answer"].map(|direction| {
                let label = Arc::clone(&label);
                counter!(name, "side" => side.word(), "rpc_method" => label, "direction" => direction)
            })
        };
        let begun = counter!(BEGUN, "side" => side.word(), "rpc_method" => Arc::clone(&label));
        let under_way = gauge!(UNDER_WAY, "side" => side.word());
        let (bytes, messages) = (passed(BYTES), passed(MESSAGES));
        Arc::new(Self {
            side,
            label,
            begun,
            under_way,
            bytes,
            messages,
            durations: Default::default(),
        })
    }

    pub(super) fn passed(&self, direction: Direction, bytes: u64, messages: u64) {
        self.bytes[direction as usize].increment(bytes);
        self.messages[direction as usize].increment(messages);
    }

    /// Data have passed before it was known that they are of this method.
    pub(super) fn passed_early(&self, early: &Early) {
        for (direction, (bytes, messages)) in early.iter().enumerate() {
            self.bytes[direction].increment(bytes.swap(0, Ordering::Relaxed));
            self.messages[direction].increment(messages.swap(0, Ordering::Relaxed));
        }
    }

    pub(super) fn ended(&self, code: Code, seconds: f64) {
        let name = match self.side {
            Side::Client => CLIENT_DURATION,
            Side::Server => SERVER_DURATION,
        };
        let duration = self.durations[code as usize].get_or_init(|| {
            histogram!(
                name,
                "rpc_system_name" => SYSTEM,
                "rpc_method" => Arc::clone(&self.label),
                "rpc_response_status_code" => name_of(code),
            )
        });
        duration.record(seconds);
    }
}

/// What is known of a side's methods.
#[derive(Default)]
struct Known {
    methods: RwLock<HashMap<Arc<str>, Arc<Method>>>,
    other: OnceLock<Arc<Method>>,
}

static KNOWN: LazyLock<[Known; 2]> = LazyLock::new(Default::default);

thread_local! {
    /// The method that this thread has looked up last, of each side.
    static LAST: RefCell<[Option<Arc<Method>>; 2]> = const { RefCell::new([const { None }; 2]) };
}

/// A method that has a label of its own.
pub(super) fn known(side: Side, name: &str) -> Option<Arc<Method>> {
    LAST.with_borrow_mut(|last| {
        let last = &mut last[side as usize];
        if last.as_ref().is_none_or(|last| *last.label != *name) {
            let methods = KNOWN[side as usize].methods.read();
            let found = methods.unwrap_or_else(PoisonError::into_inner).get(name).cloned();
            *last = Some(found?);
        }
        last.clone()
    })
}

/// A method of which a call was answered: it has a label of its own from here on, if there is one left.
pub(super) fn learn(side: Side, name: &str) -> Arc<Method> {
    let methods = KNOWN[side as usize].methods.write();
    let mut methods = methods.unwrap_or_else(PoisonError::into_inner);
    if let Some(method) = methods.get(name) {
        return Arc::clone(method);
    }
    if methods.len() >= MOST {
        return other(side);
    }
    let label = Arc::<str>::from(name);
    let method = Method::new(side, Arc::clone(&label));
    methods.insert(label, Arc::clone(&method));
    method
}

/// All methods that have none.
pub(super) fn other(side: Side) -> Arc<Method> {
    let other = &KNOWN[side as usize].other;
    Arc::clone(other.get_or_init(|| Method::new(side, OTHER.into())))
}
