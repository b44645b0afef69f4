//! A deadline that passes, a call that is given up, and a call that a stopping service finishes.

use std::process::Command;
use std::time::Duration;

use examples::clock_client::ClockClient;
use examples::{Tick, TicksRequest};
use partywall::{Channel, Endpoint, Route};
use tonic::{Code, Request, Status, Streaming};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    // Calls wait while the service is started again.
    let endpoint = Endpoint::from_static("partywall:///clock").wait_for_ready(true);
    let channel = endpoint.connect().await?;
    let mut clock = ClockClient::new(channel.clone());

    // A deadline: the call ends on both sides when it passes, wherever the answer is then.
    let mut request = Request::new(TicksRequest { count: 1_000, milliseconds_between: 50 });
    request.set_timeout(Duration::from_millis(300));
    match all(&mut clock, request).await {
        Err(status) if status.code() == Code::DeadlineExceeded => println!("the deadline passed"),
        other => return Err(format!("the deadline is to pass, and there is {other:?}").into()),
    }

    // Cancellation: who drops a call gives it up.
    let request = TicksRequest { count: 1_000, milliseconds_between: 50 };
    let mut ticks = clock.ticks(request).await?.into_inner();
    println!("tick {}", first(&mut ticks).await?.number);
    drop(ticks);
    println!("given up");

    // A drain: the service is told to stop in the middle of a call, and finishes it.
    let request = TicksRequest { count: 10, milliseconds_between: 50 };
    let mut ticks = clock.ticks(request).await?.into_inner();
    let begun = first(&mut ticks).await?.number;
    let before = server(&channel).ok_or("no process is seen")?;
    let told = Command::new("kill").args(["-TERM", &before.to_string()]).status()?;
    if !told.success() {
        return Err("the service was not told to stop".into());
    }
    println!("after tick {begun} the service was told to stop");
    println!("it told {} more", rest(ticks).await?);

    // `restart: always` has it started again. Calls go on meanwhile, and none fails.
    loop {
        let request = TicksRequest { count: 1, milliseconds_between: 1 };
        all(&mut clock, Request::new(request)).await?;
        if server(&channel).is_some_and(|after| after != before) {
            println!("the next process has answered");
            return Ok(());
        }
    }
}

/// Makes a call; how many ticks come.
async fn all(
    clock: &mut ClockClient<Channel>,
    request: Request<TicksRequest>,
) -> std::result::Result<usize, Status> {
    rest(clock.ticks(request).await?.into_inner()).await
}

async fn first(ticks: &mut Streaming<Tick>) -> Result<Tick> {
    Ok(ticks.message().await?.ok_or("no tick")?)
}

/// How many ticks come until the end.
async fn rest(mut ticks: Streaming<Tick>) -> std::result::Result<usize, Status> {
    let mut count = 0;
    while ticks.message().await?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// The process that serves, if there is a link.
fn server(channel: &Channel) -> Option<u32> {
    match channel.route() {
        Some(Route::Ring { server }) => server.pid(),
        _ => None,
    }
}
