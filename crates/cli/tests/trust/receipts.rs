//! `partywall verify-receipt`, of calls that were made.

use partywall::{Endpoint, Server};
use partywall_coordinator::{Coordinator, Listen, Options, Policy};
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_interop::proto::{
    Payload, ResponseParameters, SimpleRequest, StreamingOutputCallRequest,
};
use partywall_interop::service;
use prost::Message as _;
use tokio_stream::StreamExt as _;

use super::Place;

fn asked(body: &[u8]) -> SimpleRequest {
    let payload = Payload { body: body.to_vec().into(), ..Payload::default() };
    SimpleRequest { payload: Some(payload), response_size: 9, ..SimpleRequest::default() }
}

/// Calls over a link with signed messages, whose receipts are in `audit.jsonl`, and who can be asked for in
/// `roots.pem`.
fn called() -> Place {
    let place = Place::new();
    place.good(&["ca", "init", "ca", "--domain", "shop.example"]);
    place.write("roots.pem", place.good(&["ca", "show", "ca", "--pem"]));
    let uid = rustix::process::geteuid().as_raw();
    place.write(
        "policy.toml",
        format!(
            "[authority]\ndomain = 'shop.example'\ndirectory = '{}'\n[principal.me]\nuid = {uid}\n\
             [service.test]\nregister = ['me']\nsign = 'required'\n[service.test.call]\nme = ['*']\n",
            place.path("ca").display()
        ),
    );
    let socket = place.path("c.sock");
    let audit = place.path("audit.jsonl");
    let options = Options {
        listen: Listen::At(socket.clone()),
        audit: Some(partywall_coordinator::audit::open(&audit).unwrap()),
        ..Options::default()
    };
    let policy = Policy::load(&place.path("policy.toml")).unwrap();
    let _coordinator = Coordinator::start_with(policy, options).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let service = service::probed(service::Handle::default(), |_| None);
        let server = Server::builder().coordinator(&socket).add_service(service);
        tokio::spawn(server.serve("test"));
        let endpoint = Endpoint::from_static("partywall:///test").coordinator(&socket);
        let channel = endpoint.wait_for_ready(true).connect().await.unwrap();
        let mut client = TestServiceClient::new(channel);
        client.unary_call(asked(b"the message")).await.unwrap();
        let parameters = |size| ResponseParameters { size, ..ResponseParameters::default() };
        let request = |size| StreamingOutputCallRequest {
            response_parameters: vec![parameters(size)],
            ..StreamingOutputCallRequest::default()
        };
        let requests = tokio_stream::iter([request(1), request(2)]);
        let answers = client.full_duplex_call(requests).await.unwrap().into_inner();
        assert_eq!(answers.collect::<Vec<_>>().await.len(), 2);
        // Two and three messages each way; the last ones are on their way.
        for _ in 0..1000 {
            if place.read("audit.jsonl").matches("\"event\":\"signed\"").count() == 6 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("{}", place.read("audit.jsonl"));
    });
    place
}

#[test]
fn receipts_tell_who_has_said_what_to_whom() {
    let place = called();
    let said = place.good(&["verify-receipt", "audit.jsonl", "--roots", "roots.pem"]);
    assert_eq!(said.lines().count(), 6, "{said}");
    let signer = "signed by spiffe://shop.example/service/me at 20";
    assert_eq!(said.matches(signer).count(), 6, "{said}");
    for words in [
        "request 1 of call 1 to `test` /grpc.testing.TestService/UnaryCall: sha256:",
        "reply 1 of call 1 to `test` /grpc.testing.TestService/UnaryCall, to the request above: sha256:",
        "request 2 of call 2 to `test` /grpc.testing.TestService/FullDuplexCall: sha256:",
        "reply 2 of call 2 to `test` /grpc.testing.TestService/FullDuplexCall, to 2 requests above: sha256:",
    ] {
        assert!(said.contains(words), "{said} lacks {words}");
    }
    // Of one message.
    place.write("message.pb", asked(b"the message").encode_to_vec());
    let of_it =
        ["verify-receipt", "audit.jsonl", "--roots", "roots.pem", "--message", "message.pb"];
    let said = place.good(&of_it);
    assert!(said.lines().count() == 1 && said.contains("request 1 of call 1"), "{said}");
    place.write("message.pb", asked(b"another one").encode_to_vec());
    place.bad(&of_it, &["none of the 6 receipts is of that message; remedy: "]);
    // As JSON, which is a file of receipts as well.
    let json = place.good(&["verify-receipt", "audit.jsonl", "--roots", "roots.pem", "--json"]);
    assert!(
        json.lines().all(|line| line.contains("\"signer\":\"spiffe://shop.example/")),
        "{json}"
    );
    place.write("receipts.jsonl", &json);
    place.good(&["verify-receipt", "receipts.jsonl", "--roots", "roots.pem"]);
    let replies: Vec<_> = json.lines().filter(|line| line.contains("\"reply\"")).collect();
    place.write("replies.jsonl", replies.join("\n"));
    let said = place.good(&["verify-receipt", "replies.jsonl", "--roots", "roots.pem"]);
    assert_eq!(said.matches("not in these files").count(), 3, "{said}");
}

