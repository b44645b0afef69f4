//! What the camera, the program that processes its frames, and the viewer share.
#![allow(missing_docs)]

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub mod film;
pub mod picture;
pub mod process;
pub mod view;

tonic::include_proto!("camera.v1");

pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Longer than a frame in a message.
const MOST: usize = picture::BYTES + 4096;

impl Way {
    /// The copies of a frame's pixels between the camera's memory and the processor's look at them: where
    /// each is made. They are known from the code on the way, not measured.
    pub fn copies(self) -> &'static [&'static str] {
        match self {
            // The processor reads the camera's memory (`partywall::parcel::View::read`).
            Self::Parcel => &[],
            // A field of `bytes` is a part of tonic's buffer, without a fifth one.
            Self::Message => &[
                "encoded into tonic's buffer",
                "from there into the socket",
                "out of the socket into HTTP/2's buffer",
                "from there into tonic's buffer",
            ],
        }
    }
}

/// The processor time of this process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Ends with Ctrl-C or SIGTERM.
async fn stopped() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
