//! A collector of OpenTelemetry's spans under the name `collector`. It knows who has sent them. The
//! example runs by
//!
//! ```sh
//! cargo run -- up --debug examples/telemetry/compose.yaml
//! ```

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use partywall::Peer;
use tonic::{Request, Response, Status};

struct Collector;

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let sender = request.extensions().get::<Peer>().map(ToString::to_string);
        let sender = sender.unwrap_or("somebody over the network".into());
        let spans = request.into_inner().resource_spans;
        let spans = spans.into_iter().flat_map(|r| r.scope_spans).flat_map(|s| s.spans);
        for span in spans {
            println!("`{}`, sent by {sender}", span.name);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut server = partywall::Server::builder();
    server.add_service(TraceServiceServer::new(Collector)).serve("collector").await?;
    Ok(())
}
