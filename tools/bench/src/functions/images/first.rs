//! Answers with the address of its first block of memory, a time stamp, and whether the block was clean.

pub fn handle(request: Request<'_>) -> Reply {
    let stamp = partywall_fn::clock::monotonic().as_nanos() as u64;
    let mut reply = Vec::with_capacity(24);
    let at = reply.as_ptr() as usize as u64;
    reply.extend_from_slice(&at.to_le_bytes());
    reply.extend_from_slice(&stamp.to_le_bytes());
    reply.extend_from_slice(request.body());
    Ok(reply)
}
