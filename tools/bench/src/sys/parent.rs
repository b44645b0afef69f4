//! Processes that end with the one that has started them.

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::error::Result;

/// Lets this process end with its parent, `driver`.
///
/// # Errors
/// If that has gone already.
pub fn end_with(driver: u32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().map(|pid| pid.as_raw_pid().unsigned_abs()) != Some(driver) {
        return Err("the driver has gone".into());
    }
    Ok(())
}
