//! A coordinator in a temporary directory and a server on a runtime of its own.

use std::sync::{Arc, Mutex};

use partywall::{Channel, Endpoint, Routes, Server};
pub(crate) use partywall_testkit::{Host, OPEN};

/// A service of a host, and a channel to it.
pub(crate) trait Serve {
    /// Serves in the background until the value is stopped or dropped.
    async fn serve_by(&self, server: Server, at: &str, routes: Routes) -> Running;

    async fn connect(&self) -> Channel;

    async fn serve_at(&self, at: &str, routes: Routes) -> Running {
        self.serve_by(Server::builder(), at, routes).await
    }

    async fn serve(&self, routes: Routes) -> Running {
        self.serve_at("test", routes).await
    }
}

impl Serve for Host {
    async fn serve_by(&self, server: Server, at: &str, routes: Routes) -> Running {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let router = server.coordinator(&self.socket).add_routes(routes);
        let task = tokio::spawn(router.serve_with_shutdown(at, async {
            let _dropped = stopped.await;
        }));
        Running { stop: Some(stop), task }
    }

    async fn connect(&self) -> Channel {
        let endpoint = Endpoint::from_static("partywall:///test").coordinator(&self.socket);
        endpoint.wait_for_ready(true).connect().await.unwrap()
    }
}

pub(crate) struct Running {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<Result<(), partywall::Error>>,
}

impl Running {
    pub(crate) async fn stop(mut self) -> Result<(), partywall::Error> {
        drop(self.stop.take());
        self.task.await.unwrap()
    }
}

/// What is logged as a warning in the threads that it is set in.
#[derive(Clone, Default)]
pub(crate) struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    pub(crate) fn read(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// The fields of an event, each as `name=value`.
struct Fields(String);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{field}={value:?} ");
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }

    fn enter(&self, _span: &tracing::span::Id) {}

    fn exit(&self, _span: &tracing::span::Id) {}
}
