//! One connection, from its challenge to its end.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use partywall_shm::socket::{Credentials, Endpoint};

use crate::caller::{BYTES, Caller};
use crate::certificate;
use crate::io::Checked;
use crate::preface::{self, NONCE};
use crate::session::{Ended, Session};
use crate::users::Users;
use crate::{api, sds};

/// The most calls of a connection that are open, finished or not.
const CALLS: u32 = 128;
/// The most bytes of a request's head.
const HEAD: u32 = 16 << 10;
/// The most bytes of an answer that wait for a slow client, of one call.
const WAITING: usize = 64 << 10;

/// Serves a workload until its connection ends, and says why it has.
pub(crate) async fn run(
    socket: Endpoint,
    credentials: Credentials,
    end: OwnedFd,
    users: Arc<Users>,
) -> Ended {
    let admitted = async {
        let session = Session::new(end)?;
        let mut io = Checked::new(socket, credentials)?;
        let nonce = session.challenged().await?;
        let told = *nonce.first_chunk::<NONCE>().expect("it is longer");
        let before = tokio::select! {
            biased;
            refused = session.refused() => return Err(refused),
            answered = preface::challenge(&mut io, told) => answered?,
        };
        session.prove(nonce).await?;
        Ok((io.after(&before), session))
    };
    let (io, session) = match admitted.await {
        Ok(admitted) => admitted,
        Err(ended) => return ended,
    };
    let (certificate, keeper) = certificate::keep(session);
    let caller = Caller::new(certificate, users, credentials.uid);
    let services = tonic::service::Routes::new(api::service(caller.clone()));
    let services = services.add_service(sds::service(caller));
    let mut http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(CALLS)
        .max_header_list_size(HEAD)
        .initial_stream_window_size(BYTES as u32)
        .initial_connection_window_size(BYTES as u32)
        .max_send_buf_size(WAITING);
    let served = http.serve_connection(TokioIo::new(io), TowerToHyperService::new(services));
    tokio::select! {
        ended = keeper.run() => ended,
        served = served => match served {
            Ok(()) => Ended::Http("the client has ended it".into()),
            Err(why) => Ended::Http(why.to_string()),
        },
    }
}