#[test]
fn receipts_that_were_changed_do_not_hold() {
    let place = called();
    let verify = ["verify-receipt", "changed.jsonl", "--roots", "roots.pem"];
    let text = place.read("audit.jsonl");
    let line = text.lines().find(|line| line.contains("UnaryCall") && line.contains("\"request\""));
    let (line, altered) = (line.unwrap(), "does not fit the message: it was altered");
    for (from, to, words) in [
        ("UnaryCall", "EmptyCall", altered),
        ("\"call\":1", "\"call\":2", altered),
        ("\"name\":\"test\"", "\"name\":\"best\"", altered),
        ("\"compressed\":false", "\"compressed\":true", altered),
        ("\"signature\":\"ME", "\"signature\":\"MF", altered),
        ("\"way\":\"request\"", "\"way\":\"reply\"", "`requests` and `requests_digest`"),
        ("\"chain\":[\"MII", "\"chain\":[\"MIJ", "this is no X.509 certificate"),
        ("\"chain\":[", "\"chains\":[", "missing field `chain`"),
    ] {
        assert!(line.contains(from), "{line} lacks {from}");
        place.write("changed.jsonl", line.replacen(from, to, 1));
        place.bad(&verify, &["changed.jsonl:1: ", words]);
    }
    // An answer to another request than the one that was signed.
    let lines = |line: &str| line.contains("FullDuplexCall") && line.contains("\"signed\"");
    let both: Vec<_> = text.lines().filter(|line| lines(line)).collect();
    let first = both
        .iter()
        .find(|line| line.contains("\"number\":0") && line.contains("\"request\""))
        .unwrap();
    let second = both
        .iter()
        .find(|line| line.contains("\"number\":1") && line.contains("\"request\""))
        .unwrap();
    let reply =
        both.iter().find(|line| line.contains("\"reply\"") && line.contains("\"requests\":1"));
    if let Some(reply) = reply {
        place.write("changed.jsonl", [*first, *reply].join("\n"));
        place.good(&verify);
        place.write("changed.jsonl", [*second, *reply].join("\n"));
        assert!(place.good(&verify).contains("not in these files"));
    }
    // By whose word it is, and what is no log.
    place.good(&["ca", "init", "other", "--domain", "shop.example"]);
    place.write("other.pem", place.good(&["ca", "show", "other", "--pem"]));
    place.bad(
        &["verify-receipt", "audit.jsonl", "--roots", "other.pem"],
        &["audit.jsonl:", "is not signed by a trusted authority"],
    );
    place.write("changed.jsonl", "{\"event\":\"reloaded\"}\n\n");
    place.bad(&verify, &["changed.jsonl: there is no receipt; remedy: "]);
    place.write("changed.jsonl", "no json\n");
    place.bad(&verify, &["changed.jsonl:1: no JSON object on one line"]);
    place.bad(
        &["verify-receipt", "none", "--roots", "roots.pem"],
        &["none: No such file", "remedy: "],
    );
    place.bad(
        &["verify-receipt", "audit.jsonl", "--roots", "none"],
        &["none: No such file", "ca show"],
    );
    place.usage(&["verify-receipt", "audit.jsonl"], &["--roots <FILE>"]);
}
