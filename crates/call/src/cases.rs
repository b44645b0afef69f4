//! Peers that break one rule each, for the tests of whoever drives a [`crate::Connection`].

use partywall_abi::frame::{
    self, ATTACHED, Attached, END, HEAD, Kind, Limits, MethodName, Owned, PARCEL, PLAIN,
    PLAIN_REQUEST, PLAIN_RESPONSE, ParcelRef, ROOM, RequestHead, ResponseHead, TRAILERS, Trailers,
};
use partywall_abi::limits;
use partywall_abi::version::Capabilities;

use crate::Rule;

/// A record that is sent.
pub type Sent = (u8, u8, u32, Vec<u8>);

/// A peer that breaks a rule with its last record, and none before.
#[derive(Clone)]
pub struct Case {
    /// What it breaks; none when the record cannot be read.
    pub rule: Option<Rule>,
    /// The service has asked it for a drain before.
    pub drains: bool,
    /// The ends have agreed on [`Capabilities::NONE`].
    pub is_older: bool,
    /// It takes nothing off its own ring meanwhile.
    pub takes_nothing: bool,
    /// What it sends.
    pub records: Vec<Sent>,
}

impl Case {
    /// What the ends have agreed on.
    pub fn capabilities(&self) -> Capabilities {
        if self.is_older { Capabilities::NONE } else { Capabilities::OWN }
    }
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let records = self.records.iter().take(4);
        let records: Vec<_> = records.map(|(k, flags, s, p)| (k, flags, s, p.len())).collect();
        write!(f, "{:?} by (kind, flags, stream, bytes) {records:?}", self.rule)
    }
}

/// Streams that the service of [`callers`] lets be open.
pub const STREAMS: u32 = 3;

