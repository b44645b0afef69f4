use super::*;
use alloc::string::String;
use alloc::vec;
use proptest::prelude::*;

#[test]
fn a_unary_request_is_one_frame() {
    let mut payload = Vec::new();
    write_block(&mut payload, |out| {
        RequestHead::write(out, Some(Duration::from_nanos(5)), "/a.B/C", 1);
        write_entry(out, b"x-bin", b"\x00\xff");
    })
    .unwrap();
    payload.extend_from_slice(b"data");
    let frame = Request::decode(HEAD | END, &payload).unwrap();
    let head = frame.head.unwrap();
    assert_eq!(head.timeout, Some(Duration::from_nanos(5)));
    assert_eq!((head.method, frame.data), (MethodName::Path("/a.B/C"), Data::Here(b"data")));
    assert_eq!(head.metadata.iter().collect::<Vec<_>>(), [(&b"x-bin"[..], &b"\x00\xff"[..])]);
}

#[test]
fn plain_frames_are_what_blocks_of_the_least_say() {
    let (mut request, mut response) = (Vec::new(), Vec::new());
    write_block(&mut request, |out| {
        RequestHead::write(out, None, MethodName::Number(300), 0);
    })
    .unwrap();
    write_block(&mut response, |out| ResponseHead::write(out, 0)).unwrap();
    write_block(&mut response, |out| Trailers::write(out, 0, 0)).unwrap();
    let data = |mut block: Vec<u8>| {
        block.extend_from_slice(b"data");
        block
    };
    let (request, response) = (data(request), data(response));
    let plain = data(Request::plain(300).to_vec());
    assert_eq!(Request::decode(PLAIN_REQUEST, &plain), Request::decode(HEAD | END, &request));
    assert_eq!(
        Response::decode(PLAIN_RESPONSE, b"data"),
        Response::decode(HEAD | TRAILERS | END, &response)
    );
}

#[test]
fn data_in_a_parcel_are_a_reference() {
    let parcel = ParcelRef { packet: 1, offset: 1 << 40, bytes: 5, owned: None };
    let bytes = parcel.encode();
    let frame = Request::decode(PARCEL | END, &bytes).unwrap();
    assert_eq!((frame.data, frame.data.len()), (Data::InParcel(parcel), 5));
    let mut answer = Vec::new();
    write_block(&mut answer, |out| ResponseHead::write(out, 0)).unwrap();
    answer.extend_from_slice(&bytes);
    assert_eq!(Response::decode(HEAD | PARCEL, &answer).unwrap().data, Data::InParcel(parcel));
    assert_eq!(ParcelRef::of(&answer), Ok(parcel));
    for flags in [PARCEL | ROOM, PARCEL | PLAIN_REQUEST, PARCEL | PLAIN_RESPONSE] {
        assert!(Request::decode(flags, &bytes).is_err(), "{flags:#x}");
        assert!(Response::decode(flags, &bytes).is_err(), "{flags:#x}");
    }
    let field = Err(DecodeError::Value { field: "parcel's bytes", found: 0 });
    let none = ParcelRef { bytes: 0, ..parcel }.encode();
    assert_eq!(Request::decode(PARCEL, &none), field);
    let most = i64::MAX as u64;
    for (offset, bytes, fits) in [(0, most, true), (1, most, false), (u64::MAX, 2, false)] {
        let wrapped = ParcelRef { packet: 0, offset, bytes, owned: None }.encode();
        assert_eq!(Request::decode(PARCEL, &wrapped).is_ok(), fits, "{offset} {bytes}");
    }
    let generation = u32::MAX;
    for place in 0..limits::OWNED_PARCELS {
        let owned = ParcelRef { owned: Some(Owned { place, generation }), ..parcel };
        assert_eq!(ParcelRef::of(&owned.encode()), Ok(owned));
    }
    for (place, field) in
        [(limits::OWNED_PARCELS, "parcel's place"), (u32::MAX, "parcel's generation")]
    {
        let owned = ParcelRef { owned: Some(Owned { place, generation }), ..parcel };
        let refused = ParcelRef::of(&owned.encode());
        assert!(
            matches!(refused, Err(DecodeError::Value { field: f, .. }) if f == field),
            "{refused:?}"
        );
    }
}

