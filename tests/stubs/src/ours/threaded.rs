//! A client without a runtime, on a thread for each call.

use partywall::blocking::Channel;

use super::pb::HelloRequest;
use super::pb::greeter_blocking::GreeterClient;
use crate::{Asked, Caller, Calling, Outcome, Settings};

/// Its calls go on when they are dropped.
#[derive(Debug)]
pub struct Threaded(Option<GreeterClient>);

impl Threaded {
    /// A client with these settings, of which compression has no meaning.
    pub fn new(channel: Channel, settings: Settings) -> Self {
        let mut client = GreeterClient::new(channel);
        if let Some(limit) = settings.encoded {
            client = client.max_encoding_message_size(limit);
        }
        if let Some(limit) = settings.decoded {
            client = client.max_decoding_message_size(limit);
        }
        Self(Some(client))
    }
}

impl Caller for Threaded {
    fn hello<'a>(&'a mut self, asked: &'a Asked) -> Calling<'a> {
        let mut client = self.0.take().expect("one call at a time");
        let message = HelloRequest { name: asked.name.clone(), blob: asked.blob.clone() };
        let request = asked.request(message);
        Box::pin(async move {
            let call = move || (client.say_hello(request), client);
            let (called, client) = tokio::task::spawn_blocking(call).await.expect("no panic");
            self.0 = Some(client);
            match called {
                Ok(reply) => {
                    let (metadata, reply, _) = reply.into_parts();
                    let seen = reply.seen.into_keys().collect();
                    Outcome::of(&metadata, reply.text, reply.blob, seen)
                }
                Err(status) => Outcome::failed(&status),
            }
        })
    }

    fn another(&self) -> Box<dyn Caller> {
        unreachable!("a blocking channel is one thread's")
    }
}
