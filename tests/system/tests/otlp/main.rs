//! A crate that takes tonic's own channel and no other sends what it has over a ring:
//! OpenTelemetry's exporter of spans.

use std::time::Duration;

use opentelemetry::trace::{Span, Tracer, TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithTonicConfig};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_sdk::trace::SdkTracerProvider;
use partywall::{Endpoint, Peer, Route, Server};
use partywall_testkit::Host;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

const POLICY: &str = "[service.collector]\nregister = ['anyone']\n[service.collector.call]\n\
                      anyone = ['opentelemetry.proto.collector.trace.v1.TraceService/Export']\n";

/// Keeps the names of the spans it is sent, and the process that sent them.
struct Collector(mpsc::UnboundedSender<(String, Option<u32>)>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let sender = request.extensions().get::<Peer>().and_then(Peer::pid);
        let spans = request.into_inner().resource_spans;
        let spans = spans.into_iter().flat_map(|r| r.scope_spans).flat_map(|s| s.spans);
        for span in spans {
            let _gone = self.0.send((span.name, sender));
        }
        Ok(Response::new(ExportTraceServiceResponse { partial_success: None }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exporter_that_needs_tonics_channel_exports_over_a_ring() {
    let host = Host::with(POLICY);
    let (sender, mut spans) = mpsc::unbounded_channel();
    let mut server = Server::builder().coordinator(&host.socket);
    let serving = tokio::spawn(
        server.add_service(TraceServiceServer::new(Collector(sender))).serve("collector"),
    );
    let endpoint = Endpoint::from_static("partywall:///collector").coordinator(&host.socket);
    let channel = endpoint.wait_for_ready(true).connect().await.unwrap();
    let link = channel.clone();

    let exporter = SpanExporter::builder().with_tonic().with_channel(channel.into_tonic());
    let provider =
        SdkTracerProvider::builder().with_batch_exporter(exporter.build().unwrap()).build();
    let tracer = provider.tracer("test");
    for n in 0..1_000 {
        tracer.start(format!("span {n}")).end();
    }
    tokio::task::spawn_blocking(move || {
        provider.force_flush().unwrap();
        provider.shutdown().unwrap();
    })
    .await
    .unwrap();
    for n in 0..1_000 {
        let span = tokio::time::timeout(Duration::from_secs(5), spans.recv()).await;
        let (name, sender) = span.expect("in time").expect("a span");
        assert_eq!((name, sender), (format!("span {n}"), Some(std::process::id())));
    }
    assert!(matches!(link.route(), Some(Route::Ring { .. })));
    serving.abort();
}
