// A service that answers with what it was sent, and its callers, by the stubs in `stubs`.

use std::sync::{Arc, Mutex};

use partywall_stubs_tests::Own;
use tonic::{Request, Response, Status};

use super::counting::Counts;
use stubs::pb::keeper_client::KeeperClient;
use stubs::pb::keeper_server::{Keeper, KeeperServer};

/// The service, which keeps what its thread had counted when its handler began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Echo(pub(crate) Arc<Mutex<Counts>>);

#[tonic::async_trait]
impl Keeper for Echo {
    async fn keep(&self, request: Request<Own>) -> Result<Response<Own>, Status> {
        *self.0.lock().unwrap() = Counts::here();
        Ok(Response::new(request.into_inner()))
    }
}

/// Calls in one process and on one thread, whose counts are those of both sides.
pub(crate) fn in_process(calls: u64, message: &Own) -> Counts {
    super::on_one_thread(async {
        let server = partywall::Server::builder().add_service(KeeperServer::new(Echo::default()));
        let mut client = KeeperClient::new(server.in_process().unwrap());
        let mut before = Counts::here();
        for call in 0..super::WARM + calls {
            if call == super::WARM {
                before = Counts::here();
            }
            let answer = client.keep(message.clone()).await.unwrap();
            assert_eq!(answer.get_ref(), message);
        }
        Counts::here() - before
    })
}
