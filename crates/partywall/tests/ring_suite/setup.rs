//! A coordinator in a temporary directory and a server on a runtime of its own.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use partywall::{Channel, Routes, Server};
use partywall_coordinator::{Coordinator, Policy};

const OPEN: &str = "[service.test]\nregister = ['anyone']\n[service.test.call]\nanyone = ['*']\n";

/// A coordinator that lets anyone do anything at the names given, gone with the value.
pub(crate) struct Host {
    pub(crate) socket: PathBuf,
    _coordinator: Coordinator,
    _dir: tempfile::TempDir,
}

impl Host {
    pub(crate) fn new(policy: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("coordinator.sock");
        let policy = Policy::parse("test", policy).unwrap();
        let coordinator = Coordinator::start(Some(&socket), policy).unwrap();
        Self { socket, _coordinator: coordinator, _dir: dir }
    }

    pub(crate) fn open() -> Self {
        Self::new(OPEN)
    }

    /// As [`Host::open`], at a path of the caller's choice.
    pub(crate) fn open_at(socket: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let policy = Policy::parse("test", OPEN).unwrap();
        let coordinator = Coordinator::start(Some(socket), policy).unwrap();
        Self { socket: socket.into(), _coordinator: coordinator, _dir: dir }
    }

    /// Serves in the background until the sender is dropped or used.
    pub(crate) async fn serve(&self, routes: Routes) -> Running {
        self.serve_at("test", routes).await
    }

    pub(crate) async fn serve_at(&self, at: &str, routes: Routes) -> Running {
        self.serve_by(Server::builder(), at, routes).await
    }

    pub(crate) async fn serve_by(&self, server: Server, at: &str, routes: Routes) -> Running {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let router = server.coordinator(&self.socket).add_routes(routes);
        let task = tokio::spawn(router.serve_with_shutdown(at, async {
            let _dropped = stopped.await;
        }));
        Running { stop: Some(stop), task }
    }

    pub(crate) async fn connect(&self) -> Channel {
        Channel::builder("partywall:///test")
            .unwrap()
            .coordinator(&self.socket)
            .wait_for_ready(true)
            .connect()
            .await
            .unwrap()
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
