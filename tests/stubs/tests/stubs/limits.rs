//! Limits of the size of messages, of clients and of servers, come to the same on all ways.

use std::collections::BTreeMap;
use std::sync::Arc;

use partywall::Server;
use partywall_stubs_tests::{Asked, Own, Settings, code_and_text, ours, tonics};
use partywall_testkit::Random;
use tokio::sync::Notify;
use tonic::{Code, Request, Response, Status};

use super::ways::{Way, same};

/// tonic's limit for a message that is taken.
const DEFAULT: usize = 4 << 20;
/// Around which limits and messages lie: the second one's is no plain record on a narrow ring.
const SIZES: [usize; 3] = [200, 70_000, 1 << 20];

fn limit(random: &mut Random, around: usize) -> Option<usize> {
    (random.below(3) > 0).then(|| around + random.below(40))
}

fn settings(random: &mut Random, around: usize) -> Settings {
    let (encoded, decoded) = (limit(random, around), limit(random, around));
    Settings { encoded, decoded, ..Settings::default() }
}

#[tokio::test]
async fn size_limits_come_to_the_same_on_each_way() {
    let mut random = Random::new(3);
    let mut refusals = BTreeMap::<&str, usize>::new();
    for trial in 0..partywall_testkit::trials(600) {
        let around = SIZES[trial % SIZES.len()];
        let (served, called) = (settings(&mut random, around), settings(&mut random, around));
        let mut ways = Way::all(&Server::builder(), served, called).await;
        ways.push(Way::blocking(&Server::builder(), served, called).await);
        for _ in 0..12 {
            // An answer is a little longer than its request.
            let name = ["quiet", "quiet, and longer than most"][random.below(2)];
            let mut asked = Asked::sized(name, around - 10 + random.below(50));
            if random.below(3) == 0 {
                asked.ascii.push(("x-one", "v".into()));
            }
            let outcome = same(&mut ways, &asked, trial).await;
            assert!([Code::Ok, Code::OutOfRange].contains(&outcome.code), "{outcome:?}");
            let kind = match outcome.message.split_once(" message length too large") {
                Some((kind, _)) => {
                    ["Error, encoded", "Error, decoded"].iter().find(|k| **k == kind)
                }
                None => Some(&"none"),
            };
            *refusals.entry(kind.expect("one of both")).or_default() += 1;
        }
    }
    assert!(refusals.len() == 3 && refusals.values().all(|n| *n > 20), "{refusals:?}");
}

#[tokio::test]
async fn a_refused_answers_metadata_are_those_of_its_status() {
    let called = Settings { decoded: Some(100), ..Settings::default() };
    let mut ways = Way::all(&Server::builder(), Settings::default(), called).await;
    ways.push(Way::blocking(&Server::builder(), Settings::default(), called).await);
    for bytes in [200, 100_000, 2 << 20] {
        let mut asked = Asked::sized("quiet", bytes);
        asked.ascii.push(("x-one", "v".into()));
        for _ in 0..2 {
            let outcome = same(&mut ways, &asked, bytes).await;
            assert_eq!(outcome.code, Code::OutOfRange);
            assert_eq!(outcome.metadata["x-one"], [b"v"]);
        }
    }
}

#[tokio::test]
async fn limits_that_are_not_set_are_tonics_on_each_way() {
    let settings = Settings::default();
    let mut ways = Way::all(&Server::builder(), settings, settings).await;
    ways.push(Way::blocking(&Server::builder(), settings, settings).await);
    let mut codes = BTreeMap::<i32, usize>::new();
    for bytes in [DEFAULT - 40, DEFAULT - 20, DEFAULT - 12, DEFAULT - 5, DEFAULT, DEFAULT + 1] {
        for name in ["quiet", "quiet, too"] {
            let outcome = same(&mut ways, &Asked::sized(name, bytes), bytes).await;
            *codes.entry(outcome.code as i32).or_default() += 1;
        }
    }
    let both = [Code::Ok as i32, Code::OutOfRange as i32];
    assert!(codes.keys().eq(&both) && codes.values().all(|n| *n > 2), "{codes:?}");
}

/// Answers with as many entries of metadata as it is asked for; asked for less than none, it waits first.
struct Wide {
    begun: Arc<Notify>,
    goes_on: Arc<Notify>,
}

#[tonic::async_trait]
impl ours::pb::keeper_server::Keeper for Wide {
    async fn keep(&self, request: Request<Own>) -> Result<Response<Own>, Status> {
        let message = request.into_inner();
        if message.answer < 0 {
            self.begun.notify_one();
            self.goes_on.notified().await;
        }
        let entries = message.answer.max(0);
        let mut response = Response::new(message);
        for _ in 0..entries {
            response.metadata_mut().append("x-wide", "w".repeat(1000).parse().unwrap());
        }
        Ok(response)
    }
}

#[tokio::test]
async fn an_answer_with_too_much_metadata_ends_its_own_call() {
    let (begun, goes_on) = <(Arc<Notify>, Arc<Notify>)>::default();
    let service = Wide { begun: Arc::clone(&begun), goes_on: Arc::clone(&goes_on) };
    let service = ours::pb::keeper_server::KeeperServer::new(service);
    let channel = Server::builder().add_service(service).in_process().unwrap();
    let asked = |answer| Own { answer, ..Own::default() };
    let keep = |answer| ours::keep(channel.clone(), asked(answer), Settings::default());
    for _ in 0..3 {
        keep(0).await.unwrap();
    }
    let under_way = tokio::spawn(keep(-1));
    begun.notified().await;
    for entries in [30, 3000] {
        let native = code_and_text(keep(entries).await);
        let ordinary = tonics::keep(channel.clone(), asked(entries), Settings::default()).await;
        assert_eq!(native, code_and_text(ordinary));
        assert_eq!(native.0, Code::ResourceExhausted, "{native:?}");
    }
    goes_on.notify_one();
    under_way.await.unwrap().unwrap();
}