#[test]
fn refusals_name_the_field() {
    let over = (limits::HEAD_BYTES as u32 + 1).to_le_bytes();
    assert!(matches!(
        Response::decode(HEAD, &over),
        Err(DecodeError::TooLarge { field: "head length", .. })
    ));
    assert!(matches!(
        Request::decode(HEAD, &[9, 0, 0, 0, 1]),
        Err(DecodeError::Short { field: "head length", .. })
    ));
    for flags in [64, PLAIN, HEAD | PLAIN, PLAIN_REQUEST | ROOM, PLAIN_RESPONSE] {
        assert!(Request::decode(flags, &[0; 20]).is_err(), "{flags:#x}");
    }
    for flags in [64, PLAIN, HEAD | PLAIN, PLAIN_RESPONSE | ROOM, PLAIN_REQUEST] {
        assert!(Response::decode(flags, &[0; 20]).is_err(), "{flags:#x}");
    }
    let short = Err(DecodeError::Short { field: "method number", at: 0 });
    assert_eq!(Request::decode(PLAIN_REQUEST, &[7]), short);
    for (streams, window) in [
        (0, limits::FIRST_WINDOW),
        (limits::STREAMS_MAX as u32 + 1, limits::FIRST_WINDOW),
        (1, limits::FIRST_WINDOW - 1),
        (1, limits::LINK_WINDOW + 1),
    ] {
        let refused = Limits::decode(&Limits { streams, window }.encode());
        assert!(matches!(refused, Err(DecodeError::Value { .. })), "{streams} {window}");
    }
    let least = Limits { streams: 1, window: limits::FIRST_WINDOW };
    assert_eq!(Limits::decode(&least.encode()), Ok(least));
    assert!(Limits::decode(&[1; 9]).is_err());
    assert!(decode_room(&[0; 7]).is_err());
    assert!(Trailers::decode(&[17, 0, 0]).is_err());
    assert!(decode_window(&[0; 4]).is_err());
    assert!(decode_window(&[1, 0, 0, 0, 0]).is_err());
    let mut no_slash = Vec::new();
    RequestHead::write(&mut no_slash, None, "a", 0);
    assert_eq!(RequestHead::decode(&no_slash), Err(DecodeError::Text { field: "path" }));
    for path in ["/a.B/Secret?/Open", "/a.B/Secret#/Open"] {
        let mut two_faced = Vec::new();
        RequestHead::write(&mut two_faced, None, path, 0);
        assert_eq!(RequestHead::decode(&two_faced), Err(DecodeError::Text { field: "path" }));
    }
    let mut nameless = vec![1, 0];
    write_entry(&mut nameless, b"", b"v");
    assert!(ResponseHead::decode(&nameless).is_err());
    let mut many = Vec::new();
    ResponseHead::write(&mut many, limits::METADATA_ENTRIES as u16 + 1);
    assert!(ResponseHead::decode(&many).is_err());
}

#[test]
fn attachments_stand_between_the_head_and_the_rest() {
    let items = [
        Item::Sealed { offset: 4096, bytes: 7 },
        Item::Owned { bytes: 1 << 40, generation: 6, place: Place::new(0) },
        Item::Lease { bytes: i64::MAX as u64, generation: u64::MAX, place: Place::new(7) },
        Item::Owned { bytes: 1, generation: 0, place: None },
        Item::File,
    ];
    let mut request = Vec::new();
    write_block(&mut request, |out| RequestHead::write(out, None, "/a/b", 0)).unwrap();
    Attached::write(&mut request, 5, &items);
    request.extend_from_slice(b"data");
    let frame = Request::decode(HEAD | ATTACHED, &request).unwrap();
    assert_eq!((frame.head.unwrap().method, frame.data), ("/a/b".into(), Data::Here(b"data")));
    let attached = frame.attached.unwrap();
    assert_eq!((attached.packet, Attached::of(ATTACHED, &request)), (5, Ok(attached)));
    assert!(attached.items().eq(items));
    let mut answer = Vec::new();
    write_block(&mut answer, |out| ResponseHead::write(out, 0)).unwrap();
    Attached::write(&mut answer, 6, &items[4..]);
    write_block(&mut answer, |out| Trailers::write(out, 0, 0)).unwrap();
    let frame = Response::decode(HEAD | TRAILERS | END | ATTACHED, &answer).unwrap();
    assert_eq!((frame.trailers.unwrap().code, frame.attached.unwrap().packet), (0, 6));
    // Only a head has some, and a plain frame has none.
    let both = ATTACHED | PARCEL | HEAD;
    let plain = [ATTACHED | PLAIN_REQUEST, ATTACHED | PLAIN_RESPONSE];
    for flags in [ATTACHED, both, plain[0], plain[1], KNOWN | HEAD, KNOWN | ATTACHED] {
        assert!(Request::decode(flags, &request).is_err(), "{flags:#x}");
        assert!(Response::decode(flags, &answer).is_err(), "{flags:#x}");
    }
    assert!(Attached::of(ATTACHED, &request[..request.len() - 5]).is_err(), "the last one is cut");
}

