//! Methods and services that are not there, which a caller of a later release calls.

use partywall::{Channel, Server};
use partywall_stubs_tests::{Settings, ours, tonics};
use tonic::Code;

use super::ways::listening;

/// What its calls come to, three times: by then they have numbers.
macro_rules! calls {
    ($stubs:ident, $channel:expr) => {{
        let channel: Channel = $channel;
        let first = $stubs::later_calls(&channel).await;
        for _ in 0..2 {
            assert_eq!($stubs::later_calls(&channel).await, first);
        }
        first
    }};
}

#[tokio::test]
async fn unknown_methods_and_services_are_alike_on_each_way() {
    let settings = Settings::default();
    let ours_only =
        || Server::builder().add_service(ours::greeter(ours::Echo::default(), settings));
    let tonics_only =
        Server::builder().add_service(tonics::greeter(tonics::Echo::default(), settings));
    let ring = ours_only().in_process().unwrap();
    let other = tonics_only.in_process().unwrap();
    let (http2, _serving) = listening(ours_only()).await;
    let native = calls!(ours, ring.clone());
    assert_eq!(
        native.each_ref().map(|(code, _)| *code),
        [Code::Unimplemented, Code::Unimplemented, Code::Ok]
    );
    assert_eq!(calls!(tonics, ring), native);
    assert_eq!(calls!(ours, http2.clone()), native);
    assert_eq!(calls!(tonics, http2), native);
    assert_eq!(calls!(ours, other.clone()), native);
    assert_eq!(calls!(tonics, other), native);
}
