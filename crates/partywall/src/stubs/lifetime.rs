#![allow(unsafe_code, reason = "castaway asks for a promise about lifetimes")]
//! A generated client knows its channel among types that may borrow.

// SAFETY: `Channel` (channel.rs) has no parameter, and its fields are owned: whatever it is made of is
// `'static`, so no two types differ from it by a lifetime alone.
unsafe impl castaway::LifetimeFree for crate::Channel {}
