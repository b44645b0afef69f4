//! Lines of a function's log, which `partywall fn logs` shows with the number of the call.
//!
//! A line is written into the call's own memory. A call has [`crate::cell::LOG_BYTES`] for its lines. What
//! finds no room is left out, and a last line says of how many lines that was all or a part.

#[doc(hidden)]
pub fn write(line: core::fmt::Arguments<'_>) {
    crate::rt::log(line);
}

/// Writes a line of the log, as `format!` would.
#[macro_export]
macro_rules! log {
    ($($argument:tt)*) => { $crate::log::write(::core::format_args!($($argument)*)) };
}

#[doc(inline)]
pub use log;
