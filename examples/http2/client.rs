//! A caller that knows nothing of Partywall: tonic's own channel, over HTTP/2 at a Unix socket. A client
//! in Python or Go calls the same address. The example runs by
//!
//! ```sh
//! cargo run -- up --debug examples/http2/compose.yaml
//! ```

use examples::HelloRequest;
use examples::greeter_client::GreeterClient;
use tonic::transport::Endpoint;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("write an address, such as unix:///path")?;
    let channel = Endpoint::from_shared(address)?.connect().await?;
    let mut client = GreeterClient::new(channel);
    let reply = client.say_hello(HelloRequest { name: "stranger".into() }).await?;
    println!("{}", reply.into_inner().text);
    Ok(())
}
