//! Calls without a runtime.
