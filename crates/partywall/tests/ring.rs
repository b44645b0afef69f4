//! Calls over the ring, inside one process that is both sides.

mod ring_suite;
