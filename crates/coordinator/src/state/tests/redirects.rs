//! Names that are reached over the network: at one address, or at several.

use super::*;

fn far() -> Message {
    let name = ServiceName::new("far").unwrap();
    LinkMessage::Connect { request: 1, name }.into()
}

fn is_to(effects: &[Effect], to: &str) -> bool {
    matches!(
        effects,
        [Effect::Send { message: Message::Link(LinkMessage::Redirect { url, .. }), .. }] if url == to
    )
}

#[test]
fn a_name_elsewhere_is_a_redirect() {
    let mut s = state();
    let web = open(&mut s, 2);
    let e = ask(&mut s, web, far());
    assert!(is_to(&e, "http://h:1"), "{e:?}");
}

#[test]
fn a_name_at_several_addresses_has_them_all() {
    let several =
        |list: &str| format!("[service.far.call]\nanyone = ['*']\n[names]\nfar = [{list}]\n");
    let mut s = under(&several("'https://a:1', 'https://b:1'"));
    let web = open(&mut s, 2);
    s.message(web, far(), Instant::now());
    while s.serve_question().is_some() {}
    let e = s.take_effects();
    let [Effect::Audit(event), redirect] = &e[..] else { panic!("{e:?}") };
    assert!(is_to(std::slice::from_ref(redirect), "https://a:1, https://b:1"), "{e:?}");
    let line = serde_json::to_value(event).unwrap();
    assert_eq!(line["event"], "introduced");
    assert_eq!(line["addresses"], serde_json::json!(["https://a:1", "https://b:1"]));
    assert_eq!((&line["server"], &line["security"]["seal"]), (&().into(), &"sealed".into()));
    // One that knows of one address has one.
    let older = Capabilities::OWN.without(Capabilities::ADDRESSES);
    let spoken = Spoken { capabilities: older, ..SPOKEN };
    let (old, _) = hardening::admit_open(&mut s, facts(3), spoken);
    let e = ask(&mut s, old, far());
    assert!(is_to(&e, "https://a:1"), "{e:?}");
    // Another list is another address: both ask again.
    let other = Policy::parse("p", &several("'https://a:1', 'https://c:1'")).unwrap();
    s.reload(other, None, Instant::now());
    let ended = take(&mut s);
    let is_end = |e: &&Effect| {
        matches!(e, Effect::Send { message: Message::End(EndMessage::Ended { .. }), .. })
    };
    assert_eq!(ended.iter().filter(is_end).count(), 2, "{ended:?}");
}
