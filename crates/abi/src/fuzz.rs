//! Bodies of the fuzz targets for the decoders. Each returns whether the bytes were accepted.

use crate::control::{Message, Setup};
use crate::frame::{
    Metadata, MethodName, PLAIN, Request, RequestHead, Response, decode_method, decode_reset,
    decode_room, decode_window,
};
use crate::limits;

/// Control messages; what is accepted must encode to the same message.
///
/// # Panics
/// When it does not.
pub fn control(data: &[u8]) -> bool {
    let _setup = Setup::decode(data);
    let Ok(message) = Message::decode(data) else { return false };
    assert_eq!(Message::decode(&message.encode()), Ok(message));
    true
}

/// Frames of both directions, plain ones too, with the blocks in them, and the payloads of control records.
/// Accepted is a frame with a head or trailers, or the path of a method.
///
/// # Panics
/// When a path is accepted that none can be, or a plain frame that has something beside its data.
pub fn frame(data: &[u8]) -> bool {
    let [flags, payload @ ..] = data else { return false };
    let _reset = decode_reset(payload);
    let _window = decode_window(payload);
    let _room = decode_room(payload);
    let method = decode_method(payload);
    if let Ok(path) = method {
        assert!(path.starts_with('/') && path.is_ascii() && !path.contains(['?', '#']), "{path}");
        assert!(path.len() <= limits::PATH_BYTES);
    }
    let response = Response::decode(*flags, payload);
    let request = Request::decode(*flags, payload);
    if *flags & PLAIN != 0 {
        let whole = |metadata: &Metadata<'_>| metadata.is_empty();
        let answer = response.as_ref().ok().and_then(|r| r.head.as_ref().zip(r.trailers.as_ref()));
        assert!(answer.is_none_or(|(head, t)| whole(head) && t.code == 0 && whole(&t.metadata)));
        let head = request.as_ref().ok().and_then(|request| request.head.as_ref());
        let is_numbered = |head: &RequestHead<'_>| matches!(head.method, MethodName::Number(_));
        assert!(head.is_none_or(|h| is_numbered(h) && h.timeout.is_none() && whole(&h.metadata)));
    }
    let head = request.ok().and_then(|request| request.head).map(|head| head.metadata);
    let trailers = response.ok().and_then(|response| response.trailers);
    let metadata = head.or(trailers.map(|trailers| trailers.metadata));
    method.is_ok() || metadata.is_some_and(|metadata| metadata.iter().count() == metadata.len())
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use partywall_testkit::Random;

    use crate::control::{
        Grant, Identity, LinkMessage, LinkMethods, LinkRow, LinkStats, ListMessage, MethodStats,
        Role, SessionMessage,
    };
    use crate::frame::{
        ATTACHED, Attached, END, HEAD, Item, KNOWN, MethodName, PLAIN_REQUEST, PLAIN_RESPONSE,
        Place, RequestHead, ResponseHead, TRAILERS, Trailers, write_block, write_entry,
    };
    use crate::name::ServiceName;
    use crate::version::{Capabilities, Versions};

    fn mutate(seeds: &[Vec<u8>], body: fn(&[u8]) -> bool) {
        let mut random = Random::new(1);
        let mut accepted = [0, 0];
        for _ in 0..20_000 {
            accepted[usize::from(body(&random.mutated(seeds)))] += 1;
        }
        assert!(accepted[0] > 500 && accepted[1] > 500, "{accepted:?}");
    }

    #[test]
    fn fuzz_control() {
        let name = ServiceName::new("greeter").unwrap();
        let (versions, capabilities) = (Versions::OWN, Capabilities::OWN);
        let nonce = [1; 16];
        let proof = SessionMessage::Proof { versions, version: 1, capabilities, nonce };
        let method = MethodStats::new("/a.B/C", 2, 1);
        let methods = LinkMethods::new(alloc::vec![method; 2], 1);
        let mut row = LinkRow::new(1, "greeter", Identity::new(1, 1), None);
        row.methods = methods.clone();
        let (link, stats) = (1, LinkStats::default());
        let (role, grant) = (Role::Server, Grant { descriptors: 3, leases: true });
        row.grant = grant;
        let seeds = [
            super::Message::from(LinkMessage::Connect { request: 1, name }).encode(),
            super::Message::from(LinkMessage::Granted { link, role, grant }).encode(),
            super::Message::from(proof).encode(),
            super::Message::from(ListMessage::Row { request: 1, row: row.into() }).encode(),
            super::Message::from(ListMessage::Counted { request: 1, link, stats, methods })
                .encode(),
        ];
        mutate(&seeds, super::control);
    }

    #[test]
    fn fuzz_frame() {
        let mut request = alloc::vec![HEAD];
        write_block(&mut request, |out| {
            RequestHead::write(out, None, "/a.B/C", 1);
            write_entry(out, b"x-a", b"1");
        });
        let mut numbered = alloc::vec![HEAD];
        write_block(&mut numbered, |out| {
            RequestHead::write(out, None, MethodName::Number(3), 0);
        });
        let mut answer = alloc::vec![HEAD | TRAILERS | END];
        write_block(&mut answer, |out| ResponseHead::write(out, 0));
        write_block(&mut answer, |out| {
            Trailers::write(out, 5, 1);
            write_entry(out, b"x-a", b"1");
        });
        let mut attached = alloc::vec![HEAD | ATTACHED];
        write_block(&mut attached, |out| RequestHead::write(out, None, "/a", 0));
        let items = [Item::Sealed { offset: 1, bytes: 2 }, Item::File];
        Attached::write(&mut attached, 1, &items);
        let mut known = alloc::vec![HEAD | ATTACHED | KNOWN];
        write_block(&mut known, |out| RequestHead::write(out, None, "/a", 0));
        let item = Item::Lease { bytes: 1, generation: 2, place: Place::new(3) };
        Attached::write(&mut known, 0, &[item]);
        let plain = alloc::vec![PLAIN_REQUEST, 3, 0, 7];
        let plain_answer = alloc::vec![PLAIN_RESPONSE, 7, 7];
        // No frame has these flags.
        let method = [&[0xff][..], b"/a.B/C"].concat();
        // Each kind by itself, so that each is accepted and refused.
        for seed in [request, numbered, answer, attached, known, plain, plain_answer, method] {
            mutate(&[seed], super::frame);
        }
    }
}
