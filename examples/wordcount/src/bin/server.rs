//! The word-count server. `grpc-server.rs` and `server.rs` differ in the one line that serves.

use std::process::ExitCode;

use wordcount::{Counter, MESSAGE_LIMIT, proto::word_count_server::WordCountServer, server};

#[tokio::main]
async fn main() -> ExitCode {
    server::run(async |listen, shutdown| {
        let service = WordCountServer::new(Counter).max_decoding_message_size(MESSAGE_LIMIT);
        #[rustfmt::skip]
        partywall::Server::builder().add_service(service).serve_with_shutdown(&listen, shutdown).await?;
        Ok(())
    })
    .await
}
