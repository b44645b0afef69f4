//! Calls one method of each kind.

use examples::Number;
use examples::sums_client::SumsClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

fn number(value: i64) -> Number {
    Number { value }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let channel = partywall::Channel::connect("partywall:///sums").await?;
    let mut client = SumsClient::new(channel);

    // Unary: one request, one answer.
    let reply = client.double(number(21)).await?;
    println!("twice 21 is {}", reply.into_inner().value);

    // Server streaming: answers are read as they come.
    let mut answers = client.count_down(number(3)).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        println!("count down: {}", answer.value);
    }

    // Client streaming: the answer comes after the last request.
    let requests = tokio_stream::iter([1, 2, 3].map(number));
    let reply = client.sum(requests).await?;
    println!("1 + 2 + 3 is {}", reply.into_inner().value);

    // Both: each request here waits for the answer to the one before.
    let (requests, receiver) = mpsc::channel(1);
    let mut answers = client.running_sum(ReceiverStream::new(receiver)).await?.into_inner();
    for value in [10, 20, 30] {
        requests.send(number(value)).await?;
        let answer = answers.message().await?.ok_or("the answers ended too early")?;
        println!("after {value} the sum is {}", answer.value);
    }
    // The end of the requests is the end of the answers.
    drop(requests);
    match answers.message().await? {
        None => Ok(()),
        Some(_) => Err("an answer to no request".into()),
    }
}
