//! What a recorder of `metrics` and a subscriber of `tracing` hear of calls. Both are the process's own, so
//! this is a program of its own, and each test has a service of its own or looks at what is its.

mod metrics;
mod setup;
mod traces;
