//! The client: asks for the words of a text, checks the answers and takes the time.

use std::{
    fs,
    io::Write as _,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use bytes::Bytes;
use clap::Parser;
use tonic::{
    body::Body,
    client::GrpcService,
    codegen::{Body as HttpBody, StdError},
};

use crate::{
    Error, MESSAGE_LIMIT,
    count::Expected,
    exit,
    proto::{CountsRequest, TotalRequest, word_count_client::WordCountClient},
    report::{self, Times},
    whole,
};

/// The text of calls without `--text`.
const TEXT: &[u8] = include_bytes!("../text.txt");

/// Asks word-count servers for the words of a text, checks their answers and compares their times.
#[derive(Debug, Parser)]
struct Options {
    /// The text; without it, a text about party walls
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// How many calls to time over each endpoint
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
    /// Where a server is, such as `unix:///run/wordcount.sock`
    #[arg(value_name = "URI", required = true)]
    endpoints: Vec<String>,
}

/// Runs the command-line client. `connect` gives a client of the server at a URI.
pub async fn run<C, T>(connect: C) -> ExitCode
where
    C: AsyncFn(String) -> Result<WordCountClient<T>, Error>,
    T: GrpcService<Body, Error: Into<StdError>>,
    T::ResponseBody: HttpBody<Data = Bytes, Error: Into<StdError> + Send> + Send + 'static,
{
    exit(run_with(Options::parse(), connect).await)
}

async fn run_with<C, T>(options: Options, connect: C) -> Result<(), Error>
where
    C: AsyncFn(String) -> Result<WordCountClient<T>, Error>,
    T: GrpcService<Body, Error: Into<StdError>>,
    T::ResponseBody: HttpBody<Data = Bytes, Error: Into<StdError> + Send> + Send + 'static,
{
    let text = match &options.text {
        Some(path) => fs::read(path)
            .map_err(|error| format!("cannot read the text {}: {error}", path.display()))?
            .into(),
        None => Bytes::from_static(TEXT),
    };
    let expected = Expected::of(text.clone());
    let mut rows = Vec::new();
    for uri in options.endpoints {
        let times = async {
            let client = connect(uri.clone()).await?;
            ask(client, &text, &expected, options.calls).await
        };
        let times = times.await.map_err(|error| format!("{uri}: {}", whole(&*error)))?;
        rows.push((uri, times));
    }
    let said = writeln!(
        std::io::stdout(),
        "{}\n{} calls of Total with {} each:\n{}",
        report::answers(&expected),
        options.calls,
        report::size(text.len()),
        report::table(&rows).trim_end()
    );
    said.map_err(|error| format!("standard output: {error}").into())
}

/// Calls both methods, checks the answers, and takes the times of `calls` calls of `Total`.
async fn ask<T>(
    client: WordCountClient<T>,
    text: &Bytes,
    expected: &Expected,
    calls: u32,
) -> Result<Times, Error>
where
    T: GrpcService<Body, Error: Into<StdError>>,
    T::ResponseBody: HttpBody<Data = Bytes, Error: Into<StdError> + Send> + Send + 'static,
{
    let mut client = client.max_decoding_message_size(MESSAGE_LIMIT);
    let counts = client.counts(CountsRequest { text: text.clone() }).await?.into_inner();
    expected.check_counts(&counts.frequencies)?;

    let warm_up = (calls / 10).clamp(1, 20);
    let mut times: Vec<Duration> = Vec::new();
    for call in 0..warm_up + calls {
        let request = TotalRequest { text: text.clone() };
        let start = Instant::now();
        let reply = client.total(request).await?;
        let time = start.elapsed();
        expected.check_total(reply.get_ref().words)?;
        if call >= warm_up {
            times.push(time);
        }
    }
    Ok(Times::new(times))
}

#[cfg(test)]
mod tests {
    use tokio_stream::wrappers::UnixListenerStream;
    use tonic::{
        Request, Response, Status,
        transport::{Endpoint, Server},
    };

    use super::*;
    use crate::proto::{
        CountsReply, TotalReply,
        word_count_server::{WordCount, WordCountServer},
    };

    /// Always finds one word, whatever the text.
    struct Liar;

    #[tonic::async_trait]
    impl WordCount for Liar {
        async fn total(&self, _: Request<TotalRequest>) -> Result<Response<TotalReply>, Status> {
            Ok(Response::new(TotalReply { words: 1 }))
        }

        async fn counts(&self, _: Request<CountsRequest>) -> Result<Response<CountsReply>, Status> {
            Ok(Response::new(CountsReply { frequencies: Vec::new() }))
        }
    }

    #[tokio::test]
    async fn wrong_answers_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let server = Server::builder()
            .add_service(WordCountServer::new(Liar))
            .serve_with_incoming(UnixListenerStream::new(listener));
        tokio::spawn(server);

        let uri = format!("unix://{}", socket.display());
        let text = dir.path().join("text");
        for (content, expected) in [
            ("a b", "wrong answer: Counts has 0 distinct words, but the text has 2"),
            ("  ", "wrong answer: Total says 1 words, but the text has 0"),
        ] {
            fs::write(&text, content).unwrap();
            let endpoints = vec![uri.clone()];
            let options = Options { text: Some(text.clone()), calls: 1, endpoints };
            let connect = async |uri: String| {
                let channel = Endpoint::from_shared(uri)?.connect().await?;
                Ok(WordCountClient::new(channel))
            };
            let error = run_with(options, connect).await.unwrap_err().to_string();
            assert_eq!(error, format!("{uri}: {expected}"));
        }
    }
}
