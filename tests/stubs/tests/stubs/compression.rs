//! Compressed messages: such a client's calls go the ordinary way, and come to the same.

use partywall::Server;
use partywall_stubs_tests::{Asked, Settings};
use partywall_testkit::Random;
use tonic::Code;

use super::ways::{Way, same};

fn settings(bits: usize) -> Settings {
    let (sends_gzip, accepts_gzip) = (bits & 1 != 0, bits & 2 != 0);
    Settings { sends_gzip, accepts_gzip, ..Settings::default() }
}

#[tokio::test]
async fn compressed_calls_come_to_the_same_on_each_way() {
    let mut random = Random::new(5);
    for bits in 0..16 {
        let (served, called) = (settings(bits / 4), settings(bits % 4));
        let mut ways = Way::all(&Server::builder(), served, called).await;
        for trial in 0..partywall_testkit::trials(200) {
            let bytes = [0, 32, 5000, 300_000][random.below(4)];
            let name = ["", "you", "5:why", "panics"][random.below(4)];
            let bytes = if name == "5:why" { bytes.min(300) } else { bytes };
            let mut asked = Asked::sized(name, bytes);
            // What is compressed badly, too.
            if random.below(2) == 0 {
                asked.blob.fill_with(|| random.draw() as u8);
            }
            let outcome = same(&mut ways, &asked, trial).await;
            if called.sends_gzip && !served.accepts_gzip {
                assert_eq!(outcome.code, Code::Unimplemented, "{served:?} {called:?}");
                continue;
            }
            if !outcome.is_ok() {
                continue;
            }
            assert_eq!(outcome.has_seen("grpc-encoding"), called.sends_gzip);
            assert_eq!(outcome.has_seen("grpc-accept-encoding"), called.accepts_gzip);
            let compressed = served.sends_gzip && called.accepts_gzip;
            let encoding = outcome.metadata.get("grpc-encoding");
            let encoding = encoding.map(|values| values.concat());
            assert_eq!(encoding, compressed.then(|| b"gzip".to_vec()), "{served:?} {called:?}");
        }
    }
}