fn sent(kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Sent {
    (kind as u8, flags, stream, payload.to_vec())
}

fn entry(out: &mut Vec<u8>, (name, value): (&str, &str)) {
    frame::write_entry(out, name.as_bytes(), value.as_bytes());
}

fn request(flags: u8, stream: u32, data: usize, metadata: Option<(&str, &str)>) -> Sent {
    let mut payload = Vec::new();
    frame::write_block(&mut payload, |out| {
        RequestHead::write(out, None, "/a.B/C", metadata.iter().len() as u16);
        metadata.into_iter().for_each(|pair| entry(out, pair));
    });
    payload.resize(payload.len() + data, 7);
    (Kind::Frame as u8, HEAD | flags, stream, payload)
}

fn answer(flags: u8, data: usize, metadata: Option<(&str, &str)>) -> Sent {
    let mut payload = Vec::new();
    let entries = metadata.iter().len() as u16;
    if flags & HEAD != 0 {
        frame::write_block(&mut payload, |out| {
            ResponseHead::write(out, entries);
            metadata.into_iter().for_each(|pair| entry(out, pair));
        });
    }
    if flags & TRAILERS != 0 {
        frame::write_block(&mut payload, |out| {
            Trailers::write(out, 0, entries);
            metadata.into_iter().for_each(|pair| entry(out, pair));
        });
    }
    payload.resize(payload.len() + data, 7);
    (Kind::Frame as u8, flags, 1, payload)
}

fn window(stream: u32, credit: u32) -> Sent {
    sent(Kind::Window, 0, stream, &credit.to_le_bytes())
}

fn room(stream: u32, until: u64) -> Sent {
    sent(Kind::Room, 0, stream, &until.to_le_bytes())
}

fn reset(stream: u32) -> Sent {
    let mut payload = Vec::new();
    frame::write_reset(&mut payload, 1, "");
    sent(Kind::Reset, 0, stream, &payload)
}

fn said(streams: u32, window: u32) -> Vec<u8> {
    Limits { streams, window }.encode().to_vec()
}

fn case(rule: impl Into<Option<Rule>>, records: Vec<Sent>) -> Case {
    Case { rule: rule.into(), drains: false, is_older: false, takes_nothing: false, records }
}

/// The same between ends that have no capability in common.
fn older(rule: impl Into<Option<Rule>>, records: Vec<Sent>) -> Case {
    Case { is_older: true, ..case(rule, records) }
}

fn method(number: u32) -> Sent {
    sent(Kind::Method, 0, number, b"/a.B/C")
}

/// One with a path as long as any.
fn long_method(number: u32) -> Sent {
    let mut path = [b'a'; limits::PATH_BYTES];
    path[0] = b'/';
    sent(Kind::Method, 0, number, &path)
}

/// A request whose head names its method by number.
fn numbered(stream: u32, number: u16) -> Sent {
    let mut payload = Vec::new();
    let head = |out: &mut Vec<u8>| RequestHead::write(out, None, MethodName::Number(number), 0);
    frame::write_block(&mut payload, head).expect("a short head");
    (Kind::Frame as u8, HEAD | END, stream, payload)
}

/// A plain request, with so many bytes of data.
fn plain(stream: u32, number: u16, data: usize) -> Sent {
    let payload = [&frame::Request::plain(number)[..], &vec![7; data]].concat();
    (Kind::Frame as u8, PLAIN_REQUEST, stream, payload)
}

/// A plain response, with so many.
fn plain_answer(stream: u32, data: usize) -> Sent {
    sent(Kind::Frame, PLAIN_RESPONSE, stream, &vec![7; data])
}

/// Data in a parcel.
fn parcel(stream: u32, flags: u8, bytes: u64) -> Sent {
    let parcel = ParcelRef { packet: 0, offset: 0, bytes, owned: None };
    sent(Kind::Frame, PARCEL | flags, stream, &parcel.encode())
}

/// A head to which a file is attached.
fn attached(stream: u32) -> Sent {
    let mut payload = Vec::new();
    frame::write_block(&mut payload, |out| RequestHead::write(out, None, "/a/b", 0));
    Attached::write(&mut payload, 0, &[frame::Item::File]);
    sent(Kind::Frame, HEAD | ATTACHED, stream, &payload)
}

/// Data in an owned parcel.
fn owned(place: u32, generation: u32) -> Sent {
    let owned = Some(Owned { place, generation });
    let parcel = ParcelRef { packet: 0, offset: 0, bytes: 1, owned };
    sent(Kind::Frame, PARCEL, 7, &parcel.encode())
}

fn release(place: u32, generation: u32) -> Sent {
    sent(Kind::Release, 0, place, &generation.to_le_bytes())
}

fn parcels(stream: u32, more: u32) -> Sent {
    sent(Kind::Parcels, 0, stream, &more.to_le_bytes())
}

/// What either side can break.
fn both() -> Vec<Case> {
    vec![
        case(Rule::UnknownKind(0), vec![(0, 0, 1, vec![])]),
        case(Rule::UnknownKind(99), vec![(99, 0, 1, vec![])]),
        case(Rule::RawMessage, vec![sent(Kind::Message, 0, 1, b"x")]),
        case(Rule::WrongStream(0), vec![sent(Kind::Frame, 0, 0, b"x")]),
        case(Rule::WrongStream(0), vec![reset(0)]),
        case(Rule::WrongStream(0), vec![room(0, 9)]),
        case(Rule::WrongStream(1), vec![sent(Kind::Drain, 0, 1, b"")]),
        case(Rule::OverCredit, vec![window(0, u32::MAX)]),
        case(Rule::WrongStream(1), vec![parcels(1, 1)]),
        case(Rule::OverCredit, vec![parcels(0, limits::UNREAD_PARCELS + 1)]),
        case(Rule::OverCredit, vec![parcels(0, limits::UNREAD_PARCELS), parcels(0, 1)]),
        case(Rule::OverCredit, vec![parcels(0, 1), parcels(0, u32::MAX)]),
        case(Rule::WrongStream(0), vec![parcel(0, 0, 1)]),
        // Of a call that is over, too, when nobody has said that parcels are taken.
        case(Rule::OverParcels, vec![parcel(7, 0, 1)]),
        case(Rule::OverParcels, vec![owned(0, 1)]),
        case(Rule::LentTwice(0), vec![owned(0, 0)]),
        case(Rule::LentTwice(3), vec![owned(3, 2)]),
        case(Rule::NotLent(0), vec![release(0, 0)]),
        case(Rule::NotLent(3), vec![release(3, 1)]),
        case(Rule::WrongStream(limits::OWNED_PARCELS), vec![release(limits::OWNED_PARCELS, 1)]),
        older(Rule::NotAgreed, vec![parcels(0, 1)]),
        older(Rule::NotAgreed, vec![release(0, 1)]),
        case(None, vec![sent(Kind::Release, 0, 0, &[1; 3])]),
        case(None, vec![sent(Kind::Release, 0, 0, &[1; 5])]),
        case(None, vec![owned(limits::OWNED_PARCELS, 1)]),
        case(None, vec![parcels(0, 0)]),
        case(None, vec![parcel(1, 0, 0)]),
        case(None, vec![parcel(1, 0, u64::MAX)]),
        case(None, vec![parcel(1, ROOM, 1)]),
        case(None, vec![sent(Kind::Frame, PARCEL, 1, &[1; ParcelRef::BYTES - 1])]),
        case(None, vec![sent(Kind::Frame, PARCEL, 1, &[1; ParcelRef::BYTES + 1])]),
        case(None, vec![sent(Kind::Frame, 0x80, 1, b"")]),
        case(None, vec![sent(Kind::Frame, HEAD, 1, &[0xff; 4])]),
        case(None, vec![sent(Kind::Frame, HEAD | PLAIN, 1, &[0; 9])]),
        case(None, vec![sent(Kind::Window, 0, 0, &[0; 4])]),
        case(None, vec![sent(Kind::Room, 0, 1, &[0; 7])]),
        case(None, vec![sent(Kind::Reset, 0, 1, &[17, 0, 0])]),
        case(None, vec![sent(Kind::Reset, 0, 1, &[0, 0, 0])]),
    ]
}

/// Callers that break a rule, of a service with [`STREAMS`] streams whose handlers never answer.
pub fn callers() -> Vec<Case> {
    let over = limits::STREAM_WINDOW as usize + 1;
    let head = || request(0, 1, 0, None);
    let all = limits::LINK_WINDOW;
    let most = limits::METHODS as u16;
    let all_named = |last: Sent| (0..limits::METHODS).map(method).chain([last]).collect();
    let mut trailers = request(TRAILERS, 1, 0, None);
    trailers.3.extend_from_slice(&[0; 4]);
    let mut flood: Vec<_> = (1..=STREAMS).map(|stream| request(END, stream, 0, None)).collect();
    flood.extend((0..2000).map(|_| request(END, STREAMS + 1, 0, None)));
    let mut cases = both();
    cases.extend([
        case(Rule::WrongSide, vec![sent(Kind::Limits, 0, 0, &said(9, all))]),
        case(Rule::WrongSide, vec![trailers]),
        case(Rule::SecondHead, vec![head(), head()]),
        case(Rule::AfterEnd, vec![request(END, 1, 0, None), sent(Kind::Frame, 0, 1, b"x")]),
        case(Rule::OverWindow, vec![request(END, 1, over, None)]),
        case(Rule::OverWindow, vec![head(), sent(Kind::Frame, 0, 1, &vec![7; over])]),
        case(Rule::OverWindow, vec![head(), sent(Kind::Frame, ROOM, 1, b"x")]),
        case(Rule::OverWindow, vec![request(ROOM, 1, 1, None)]),
        // Data of a call that is over counts against the link's window like any.
        case(Rule::OverWindow, vec![sent(Kind::Frame, 0, 7, &vec![7; all as usize + 1])]),
        case(Rule::OverCredit, vec![head(), window(1, 1)]),
        case(Rule::OverCredit, vec![window(0, 1)]),
        case(Rule::OverCredit, vec![head(), room(1, 9), room(1, 8)]),
        case(Rule::DrainNotAsked, vec![sent(Kind::Drain, 0, 0, b"")]),
        case(Rule::UnknownMethod(0), vec![numbered(1, 0)]),
        case(Rule::UnknownMethod(1), vec![method(0), numbered(1, 0), numbered(2, 1)]),
        case(Rule::UnknownMethod(0), vec![plain(1, 0, 1)]),
        case(Rule::UnknownMethod(1), vec![method(0), plain(1, 0, 1), plain(2, 1, 1)]),
        case(Rule::UnknownMethod(most), vec![method(0), plain(1, most, 1)]),
        case(Rule::UnknownMethod(most), vec![method(0), numbered(1, most)]),
        case(Rule::UnknownMethod(most), all_named(plain(1, most, 1))),
        case(Rule::UnknownMethod(most), all_named(numbered(1, most))),
        case(Rule::UnknownMethod(u16::MAX), all_named(plain(1, u16::MAX, 1))),
        case(Rule::WrongStream(0), vec![method(0), plain(0, 0, 1)]),
        case(Rule::OverWindow, vec![method(0), plain(1, 0, over)]),
        case(Rule::OverParcels, vec![head(), parcel(1, 0, 1)]),
        case(Rule::OverParcels, vec![attached(1)]),
        older(Rule::NotAgreed, vec![attached(1)]),
        case(Rule::SecondHead, vec![method(0), plain(1, 0, 1), plain(1, 0, 1)]),
        case(Rule::SecondHead, vec![method(0), head(), plain(1, 0, 1)]),
        case(Rule::AfterEnd, vec![method(0), plain(1, 0, 1), sent(Kind::Frame, 0, 1, b"x")]),
        case(None, vec![method(0), sent(Kind::Frame, PLAIN_REQUEST, 1, &[0])]),
        case(None, vec![method(0), sent(Kind::Frame, PLAIN_REQUEST | ROOM, 1, &[0; 9])]),
        case(Rule::WrongSide, vec![method(0), sent(Kind::Frame, PLAIN_RESPONSE, 1, &[0; 9])]),
        case(Rule::MethodNumber(0), vec![method(0), method(0)]),
        case(Rule::MethodNumber(0), vec![method(0), method(1), plain(1, 0, 1), method(0)]),
        case(Rule::MethodNumber(2), vec![method(0), method(2)]),
        case(Rule::MethodNumber(u32::MAX), vec![method(u32::MAX)]),
        case(Rule::MethodNumber(limits::METHODS), all_named(method(limits::METHODS))),
        // Of 32 KiB of paths together.
        case(Rule::MethodNumber(32), (0..33).map(long_method).collect()),
        older(Rule::NotAgreed, vec![method(0)]),
        older(Rule::NotAgreed, vec![plain(1, 0, 1)]),
        older(Rule::UnknownMethod(0), vec![numbered(1, 0)]),
        older(Rule::NotAgreed, vec![head(), room(1, 9)]),
        case(None, vec![sent(Kind::Method, 0, 0, b"no/slash")]),
        case(None, vec![sent(Kind::Method, 0, 0, &[b'/'; limits::PATH_BYTES + 1])]),
        case(Rule::MetadataName, vec![request(END, 1, 0, Some(("Upper", "x")))]),
        case(Rule::MetadataName, vec![request(END, 1, 0, Some(("a b", "x")))]),
        case(Rule::MetadataValue, vec![request(END, 1, 0, Some(("a", "x\r\nb: c")))]),
        case(None, vec![request(END, 1, 0, Some(("", "x")))]),
        Case {
            drains: true,
            ..case(Rule::AfterDrain, vec![sent(Kind::Drain, 0, 0, b""), request(END, 1, 0, None)])
        },
        Case { takes_nothing: true, ..case(Rule::TakesNothing, flood) },
    ]);
    cases
}

/// Services that break a rule, of a caller whose call 1 has sent all of a message of one byte.
pub fn services() -> Vec<Case> {
    let window_bytes = limits::STREAM_WINDOW as usize;
    let all = limits::LINK_WINDOW;
    let limits = |stream| sent(Kind::Limits, 0, stream, &said(1, all));
    let mut cases = both();
    cases.extend([
        case(Rule::SecondLimits, vec![limits(0), limits(0)]),
        case(Rule::WrongStream(1), vec![limits(1)]),
        case(Rule::SecondHead, vec![answer(HEAD, 1, None), answer(HEAD, 1, None)]),
        case(Rule::WrongSide, vec![method(0)]),
        case(None, vec![sent(Kind::Frame, PLAIN_REQUEST, 1, &[0; 9])]),
        case(None, vec![sent(Kind::Frame, PLAIN_RESPONSE | ROOM, 1, &[0; 9])]),
        case(Rule::SecondHead, vec![answer(HEAD, 1, None), plain_answer(1, 1)]),
        case(Rule::WrongStream(0), vec![plain_answer(0, 1)]),
        case(Rule::OverWindow, vec![plain_answer(1, window_bytes + 1)]),
        older(Rule::NotAgreed, vec![plain_answer(1, 1)]),
        older(Rule::WrongSide, vec![method(0)]),
        older(Rule::NotAgreed, vec![room(1, 9)]),
        case(Rule::NoHead, vec![answer(0, 1, None)]),
        case(Rule::NoHead, vec![answer(TRAILERS | END, 1, None)]),
        case(Rule::Trailers, vec![answer(HEAD | END, 1, None)]),
        case(Rule::Trailers, vec![answer(END, 0, None)]),
        case(Rule::Trailers, vec![answer(HEAD | TRAILERS, 0, None)]),
        case(Rule::OverWindow, vec![answer(HEAD, window_bytes + 1, None)]),
        case(Rule::OverWindow, vec![answer(HEAD | ROOM, 1, None)]),
        case(Rule::OverWindow, vec![answer(HEAD, all as usize + 1, None)]),
        case(Rule::OverCredit, vec![window(1, 2)]),
        case(Rule::OverCredit, vec![window(1, u32::MAX)]),
        case(Rule::OverCredit, vec![limits(0), window(0, 2)]),
        case(Rule::OverCredit, vec![room(1, 9), room(1, 8)]),
        case(Rule::MetadataName, vec![answer(HEAD, 0, Some(("Upper", "x")))]),
        case(Rule::MetadataValue, vec![answer(HEAD, 0, Some(("a", "\u{7f}")))]),
        case(Rule::MetadataName, vec![answer(TRAILERS | END, 0, Some(("a:b", "x")))]),
    ]);
    cases
}

/// What honest services send, in the same place.
pub fn honest_services() -> Vec<Vec<Sent>> {
    let all = limits::LINK_WINDOW;
    let whole = answer(HEAD | TRAILERS | END, 10, Some(("a-b.c_d", "\u{e9} \t!")));
    let window_bytes = limits::STREAM_WINDOW as usize;
    vec![
        vec![
            sent(Kind::Limits, 0, 0, &said(1, all)),
            // What the message's one byte has used up.
            window(0, 1),
            window(1, 1),
            room(1, 9),
            room(1, 9),
            whole,
        ],
        vec![answer(HEAD, window_bytes, None), answer(TRAILERS | END, 0, None)],
        vec![answer(TRAILERS | END, 0, None)],
        // A plain answer to a request that is none, after one to a call that is over.
        vec![plain_answer(7, 1), plain_answer(1, window_bytes)],
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Connection, Control, Error, Event, Key, Record, Want};
    use std::collections::HashSet;
    use std::time::Instant;

    /// Hands the records over; how the last one ends.
    fn play(connection: &mut Connection<()>, case: &Case) -> Result<(), Error> {
        let mut ended = Ok(());
        for (n, (kind, flags, stream, payload)) in case.records.iter().enumerate() {
            assert_eq!(ended, Ok(()), "record {n} of {case:?}");
            let record = Record { kind: *kind, flags: *flags, stream: *stream, payload };
            ended = connection.handle(record).map(drop);
            if !case.takes_nothing {
                connection.control_sent();
            } else {
                connection.control()?;
            }
        }
        ended
    }

    fn check(case: &Case, ended: Result<(), Error>) {
        match (case.rule, ended) {
            (Some(rule), Err(Error::Rule(found))) if rule == found => {}
            (None, Err(Error::Decode(_))) => {}
            (_, ended) => panic!("{ended:?} after {case:?}"),
        }
    }

    fn caller() -> (Connection<()>, Key) {
        let mut caller = Connection::caller();
        let key = caller.open().unwrap();
        let permit = caller
            .reserve(
                key,
                Want {
                    head: true,
                    data: 1,
                    end: true,
                    most: 64,
                    in_parcel: false,
                    attached: false,
                },
            )
            .unwrap();
        assert_eq!(permit.data, 1);
        assert!(caller.commit(key, HEAD | END, 1));
        (caller, key)
    }

    #[test]
    fn each_rule_has_a_case_that_breaks_it() {
        let mut broken = HashSet::new();
        for case in callers() {
            let limits = Limits { streams: STREAMS, window: limits::LINK_WINDOW };
            let mut service = Connection::service(limits, "full");
            service.agree(case.capabilities());
            service.control_sent();
            if case.drains {
                service.drain(Instant::now());
                service.control_sent();
            }
            check(&case, play(&mut service, &case));
            broken.extend(case.rule.map(|rule| std::mem::discriminant(&rule)));
        }
        for case in services() {
            let (mut caller, _) = caller();
            caller.agree(case.capabilities());
            check(&case, play(&mut caller, &case));
            broken.extend(case.rule.map(|rule| std::mem::discriminant(&rule)));
        }
        assert_eq!(broken.len(), Rule::COUNT, "a rule that no case breaks");
    }

    #[test]
    fn a_caller_gives_no_more_numbers_than_a_service_takes() {
        let limits = Limits { streams: STREAMS, window: limits::LINK_WINDOW };
        let (mut caller, mut service) = (Connection::caller(), Connection::service(limits, "full"));
        caller.agree(Capabilities::OWN);
        service.agree(Capabilities::OWN);
        // The service is told of each, and takes it.
        let mut name = |caller: &mut Connection<()>| {
            let (number, mut payload) = (caller.name("/a.B/C"), Vec::new());
            while let Some(control) = caller.control().unwrap() {
                let (kind, stream) = (control.kind() as u8, control.stream());
                control.write(&mut payload);
                let record = Record { kind, flags: 0, stream, payload: &payload };
                Connection::<()>::handle(&mut service, record).unwrap();
                caller.control_sent();
            }
            number
        };
        for number in 0..limits::METHODS {
            assert_eq!(name(&mut caller).map(u32::from), Some(number));
        }
        for _ in 0..3 {
            assert_eq!(name(&mut caller), None);
        }
        // A peer without numbers is told of none.
        let mut caller = Connection::<()>::caller();
        caller.agree(Capabilities::NONE);
        assert!(caller.name("/a.B/C").is_none() && caller.control().unwrap().is_none());
    }

    #[test]
    fn honest_services_break_none() {
        for records in honest_services() {
            let (mut caller, key) = caller();
            let mut over = false;
            for (kind, flags, stream, payload) in &records {
                let record = Record { kind: *kind, flags: *flags, stream: *stream, payload };
                let event = caller.handle(record).unwrap();
                over |= matches!(event, Event::Part { end: true, .. });
            }
            assert!(over && !caller.is_open(key));
        }
    }

    #[test]
    fn refusals_that_are_not_read_share_their_text() {
        let limits = Limits { streams: 1, window: limits::LINK_WINDOW };
        let mut service = Connection::<()>::service(limits, "full");
        service.control_sent();
        for stream in 1..4 {
            let (kind, flags, stream, payload) = request(END, stream, 0, None);
            service.handle(Record { kind, flags, stream, payload: &payload }).unwrap();
        }
        let mut text = || {
            let Some(Control::Reset(_, _, text)) = service.control().unwrap().cloned() else {
                panic!("a refusal")
            };
            service.control_sent();
            text
        };
        let texts = [text(), text()];
        assert_eq!(&*texts[0], "full");
        assert!(std::sync::Arc::ptr_eq(&texts[0], &texts[1]));
    }
}
