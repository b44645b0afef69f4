//! The function that answers with its number and a time stamp. The number is patched in each copy.

static NUMBER: u64 = 0x5a17_c040_4040_4040;

pub fn handle(_: Request<'_>) -> Reply {
    let stamp = partywall_fn::clock::monotonic().as_nanos() as u64;
    let number = *core::hint::black_box(&NUMBER);
    let mut reply = Vec::with_capacity(24);
    reply.extend_from_slice(&number.to_le_bytes());
    reply.extend_from_slice(&stamp.to_le_bytes());
    Ok(reply)
}
