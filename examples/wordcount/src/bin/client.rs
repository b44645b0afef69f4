//! The word-count client. `grpc-client.rs` and `client.rs` differ in the one line that connects.

use std::process::ExitCode;

use wordcount::{client, proto::word_count_client::WordCountClient};

#[tokio::main]
async fn main() -> ExitCode {
    client::run(async |uri| {
        let channel = partywall::Channel::connect(&uri).await?;
        Ok(WordCountClient::new(channel))
    })
    .await
}
