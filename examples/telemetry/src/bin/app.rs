//! A program whose spans go over a ring, although its exporter takes tonic's own channel and no other.

use opentelemetry::trace::{Span, Tracer, TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithTonicConfig};
use opentelemetry_sdk::trace::SdkTracerProvider;
use partywall::Channel;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let channel = Channel::connect("partywall:///collector").await?;
    let route = channel.route().ok_or("no route")?;
    // The one line that differs from an exporter over the network.
    let exporter = SpanExporter::builder().with_tonic().with_channel(channel.into_tonic());
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter.build()?).build();
    provider.tracer("app").start("work").end();
    // It waits for the exporter, which needs this runtime.
    tokio::task::spawn_blocking(move || provider.shutdown()).await??;
    println!("sent over the {route}");
    Ok(())
}