#[test]
fn memory_that_is_known_has_a_place_and_no_packet() {
    let place = Place::new(0);
    let [owned, lease] = [
        Item::Owned { bytes: 1, generation: 2, place },
        Item::Lease { bytes: 3, generation: 4, place },
    ];
    let decode = |packet, items: &[Item]| {
        let mut payload = Vec::new();
        write_block(&mut payload, |out| ResponseHead::write(out, 0)).unwrap();
        Attached::write(&mut payload, packet, items);
        let frame = Response::decode(HEAD | ATTACHED | KNOWN, &payload);
        frame.map(|frame| frame.attached.unwrap().items().collect::<Vec<_>>())
    };
    assert_eq!(decode(0, &[owned, lease]), Ok(vec![owned, lease]));
    let wrong = |field, found| Err(DecodeError::Value { field, found });
    assert_eq!(decode(1, &[owned, lease]), wrong("attachments' packet", 1));
    let homeless = Item::Owned { bytes: 1, generation: 2, place: None };
    for without in [Item::File, Item::Sealed { offset: 0, bytes: 1 }, homeless] {
        assert_eq!(decode(0, &[owned, without]), wrong("attachment's place", 0));
    }
    assert_eq!(Place::new(limits::ATTACHED_PLACES), None);
}

#[test]
fn attachments_that_cannot_be_are_refused_by_name() {
    let refused = |count: u8, kind: u8, first: u64, second: u64| {
        let mut payload = Vec::new();
        write_block(&mut payload, |out| ResponseHead::write(out, 0)).unwrap();
        let mut w = Writer(&mut payload);
        w.u64(0);
        w.u8(count);
        for _ in 0..count {
            w.u8(kind);
            w.u64(first);
            w.u64(second);
        }
        match Attached::of(HEAD | ATTACHED, &payload) {
            Err(DecodeError::Value { field, found }) => (field, found),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(0, 4, 0, 0), ("attachments", 0));
    assert_eq!(refused(17, 4, 0, 0), ("attachments", 17));
    for kind in [0, 5, 15] {
        assert_eq!(refused(1, kind, 1, 0), ("attachment's kind", kind.into()));
    }
    for (kind, place) in [(0x11, 1), (0x74, 7), (0x20, 2), (0x92, 9), (0xf3, 15), (0xff, 15)] {
        assert_eq!(refused(1, kind, 1, 0), ("attachment's place", place), "{kind:#x}");
    }
    for kind in 1..=3 {
        for bytes in [0, 1 << 63] {
            assert_eq!(refused(1, kind, bytes, 0), ("attachment's bytes", bytes));
        }
    }
    assert_eq!(refused(1, 4, 1, 0), ("attachment's bytes", 1));
    assert_eq!(refused(1, 4, 0, 1), ("attachment's second word", 1));
    let end = i64::MAX as u64;
    assert_eq!(refused(1, 1, 2, end - 1), ("attachment's second word", end - 1));
}

#[test]
fn a_block_over_the_limit_is_taken_back() {
    let mut out = vec![7];
    assert_eq!(write_block(&mut out, |o| o.resize(limits::HEAD_BYTES + 10, 0)), None);
    assert_eq!(out, [7]);
}

#[test]
fn reset_text_is_cut_at_a_character() {
    let mut out = Vec::new();
    write_reset(&mut out, 14, &"ä".repeat(limits::ERROR_TEXT_BYTES));
    let (code, text) = decode_reset(&out).unwrap();
    assert_eq!(code, 14);
    assert_eq!(text.len(), limits::ERROR_TEXT_BYTES);
}

proptest! {
    #[test]
    fn metadata_round_trips(
        entries in proptest::collection::vec((".{1,20}", proptest::collection::vec(any::<u8>(), 0..40)), 0..20),
        code in 0..CODES.len() as u8,
    ) {
        let mut block = Vec::new();
        Trailers::write(&mut block, code, entries.len() as u16);
        for (name, value) in &entries {
            write_entry(&mut block, name.as_bytes(), value);
        }
        let t = Trailers::decode(&block).unwrap();
        prop_assert_eq!(t.code, code);
        let back: Vec<(String, Vec<u8>)> = t.metadata.iter()
            .map(|(n, v)| (String::from_utf8(n.to_vec()).unwrap(), v.to_vec())).collect();
        prop_assert_eq!(back, entries);
    }

    #[test]
    fn no_bytes_panic(flags in any::<u8>(), bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(Request { head: Some(head), .. }) = Request::decode(flags, &bytes) {
            head.metadata.iter().count();
        }
        let _ = Response::decode(flags, &bytes);
        let _ = Attached::of(flags, &bytes);
        let _ = decode_method(&bytes);
        let _ = RequestHead::decode(&bytes);
        let _ = ResponseHead::decode(&bytes);
        let _ = Trailers::decode(&bytes);
        let _ = decode_reset(&bytes);
        let _ = decode_window(&bytes);
        let _ = Limits::decode(&bytes);
        let _ = decode_room(&bytes);
    }
}
