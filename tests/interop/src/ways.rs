//! Which way unary calls go, as each end of them can tell.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use partywall::operator::LinkInfo;
use tonic::metadata::MetadataMap;

/// The unary methods of the service.
const UNARY: [&str; 4] = [
    "/grpc.testing.TestService/CacheableUnaryCall",
    "/grpc.testing.TestService/EmptyCall",
    "/grpc.testing.TestService/UnaryCall",
    "/grpc.testing.TestService/UnimplementedCall",
];

/// So many unary calls went each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Without HTTP.
    pub native: u64,
    /// As requests and responses of HTTP.
    pub ordinary: u64,
}

impl Counts {
    /// What the service's ends of these links say of its unary methods, while at most so many calls are on
    /// their way: one whose way is not decided yet is listed as native for that moment.
    pub fn of_busy(links: &[LinkInfo], in_flight: u64) -> Self {
        let Self { native, ordinary } = Self::of(links);
        Self { native: native.saturating_sub(in_flight), ordinary }
    }

    /// What the service's ends of these links say of its unary methods, while no call is on its way.
    pub fn of(links: &[LinkInfo]) -> Self {
        let methods = links.iter().flat_map(|link| &link.methods.most_called);
        let unary = methods.filter(|method| UNARY.contains(&method.path.as_str()));
        unary.fold(Self::default(), |sum, method| Self {
            native: sum.native + method.native,
            ordinary: sum.ordinary + method.ordinary,
        })
    }
}

/// Counts unary calls at one of their ends; clones share the counts.
///
/// What went as a message of HTTP has HTTP's content type among its metadata: a response at the caller, a
/// request at the handler. What went natively has the metadata of the other end and no more.
#[derive(Clone, Debug, Default)]
pub struct Ways(Arc<[AtomicU64; 2]>);

impl Ways {
    /// Counts a call by what has come of it.
    pub(crate) fn count(&self, metadata: &MetadataMap) {
        let [native, ordinary] = &*self.0;
        let way = if metadata.contains_key("content-type") { ordinary } else { native };
        way.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts.
    pub fn counts(&self) -> Counts {
        let [native, ordinary] = &*self.0;
        Counts {
            native: native.load(Ordering::Relaxed),
            ordinary: ordinary.load(Ordering::Relaxed),
        }
    }
}
