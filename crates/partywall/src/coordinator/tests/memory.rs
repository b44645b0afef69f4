//! A coordinator that is asked for memory, and is slow or refuses.

use partywall_abi::control::MemoryMessage;

use super::*;

/// What it is asked for of memory, in the order of the questions, until it has been quiet for a moment.
fn wanted(theirs: &OwnedFd, of: usize) -> Vec<u32> {
    let (mut wanted, mut buffer) = (Vec::new(), [0; 256]);
    let quiet = || Instant::now() + Duration::from_millis(100);
    while socket::wait_readable(theirs.as_fd(), quiet()).unwrap() {
        let len = socket::receive(theirs.as_fd(), &mut buffer).unwrap().len;
        // Other tests of this process make parcels as well.
        if let Message::Memory(MemoryMessage::Want { request, bytes }) =
            Message::decode(&buffer[..len]).unwrap()
            && bytes == of as u64
        {
            wanted.push(request);
        }
    }
    wanted
}

/// Each message that could go in a parcel asked again, and waited again.
#[test]
fn memory_is_asked_for_once_where_nobody_answers() {
    const BYTES: usize = 1 << 40;
    let (client, theirs) = alone_at(Capabilities::MEMORY);
    let within = Duration::from_millis(20);
    let begin = Instant::now();
    for within in [within, Duration::ZERO].repeat(100) {
        client.want_memory(BYTES, within).unwrap_err();
    }
    assert!(begin.elapsed() < 50 * within, "{:?}", begin.elapsed());
    let asked = wanted(&theirs, BYTES);
    assert_eq!(asked.len(), 1);
    // Its answer comes late, and is for whoever asks then.
    let answer = |message: Message| socket::send(theirs.as_fd(), &message.encode(), &[]).unwrap();
    answer(MemoryMessage::Given { request: asked[0], bytes: BYTES as u64 }.into());
    let begin = Instant::now();
    while !matches!(client.want_memory(BYTES, Duration::ZERO), Ok(Some(BYTES))) {
        assert!(begin.elapsed() < LONG, "what was given has not come");
    }
    assert_eq!(wanted(&theirs, BYTES).len(), 0);
    // One that has refused is not asked for each message.
    let more = 2 * BYTES;
    client.want_memory(more, Duration::ZERO).unwrap_err();
    let [request] = wanted(&theirs, more)[..] else { panic!("it is asked for more") };
    let (code, text) = (tonic::Code::ResourceExhausted as u8, "no".into());
    answer(SessionMessage::Refused { request, code, text }.into());
    let begin = Instant::now();
    while lock(&client.state).memory_refused.is_none() {
        assert!(begin.elapsed() < LONG, "the refusal has not come");
    }
    // However long this takes.
    lock(&client.state).memory_refused = Some((Instant::now() + LONG, "no more".into()));
    client.want_memory(more, within).unwrap_err();
    assert_eq!(wanted(&theirs, more).len(), 0);
    // Who has the time asks.
    client.want_memory(more, 10 * within).unwrap_err();
    assert_eq!(wanted(&theirs, more).len(), 1);
}
