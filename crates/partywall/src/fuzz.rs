//! Bodies of the fuzz targets: a hostile caller against our service, a hostile service against
//! our caller. Each returns whether it came to the accepting path.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use partywall_abi::control::Identity;
use partywall_abi::frame::{self, END, HEAD, Kind, RequestHead, ResponseHead, TRAILERS, Trailers};
use partywall_abi::layout::Geometry;
use partywall_abi::limits;
use partywall_abi::name::MethodSet;
use partywall_abi::security::Security;
use partywall_shm::link::Ends;
use partywall_shm::setup::local_pair;
use tonic::body::Body;

use crate::dispatch::{Answer, HttpDispatch};
use crate::http_calls::{self, service::HttpCalls};
use crate::link::account::{Accounts, Bounds};
use crate::link::{caller, service};
use crate::peer::Peer;

struct Echo(AtomicBool);

impl HttpDispatch for Echo {
    fn call(&self, request: http::Request<Body>) -> Answer {
        self.0.store(true, Ordering::SeqCst);
        Box::pin(async move {
            use http_body_util::BodyExt;
            let _all = request.into_body().collect().await;
            tonic::Status::ok("").into_http()
        })
    }
}

/// One record made of fuzz input: arbitrary, or honest with one thing wrong.
fn record(op: &[u8], response: bool) -> (u8, u8, u32, Vec<u8>) {
    let stream = u32::from(op[1] % 4);
    let mut payload = Vec::new();
    match op[0] % 6 {
        0 => return (op[2], op[3], u32::from(op[4]), op[5..].to_vec()),
        1 => return (Kind::Frame as u8, op[2] & 15, stream, op[3..].to_vec()),
        2 if op[6] & 1 == 0 => {
            let kind = [Kind::Limits, Kind::Room][usize::from(op[6] >> 1 & 1)];
            let len = op.len().min(10);
            return (kind as u8, 0, stream, op[2..len].to_vec());
        }
        2 => return (Kind::Window as u8, 0, stream, op[2..6].to_vec()),
        3 => frame::write_reset(&mut payload, op[2] % 17, ""),
        _ => {
            frame::write_block(&mut payload, |out| {
                if response {
                    ResponseHead::write(out, 0);
                } else {
                    RequestHead::write(
                        out,
                        if op[2] < 128 { None } else { Some(Duration::from_millis(1)) },
                        "/a.B/C",
                        0,
                    );
                }
            });
            if response {
                frame::write_block(&mut payload, |out| Trailers::write(out, op[2] % 17, 0));
            }
            payload.extend_from_slice(&op[3..]);
            if op[3] == 0 {
                payload.truncate(usize::from(op[4]) % (payload.len() + 1));
            }
            let flags = if response { HEAD | TRAILERS | END } else { HEAD | (op[5] & END) };
            return (Kind::Frame as u8, flags, stream, payload);
        }
    }
    (Kind::Reset as u8, 0, stream, payload)
}

/// Sends what `data` says as `hostile`, letting `ours` run in between.
async fn play(hostile: &mut Ends, data: &[u8], response: bool) {
    for op in data.chunks(24).filter(|op| op.len() > 6) {
        let (kind, flags, stream, payload) = record(op, response);
        if !matches!(hostile.producer.try_push(kind, flags, stream, &[&payload]), Ok(true)) {
            return;
        }
        let Ok(wake) = hostile.producer.notify() else { return };
        if hostile.bell.carry_out(wake).is_err() {
            return;
        }
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        while let Ok(Some(_)) = hostile.consumer.peek() {
            hostile.consumer.release();
        }
    }
    tokio::time::sleep(Duration::from_micros(200)).await;
}

/// Somebody of whom next to nothing is known, on link 1.
pub(crate) fn stranger() -> Peer {
    Peer::new(identity(), 1, Security::HIGHEST)
}

pub(crate) fn identity() -> Identity {
    Identity::new(0, 0)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Our service against a caller whose records come from `data`.
///
/// # Panics
/// When an own invariant breaks: that is what fuzzing looks for.
pub fn hostile_caller(data: &[u8]) -> bool {
    let echo = Arc::new(Echo(AtomicBool::new(false)));
    runtime().block_on(async {
        let (ours, mut hostile) = local_pair(Geometry::DEFAULT).expect("a link");
        let dispatch: Arc<dyn HttpDispatch> = Arc::clone(&echo) as _;
        let account = Accounts::new(Bounds::default()).open(0, None);
        let caller = (stranger(), account);
        let _link =
            service::start(ours, HttpCalls::alone(dispatch), caller, MethodSet::all(), None)
                .expect("a link");
        play(&mut hostile, data, false).await;
    });
    echo.0.load(Ordering::SeqCst)
}

/// Our caller against a service whose records come from `data`.
///
/// # Panics
/// As [`hostile_caller`].
pub fn hostile_service(data: &[u8]) -> bool {
    runtime().block_on(async {
        let (ours, mut hostile) = local_pair(Geometry::DEFAULT).expect("a link");
        let limits = frame::Limits { streams: 4, window: limits::FIRST_WINDOW };
        let pushed = hostile.producer.try_push(Kind::Limits as u8, 0, 0, &[&limits.encode()]);
        assert!(matches!(pushed, Ok(true)), "an empty ring has room");
        let link = caller::start(ours, None).expect("a link");
        tokio::task::yield_now().await;
        let calls: Vec<_> = (0..3)
            .map(|_| {
                let mut request = http::Request::new(Body::empty());
                *request.uri_mut() = http::Uri::from_static("/a.B/C");
                let call = http_calls::caller::call(&link, request, None);
                tokio::spawn(async move {
                    let Ok(mut call) = call else { return false };
                    let answer = std::future::poll_fn(|cx| call.poll(cx)).await;
                    let Ok(response) = answer else { return false };
                    use http_body_util::BodyExt;
                    response.into_body().collect().await.is_ok()
                })
            })
            .collect();
        tokio::task::yield_now().await;
        play(&mut hostile, data, true).await;
        drop(hostile);
        let mut accepted = false;
        for call in calls {
            // Whatever the service does, its end ends every call.
            let done = tokio::time::timeout(Duration::from_secs(5), call).await;
            accepted |= done.expect("a call hangs").expect("a call panics");
        }
        accepted
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Once;

    thread_local! {
        static PANICS: Cell<usize> = const { Cell::new(0) };
    }

    /// How many panics there were in this thread. The runtime swallows those of tasks, as which a link's
    /// end reads; all tasks of a link run in the thread that made its runtime, and other tests in others.
    fn panics() -> usize {
        static COUNTING: Once = Once::new();
        COUNTING.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                PANICS.set(PANICS.get() + 1);
                before(panic);
            }));
        });
        PANICS.get()
    }

    fn drive(body: fn(&[u8]) -> bool, trials: usize) {
        let before = panics();
        let mut random = partywall_testkit::Random::new(1);
        let mut accepted = 0;
        for _ in 0..trials {
            let data = random.bytes(240);
            accepted += usize::from(body(&data));
            assert_eq!(panics(), before, "a task of the link panics at {data:?}");
        }
        assert!(accepted > trials / 50, "only {accepted} inputs reached the accepting path");
        assert!(accepted < trials, "nothing was refused");
    }

    #[test]
    fn fuzz_hostile_caller() {
        drive(super::hostile_caller, 500);
    }

    #[test]
    fn fuzz_hostile_service() {
        drive(super::hostile_service, 500);
    }
}
