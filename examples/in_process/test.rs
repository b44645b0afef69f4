//! A unit test of code that calls a service, with a mock in its place: both are in this process, linked
//! by rings, without a coordinator. It runs by
//!
//! ```sh
//! cargo test -p examples --test in_process
//! ```

use examples::greeter_client::GreeterClient;
use examples::greeter_server::{Greeter, GreeterServer};
use examples::{HelloReply, HelloRequest};
use partywall::{Channel, Server};
use tonic::{Request, Response, Status};

/// The code to test: greets all, and leaves out those whom the service does not know.
async fn greet_all(channel: Channel, names: &[&str]) -> Result<Vec<String>, Status> {
    let mut client = GreeterClient::new(channel);
    let mut greetings = Vec::new();
    for name in names {
        match client.say_hello(HelloRequest { name: (*name).into() }).await {
            Ok(reply) => greetings.push(reply.into_inner().text),
            Err(status) if status.code() == tonic::Code::NotFound => {}
            Err(status) => return Err(status),
        }
    }
    Ok(greetings)
}

/// Answers as the test wants it.
struct Mock;

#[tonic::async_trait]
impl Greeter for Mock {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        match request.into_inner().name.as_str() {
            "nobody" => Err(Status::not_found("nobody is not known")),
            "down" => Err(Status::unavailable("no greetings today")),
            name => Ok(Response::new(HelloReply { text: format!("mock of {name}") })),
        }
    }
}

/// A channel to the mock, which ends with the channel.
fn mock() -> Channel {
    let mut server = Server::builder();
    server.add_service(GreeterServer::new(Mock)).in_process().expect("rings in this process")
}

#[tokio::test]
async fn names_that_the_service_does_not_know_are_left_out() {
    let greetings = greet_all(mock(), &["Ada", "nobody", "Grace"]).await;
    assert_eq!(greetings.unwrap(), ["mock of Ada", "mock of Grace"]);
}

#[tokio::test]
async fn other_failures_end_the_greeting() {
    let failed = greet_all(mock(), &["Ada", "down", "Grace"]).await.unwrap_err();
    assert_eq!(failed.code(), tonic::Code::Unavailable);
}
