//! A caller in the address space of its service. Nothing in its source says so. It calls often, for a call
//! whose service happens to be awake goes by the ring. The example runs by
//!
//! ```sh
//! cargo run -- up --debug examples/domain/compose.yaml
//! ```

use examples::HelloRequest;
use examples::greeter_client::GreeterClient;

const CALLS: usize = 1_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let channel = partywall::Channel::connect("partywall:///greeter").await?;
    if let Some(route) = channel.route() {
        println!("isolation: {}", route.security().isolation);
    }
    let mut client = GreeterClient::new(channel);
    for n in 0..CALLS {
        let reply = client.say_hello(HelloRequest { name: n.to_string() }).await?;
        if reply.into_inner().text != format!("Hello, {n}!") {
            return Err(format!("a wrong answer to call {n}").into());
        }
    }
    println!("{CALLS} calls, each answered");
    Ok(())
}
