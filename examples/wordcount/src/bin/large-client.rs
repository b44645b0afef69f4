//! The word-count client for large texts, which are read straight into memory that the server reads.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    wordcount::large::run().await
}
