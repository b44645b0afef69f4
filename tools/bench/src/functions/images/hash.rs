//! Hashes so many blocks of 64 bytes as its request says, and answers with the sum of the digests' first
//! words.

mod sha512;

pub fn handle(request: Request<'_>) -> Reply {
    let stamp = partywall_fn::clock::monotonic().as_nanos() as u64;
    let blocks = request.body().iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
    let mut reply = Vec::with_capacity(24);
    reply.extend_from_slice(&sha512::sum(blocks).to_le_bytes());
    reply.extend_from_slice(&stamp.to_le_bytes());
    Ok(reply)
}
