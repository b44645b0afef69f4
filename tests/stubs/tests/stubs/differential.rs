//! Random calls come to the same on all ways.

use std::collections::BTreeMap;

use partywall::Server;
use partywall_stubs_tests::Settings;
use partywall_testkit::Random;

use super::random;
use super::ways::{Way, same};

#[tokio::test]
async fn random_calls_come_to_the_same_on_each_way() {
    let settings = Settings::default();
    let mut ways = Way::all(&Server::builder(), settings, settings).await;
    ways.push(Way::blocking(&Server::builder(), settings, settings).await);
    let mut random = Random::new(7);
    let mut codes = BTreeMap::<i32, usize>::new();
    for trial in 0..partywall_testkit::trials(20_000) {
        let outcome = same(&mut ways, &random::asked(&mut random), trial).await;
        *codes.entry(outcome.code as i32).or_default() += 1;
    }
    assert!(codes.len() > 15, "{codes:?}");
}
