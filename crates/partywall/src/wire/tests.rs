use super::*;

fn timeout(text: &'static str) -> Option<Duration> {
    let mut h = HeaderMap::new();
    h.insert(GRPC_TIMEOUT, HeaderValue::from_bytes(text.as_bytes()).unwrap());
    parse_timeout(&h)
}

#[test]
fn timeouts_of_every_unit() {
    assert_eq!(timeout("2H"), Some(Duration::from_secs(7200)));
    assert_eq!(timeout("1M"), Some(Duration::from_secs(60)));
    assert_eq!(timeout("99999999S"), Some(Duration::from_secs(99_999_999)));
    assert_eq!(timeout("20m"), Some(Duration::from_millis(20)));
    assert_eq!(timeout("5u"), Some(Duration::from_micros(5)));
    assert_eq!(timeout("7n"), Some(Duration::from_nanos(7)));
    for bad in ["", "S", "1", "-1S", "123456789S", "1s", "1é"] {
        assert_eq!(timeout(bad), None, "{bad}");
    }
    for t in [1_u64, 99_999_999, 100_000_000, 3_600_000_000_000, u64::MAX] {
        let t = Duration::from_nanos(t);
        let mut h = HeaderMap::new();
        h.insert(GRPC_TIMEOUT, format_timeout(t));
        let back = parse_timeout(&h).unwrap();
        assert!(back <= t && (t - back).as_nanos() * 1000 <= t.as_nanos(), "{t:?} {back:?}");
    }
}

#[test]
fn a_request_head_keeps_what_matters() {
    let mut h = HeaderMap::new();
    h.insert(TE, HeaderValue::from_static("trailers"));
    h.insert(CONTENT_TYPE, GRPC);
    h.insert(GRPC_TIMEOUT, HeaderValue::from_static("1S"));
    h.append("x-a", HeaderValue::from_static("1"));
    h.append("x-a", HeaderValue::from_static("2"));
    let mut out = Vec::new();
    write_request_head(&mut out, "/a.B/C", &h, Some(Duration::from_secs(1))).unwrap();
    let head = RequestHead::decode(&out[4..]).unwrap();
    assert_eq!(head.metadata.len(), 2);
    let back = request_headers(head.timeout, &head.metadata, &mut http::Uri::default());
    assert_eq!(back.get_all("x-a").iter().count(), 2);
    assert_eq!((&back[CONTENT_TYPE], &back[header::USER_AGENT]), (&GRPC, &USER_AGENT));
    assert_eq!(parse_timeout(&back), Some(Duration::from_secs(1)));
}

/// A head as a peer of its own making has it.
fn head_of(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::write_block(&mut out, |out| {
        ResponseHead::write(out, 0);
        let entries = entries.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        frame::write_entries(out, entries);
    });
    out.split_off(4)
}

#[test]
fn what_never_travels_is_left_out_where_it_comes() {
    let head = head_of(&[
        ("te", "x"),
        ("connection", "close"),
        ("transfer-encoding", "chunked"),
        ("content-length", "99"),
        ("grpc-timeout", "1n"),
        ("x-own", "yes"),
    ]);
    let metadata = ResponseHead::decode(&head).unwrap();
    let own =
        HeaderMap::from_iter([(HeaderName::from_static("x-own"), HeaderValue::from_static("yes"))]);
    assert_eq!(own_headers(None, &metadata), own);
    let mut seen = request_headers(None, &metadata, &mut http::Uri::default());
    assert!(seen.remove(CONTENT_TYPE).is_some() && seen.remove(header::USER_AGENT).is_some());
    assert_eq!(seen, own);
}

#[test]
fn a_status_with_message_and_details_round_trips() {
    let status = Status::with_details(Code::NotFound, "weg ä\n", "d".repeat(100).into());
    let mut out = Vec::new();
    write_status(&mut out, &status);
    let block = Trailers::decode(&out[4..]).unwrap();
    let headers = trailers(block.code, &block.metadata);
    let back = Status::from_header_map(&headers).unwrap();
    assert_eq!((back.code(), back.message()), (Code::NotFound, "weg ä\n"));
    assert_eq!(back.details(), status.details());
}

#[test]
fn head_over_the_limit_is_an_error() {
    let mut out = Vec::new();
    let mut h = HeaderMap::new();
    h.insert("x", HeaderValue::try_from("x".repeat(limits::HEAD_BYTES)).unwrap());
    for e in [
        write_request_head(&mut out, "/a.B/C", &h, None).unwrap_err(),
        check_request("/a.B/C", &h).unwrap_err(),
        write_response_head(&mut out, &h).unwrap_err(),
        check_response(&h).unwrap_err(),
    ] {
        assert_eq!(e.code(), Code::ResourceExhausted);
        assert!(e.message().contains("20480"), "{e}");
    }
}

