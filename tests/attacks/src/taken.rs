//! What a victim says of what is attached to a call, when it has taken and read it.

use std::sync::atomic::Ordering::Relaxed;

use partywall::parcel::{Attachment, ParcelError};

/// Of longer memory this much is read.
const MOST: usize = 8 << 20;

/// Reads all that is attached: what it was, or why it was refused.
pub fn taken(came: Result<Vec<Attachment>, ParcelError>) -> String {
    match came {
        Ok(came) => came.iter().map(read).collect::<Vec<_>>().join(", "),
        Err(why) => why.to_string(),
    }
}

fn read(attachment: &Attachment) -> String {
    match attachment {
        Attachment::Sealed(sealed) => format!("sealed, {}", alike(sealed)),
        Attachment::Owned(view) => {
            let mut bytes = vec![0; view.len().min(MOST)];
            match view.read_at(0, &mut bytes) {
                Ok(()) => format!("owned, {}", alike(&bytes)),
                Err(why) => format!("owned, {why}"),
            }
        }
        Attachment::Lease(lease) => {
            let mut bytes = vec![0; lease.len().min(MOST)];
            lease.read_at(0, &mut bytes);
            // Whatever they are by now.
            let _words = lease.words().iter().map(|word| word.load(Relaxed)).max();
            format!("lease, {}", alike(&bytes))
        }
        Attachment::File(_) => "a file".into(),
        _ => "something else".into(),
    }
}

fn alike(bytes: &[u8]) -> String {
    match bytes {
        [first, rest @ ..] if *rest == bytes[..rest.len()] => format!("{} of {first}", bytes.len()),
        _ => format!("{} mixed", bytes.len()),
    }
}
