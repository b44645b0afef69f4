//! A service with one method of each kind, as tonic has them. The example runs by
//!
//! ```sh
//! cargo run -- up --debug examples/streaming/compose.yaml
//! ```

use std::pin::Pin;

use examples::Number;
use examples::sums_server::{Sums, SumsServer};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

struct Service;

type Numbers = Pin<Box<dyn Stream<Item = Result<Number, Status>> + Send>>;

#[tonic::async_trait]
impl Sums for Service {
    async fn double(&self, request: Request<Number>) -> Result<Response<Number>, Status> {
        let value = request.into_inner().value.checked_mul(2);
        let value = value.ok_or_else(|| Status::out_of_range("twice this number is too large"))?;
        Ok(Response::new(Number { value }))
    }

    type CountDownStream = Numbers;

    async fn count_down(&self, request: Request<Number>) -> Result<Response<Numbers>, Status> {
        let down = (1..=request.into_inner().value).rev().map(|value| Ok(Number { value }));
        Ok(Response::new(Box::pin(tokio_stream::iter(down))))
    }

    async fn sum(&self, request: Request<Streaming<Number>>) -> Result<Response<Number>, Status> {
        let mut numbers = request.into_inner();
        let mut sum = Number { value: 0 };
        while let Some(number) = numbers.message().await? {
            sum.value = sum.value.wrapping_add(number.value);
        }
        Ok(Response::new(sum))
    }

    type RunningSumStream = Numbers;

    async fn running_sum(
        &self,
        request: Request<Streaming<Number>>,
    ) -> Result<Response<Numbers>, Status> {
        let mut value = 0_i64;
        let sums = request.into_inner().map(move |number| {
            value = value.wrapping_add(number?.value);
            Ok(Number { value })
        });
        Ok(Response::new(Box::pin(sums)))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut server = partywall::Server::builder();
    server.add_service(SumsServer::new(Service)).serve("sums").await?;
    Ok(())
}
