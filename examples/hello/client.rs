//! A caller of `greeter`, which differs from one over gRPC in the line that connects.

use examples::HelloRequest;
use examples::greeter_client::GreeterClient;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let channel = partywall::Channel::connect("partywall:///greeter").await?;
    let mut client = GreeterClient::new(channel);
    let reply = client.say_hello(HelloRequest { name: "neighbour".into() }).await?;
    println!("{}", reply.into_inner().text);
    Ok(())
}
