//! A clock that finishes the calls under way when it is told to stop. The example runs by
//!
//! ```sh
//! cargo run -- up --debug examples/deadlines/compose.yaml
//! ```

use std::pin::Pin;
use std::time::Duration;

use examples::clock_server::{Clock, ClockServer};
use examples::{Tick, TicksRequest};
use partywall::{Deadline, Server};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::interval;
use tokio_stream::wrappers::IntervalStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

struct Service;

/// Lives as long as the call: an answer is dropped when its caller has gone or its deadline has passed.
struct Call {
    told: u32,
    count: u32,
}

impl Call {
    fn tick(&mut self) -> Tick {
        self.told += 1;
        Tick { number: self.told }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        match self.told < self.count {
            true => println!("a call ended early, after tick {} of {}", self.told, self.count),
            false => println!("a call ended after all {} ticks", self.count),
        }
    }
}

#[tonic::async_trait]
impl Clock for Service {
    type TicksStream = Pin<Box<dyn Stream<Item = Result<Tick, Status>> + Send>>;

    async fn ticks(
        &self,
        request: Request<TicksRequest>,
    ) -> Result<Response<Self::TicksStream>, Status> {
        // A handler may ask how much time is left, to do less work or to refuse it.
        let has_deadline = request.extensions().get::<Deadline>().is_some();
        println!("a call {} a deadline", if has_deadline { "with" } else { "without" });
        let TicksRequest { count, milliseconds_between } = request.into_inner();
        if milliseconds_between == 0 {
            return Err(Status::invalid_argument("milliseconds_between is to be 1 or more"));
        }
        let mut call = Call { told: 0, count };
        let ticks =
            IntervalStream::new(interval(Duration::from_millis(milliseconds_between.into())));
        let ticks = ticks.take(count as usize).map(move |_| Ok(call.tick()));
        Ok(Response::new(Box::pin(ticks)))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async move {
        terminate.recv().await;
        println!("no new calls; those under way are finished");
    };
    // Those that take longer than this are cut off.
    let mut server = Server::builder().drain_timeout(Duration::from_secs(5));
    server.add_service(ClockServer::new(Service)).serve_with_shutdown("clock", stop).await?;
    println!("stopped");
    Ok(())
}
