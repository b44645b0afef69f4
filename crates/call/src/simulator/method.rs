//! Methods that callers call.

use partywall_abi::frame::MethodName;

/// A method, and its number if it has one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Method {
    pub(super) index: usize,
    pub(super) number: Option<u16>,
}

pub(super) const PATHS: [&str; 4] = ["/a.B/C", "/a.B/D", "/a.B/E", "/a.B/F"];

impl Method {
    pub(super) fn name(self) -> MethodName<'static> {
        self.number.map_or(MethodName::Path(PATHS[self.index]), MethodName::Number)
    }
}
