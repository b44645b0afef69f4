//! A caller without a runtime: each call is made on the thread that wants its answer. The example runs by
//!
//! ```sh
//! cargo run -- up --debug examples/blocking/compose.yaml
//! ```

use examples::{HelloReply, HelloRequest};
use partywall::blocking::Channel;
use tonic::Request;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A channel is for one thread at a time; each of these has its own.
    let threads = ["Ada", "Grace"].map(|name| {
        std::thread::spawn(move || -> Result<String, String> {
            let channel = Channel::connect("partywall:///greeter");
            let mut channel = channel.map_err(|error| error.to_string())?;
            let request = Request::new(HelloRequest { name: name.into() });
            let reply = channel.unary::<_, HelloReply>("/examples.Greeter/SayHello", request);
            Ok(reply.map_err(|status| status.to_string())?.into_inner().text)
        })
    });
    for thread in threads {
        println!("{}", thread.join().map_err(|_| "a thread has panicked")??);
    }
    Ok(())
}
