//! A client without a runtime, on a thread for each call.

use partywall::blocking::Channel;

use super::pb::HelloRequest;
use super::pb::greeter_blocking::GreeterClient;
use super::services::outcome;
use crate::{Asked, Caller, Calling, Settings};

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
            outcome(called)
        })
    }

    fn another(&self) -> Box<dyn Caller> {
        unreachable!("a blocking channel is one thread's")
    }
}
