//! What samples and the driver return.

use std::error::Error;

/// Anything that can go wrong in a sample.
pub type Fault = Box<dyn Error + Send + Sync>;

/// What samples return.
pub type Result<T, E = Fault> = std::result::Result<T, E>;
