//! Lists of more functions than one answer has room for.

use partywall_fn_host::proto::functions_client::FunctionsClient;
use partywall_fn_host::proto::{ListReply, ListRequest};
use partywall_fn_host::registry::{Deployed, Registry, Room};
use partywall_functions::image::Image;
use partywall_functions::signed::{Made, Signed};
use prost::Message as _;
use serde_bytes::ByteBuf;
use tonic::Code;

use crate::grpc::on_tokio;
use crate::rig::{Rig, me};

const ROOM: Room = Room { functions: 10_000, image_bytes: 1 << 30 };
/// How long a message of a host may be.
const MESSAGE: usize = 8 << 20;

/// A registry that no host has yet.
struct State(Registry);

impl State {
    fn new(rig: &Rig) -> Self {
        Self(Registry::open(&rig.path("state")).unwrap())
    }

    fn image(&self, name: &str) -> Vec<u8> {
        let image = Image { code: vec![0xc3; 64], ..Image::default() };
        let made = Made { sources: "s".into(), compiler: "c".into() };
        Signed::new(name, image, made, self.0.key()).to_bytes()
    }

    /// A version whose parameter has a name of so many bytes.
    fn deploy(&self, name: &str, parameter: usize) {
        let deployed = Deployed {
            image: [0; 32],
            image_bytes: 0,
            sources: "s".into(),
            key: "k".into(),
            deployed_ms: 1,
            budget_us: 1000,
            idempotent: false,
            parameters: [("p".repeat(parameter), ByteBuf::new())].into(),
            secrets: [].into(),
        };
        self.0.deploy((name, &me()), deployed, &self.image(name), ROOM).unwrap();
    }
}

/// Asks the host of a rig for a page.
async fn page(rig: &Rig, request: ListRequest) -> Result<ListReply, tonic::Status> {
    let endpoint = partywall::Endpoint::new("partywall:functions").unwrap();
    let channel = endpoint.coordinator(&rig.host.socket).connect().await.unwrap();
    let client = FunctionsClient::new(channel);
    client.max_decoding_message_size(MESSAGE).list(request).await.map(tonic::Response::into_inner)
}

fn names(page: &ListReply) -> Vec<&str> {
    page.functions.iter().map(|one| one.version.as_ref().unwrap().function.as_str()).collect()
}

#[test]
fn a_list_of_many_functions_comes_in_pages() {
    let rig = Rig::new();
    let state = State::new(&rig);
    let all: Vec<_> = (0..1100).map(|number| format!("f{number:04}")).collect();
    all.iter().for_each(|name| state.deploy(name, 1));
    drop(state);
    let _served = rig.serve("state", &[]);
    on_tokio(async {
        let ask = |page_size, page_token: &str| {
            let page_token = page_token.to_owned();
            page(&rig, ListRequest { page_size, page_token, ..ListRequest::default() })
        };
        for (size, count) in [(0, 1000), (u32::MAX, 1000), (7, 7)] {
            let first = ask(size, "").await.unwrap();
            assert_eq!(names(&first), all[..count]);
            let second = ask(size, &first.next_page_token).await.unwrap();
            assert_eq!(names(&second)[0], all[count]);
            assert_eq!(second.next_page_token.is_empty(), count == 1000);
        }
        let whole = ask(100, "f0999").await.unwrap();
        assert_eq!((names(&whole).len(), whole.next_page_token.as_str()), (100, ""));
        let behind = ask(0, "zzz").await.unwrap();
        assert_eq!((behind.functions.len(), behind.next_page_token.as_str()), (0, ""));
        for hostile in ["F", "a/b", "\0", " ", "ä", &"x".repeat(64), &"x".repeat(1 << 20)] {
            let refused = ask(0, hostile).await.unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument);
            let said = format!("page_token has {} bytes and is none", hostile.len());
            assert!(refused.message().starts_with(&said), "{}", refused.message());
            assert!(refused.message().ends_with("begin again without one"));
        }
    });
    let listed = rig.good(&["ls"], "");
    let rows = listed.lines().skip(1).map(|row| row.split(' ').next().unwrap());
    assert!(rows.eq(&all), "{listed}");
}

#[test]
fn what_stays_is_listed_once_whatever_comes_and_goes() {
    let rig = Rig::new();
    let state = State::new(&rig);
    let all: Vec<_> = (0..30).map(|number| format!("f{number:02}")).collect();
    all.iter().for_each(|name| state.deploy(name, 1));
    for name in ["f05x", "f25x", "f20"] {
        std::fs::write(rig.path(&format!("{name}.pwfn")), state.image(name)).unwrap();
    }
    drop(state);
    let _served = rig.serve("state", &[]);
    let ask = |page_token: &str| {
        let request =
            ListRequest { versions: true, page_size: 10, page_token: page_token.to_owned() };
        on_tokio(page(&rig, request)).unwrap()
    };
    let first = ask("");
    assert_eq!(names(&first), all[..10]);
    // The last one of that page, one before it and one behind it.
    for gone in ["f09", "f03", "f15"] {
        rig.good(&["rm", gone], "");
    }
    for new in ["f05x", "f25x", "f20"] {
        rig.good(&["push", &format!("{new}.pwfn")], "");
    }
    let second = ask(&first.next_page_token);
    let third = ask(&second.next_page_token);
    assert_eq!(third.next_page_token, "");
    let rest: Vec<_> = [names(&second), names(&third)].concat();
    let mut wanted: Vec<_> = all[10..].iter().map(String::as_str).filter(|n| *n != "f15").collect();
    wanted.insert(15, "f25x");
    assert_eq!(rest, wanted);
    let changed = &second.functions[9];
    assert_eq!(
        changed.version.as_ref().map(|of| (of.function.as_str(), of.number)),
        Some(("f20", 2))
    );
    assert_eq!(changed.others.len(), 1);
}

/// Few functions, each with ten versions that have the longest names of parameters there may be.
#[test]
fn a_list_with_the_longest_names_comes_in_pages() {
    let rig = Rig::new();
    let state = State::new(&rig);
    let longest = partywall_fn_host::checks::PARAMETERS - 8;
    let all: Vec<_> = (0..16).map(|number| format!("long{number:02}")).collect();
    for name in &all {
        (0..partywall_fn_host::registry::KEPT).for_each(|_| state.deploy(name, longest));
    }
    drop(state);
    let _served = rig.serve("state", &[]);
    let (mut request, mut bytes, mut found) =
        (ListRequest { versions: true, ..ListRequest::default() }, 0, Vec::new());
    loop {
        let page = on_tokio(page(&rig, request.clone())).unwrap();
        assert!(page.encoded_len() < MESSAGE / 4, "{} bytes", page.encoded_len());
        bytes += page.encoded_len();
        found.extend(names(&page).into_iter().map(str::to_owned));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(found, all);
    assert!(bytes > MESSAGE + (1 << 20), "{bytes} bytes would go into one message");
    let listed = rig.good(&["ls", "--versions"], "");
    assert_eq!(listed.lines().count(), 1 + 16 * 10);
    assert!(listed.lines().skip(1).all(|row| row.contains(&"p".repeat(longest))));
}
