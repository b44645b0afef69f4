//! The client for large texts: a file is read straight into a parcel of the channel's link, where the policy
//! lets descriptors cross, and the request is put together around it. The server copies it once.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use partywall::Channel;

use crate::native::{TotalRequest, word_count_client::WordCountClient};
use crate::{Error, MESSAGE_LIMIT, exit, report};

/// Asks a word-count server for the words of a large text, again and again, and takes the time.
#[derive(Debug, Parser)]
struct Options {
    /// The text
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// How often the text is the file, one after the other
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// How many calls to time
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
    /// Where the server is: `partywall:///NAME`
    #[arg(value_name = "URI")]
    endpoint: String,
}

/// Runs the command-line client.
pub async fn run() -> ExitCode {
    exit(run_with(Options::parse()).await)
}

async fn run_with(options: Options) -> Result<(), Error> {
    let Options { text, times, calls, endpoint } = options;
    let channel = Channel::connect(&endpoint).await?;
    let asked = ask(channel, &text, times, calls).await;
    let asked = asked.map_err(|error| format!("{endpoint}: {}", crate::whole(&*error)))?;
    let said = writeln!(
        std::io::stdout(),
        "{} words in {}\n{calls} calls of Total, each with the file read anew: median {}\nin a parcel: the \
         text of {} of them{}",
        asked.words,
        report::size(asked.bytes),
        report::short(asked.median),
        asked.in_parcel,
        match asked.in_parcel {
            0 if asked.bytes < LONG => "; a text of less than 128 KiB goes as bytes",
            0 => "; the caller's rule needs `descriptors: 1`, and the quota room in `parcel_bytes`",
            _ => "",
        },
    );
    said.map_err(|error| format!("standard output: {error}").into())
}

/// Shorter messages travel as bytes.
const LONG: usize = 128 << 10;

/// What was asked and answered.
struct Asked {
    bytes: usize,
    words: u64,
    in_parcel: u32,
    median: Duration,
}

async fn ask(channel: Channel, path: &Path, times: u32, calls: u32) -> Result<Asked, Error> {
    let cannot = |error| format!("cannot read the text {}: {error}", path.display());
    let mut client = WordCountClient::new(channel.clone()).max_encoding_message_size(MESSAGE_LIMIT);
    let one =
        usize::try_from(File::open(path).and_then(|file| file.metadata()).map_err(cannot)?.len())?;
    let bytes = one.checked_mul(times as usize).filter(|bytes| *bytes < MESSAGE_LIMIT);
    let bytes =
        bytes.ok_or_else(|| format!("{times} times {one} bytes are more than a message has"))?;
    let (mut words, mut in_parcel, mut took) = (None, 0, Vec::new());
    for _ in 0..calls {
        let begin = Instant::now();
        let mut text = channel.buffer(bytes).await;
        for part in text.chunks_mut(one.max(1)) {
            File::open(path).and_then(|mut file| file.read_exact(part)).map_err(cannot)?;
        }
        in_parcel += u32::from(text.is_in_parcel());
        let answer = client.total(TotalRequest { text: text.freeze() }).await?.into_inner().words;
        took.push(begin.elapsed());
        if *words.get_or_insert(answer) != answer {
            return Err(format!("the server says {answer} words, and said {words:?}").into());
        }
    }
    took.sort_unstable();
    let (words, median) = (words.unwrap_or_default(), took[took.len() / 2]);
    Ok(Asked { bytes, words, in_parcel, median })
}