#[test]
fn a_content_type_of_the_callers_own_is_the_only_one() {
    for text in ["application/grpc+proto", "application/grpc-web+proto"] {
        let mut h = HeaderMap::new();
        h.insert(CONTENT_TYPE, HeaderValue::from_static(text));
        let mut out = Vec::new();
        write_request_head(&mut out, "/a.B/C", &h, None).unwrap();
        let head = RequestHead::decode(&out[4..]).unwrap();
        let back = request_headers(head.timeout, &head.metadata, &mut http::Uri::default());
        assert_eq!(back.get_all(CONTENT_TYPE).iter().collect::<Vec<_>>(), [text]);
        out.clear();
        write_response_head(&mut out, &h).unwrap();
        let back = response_headers(&ResponseHead::decode(&out[4..]).unwrap());
        assert_eq!(back.get_all(CONTENT_TYPE).iter().collect::<Vec<_>>(), [text]);
    }
}

#[test]
fn a_user_agent_of_the_callers_own_comes_first() {
    let mut h = HeaderMap::new();
    h.insert(header::USER_AGENT, HeaderValue::from_static("mine/2"));
    let mut out = Vec::new();
    write_request_head(&mut out, "/a.B/C", &h, None).unwrap();
    let head = RequestHead::decode(&out[4..]).unwrap();
    let back = request_headers(head.timeout, &head.metadata, &mut http::Uri::default());
    let clients: Vec<_> = back.get_all(header::USER_AGENT).iter().collect();
    assert_eq!(clients, ["mine/2 partywall/1"]);
}

#[test]
fn a_response_has_a_content_type() {
    let mut out = Vec::new();
    write_response_head(&mut out, &HeaderMap::new()).unwrap();
    let back = response_headers(&ResponseHead::decode(&out[4..]).unwrap());
    assert_eq!(back[CONTENT_TYPE], GRPC);
}

fn sent(status: &Status) -> Status {
    let mut out = Vec::new();
    write_status(&mut out, status);
    let block = Trailers::decode(&out[4..]).unwrap();
    let headers = trailers(block.code, &block.metadata);
    assert!(list_size(headers.iter()) <= FAILED_BYTES);
    Status::from_header_map(&headers).unwrap()
}

/// `Aborted` with 24 KiB of text arrived as RESOURCE_EXHAUSTED.
#[test]
fn the_code_of_a_status_survives_a_message_of_any_length() {
    for letter in ["x", " ", "%", "ä", "\u{1f608}", "aä "] {
        for len in [100, 10_000, 15_000, 20_000, 24 << 10, 1 << 20] {
            let text = letter.repeat(len);
            let back = sent(&Status::with_details(Code::Aborted, &text, vec![1; 500].into()));
            assert_eq!(back.code(), Code::Aborted, "{len} of {letter}");
            assert!(text.starts_with(back.message()), "{len} of {letter}");
            assert!(back.message().len() >= text.len().min(FAILED_BYTES / 4), "{}", len);
            assert_eq!(back.details(), [1; 500]);
        }
    }
}

#[test]
fn status_code_survives_details_and_metadata_of_any_length() {
    for len in [11_000, 12_000, 100_000] {
        let details = Status::with_details(Code::DataLoss, "why", vec![1; len].into());
        let back = sent(&details);
        assert_eq!(back.code(), Code::DataLoss);
        assert!(back.message().starts_with("why"), "{back}");
        assert!(back.details().len() == len || back.message().contains("left out"), "{back}");
    }
    let mut many = Status::aborted("why");
    for n in 0..limits::METADATA_ENTRIES {
        let key: tonic::metadata::MetadataKey<_> = format!("x-{n}").parse().unwrap();
        many.metadata_mut().insert(key, "1".parse().unwrap());
    }
    let back = sent(&many);
    assert_eq!(back.code(), Code::Aborted);
    assert!(back.message().contains("left out"), "{back}");
}

#[test]
fn details_that_are_not_base64_are_dropped_for_each_status() {
    for code in ["0", "5", "99"] {
        let mut h = HeaderMap::new();
        h.insert(GRPC_STATUS, HeaderValue::from_static(code));
        h.insert(GRPC_DETAILS, HeaderValue::from_static("!!"));
        assert!(!fit(&h).expect("another one").contains_key(GRPC_DETAILS), "{code}");
        h.insert(GRPC_DETAILS, HeaderValue::from_static("aGk="));
        assert!(fit(&h).is_none(), "{code}");
    }
    let mut plain = http::Response::builder().status(503).body(()).unwrap();
    plain.headers_mut().insert(GRPC_DETAILS, HeaderValue::from_static("!!"));
    plain.headers_mut().insert("retry-after", HeaderValue::from_static("7"));
    let headers = headers_of(&http_status(&plain));
    assert!(!headers.contains_key(GRPC_DETAILS));
    assert_eq!(headers["retry-after"], "7");
}

#[test]
fn trailing_metadata_of_a_good_answer_is_never_left_out_unsaid() {
    let mut h = headers_of(&Status::ok(""));
    h.insert("x", HeaderValue::try_from("x".repeat(limits::HEAD_BYTES)).unwrap());
    let mut out = Vec::new();
    assert_eq!(write_trailers(&mut out, &h), Code::ResourceExhausted as u8);
}
