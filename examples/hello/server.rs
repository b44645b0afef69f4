//! A greeter under the name `greeter`. The example runs by
//!
//! ```sh
//! cargo run -- up --debug examples/hello/compose.yaml
//! ```

use examples::greeter_server::{Greeter, GreeterServer};
use examples::{HelloReply, HelloRequest};
use tonic::{Request, Response, Status};

struct Service;

#[tonic::async_trait]
impl Greeter for Service {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let text = format!("Hello, {}!", request.into_inner().name);
        Ok(Response::new(HelloReply { text }))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A name for callers on this host; after a comma, an address for HTTP/2.
    let at = std::env::args().nth(1).unwrap_or("greeter".into());
    let mut server = partywall::Server::builder();
    server.add_service(GreeterServer::new(Service)).serve(at).await?;
    Ok(())
}
