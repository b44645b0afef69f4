//! Routes of each kind to one service, and what is heard of the calls on them.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use partywall::{Channel, Endpoint, Server};
use partywall_interop::service::{Handle, test_service_with};
use partywall_testkit::Host;
use tonic::metadata::MetadataMap;
use tower::ServiceExt;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// The fields of a span or an event.
pub(crate) type Fields = BTreeMap<&'static str, String>;

/// A span, with the events in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Span {
    pub(crate) parent: Option<u64>,
    pub(crate) fields: Fields,
    pub(crate) events: Vec<Fields>,
    pub(crate) is_closed: bool,
}

/// All spans since the begin of the process. Their numbers are used again when they are closed.
#[derive(Default)]
struct Heard {
    all: Vec<Span>,
    open: HashMap<u64, usize>,
}

static HEARD: LazyLock<Mutex<Heard>> = LazyLock::new(Mutex::default);

struct Listener;

struct Collect<'a>(&'a mut Fields);

impl Visit for Collect<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for Listener {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut span = Span::default();
        attributes.record(&mut Collect(&mut span.fields));
        let mut heard = HEARD.lock().unwrap();
        let parent = context.span(id).and_then(|span| span.parent().map(|p| p.id().into_u64()));
        span.parent = parent.and_then(|parent| heard.open.get(&parent).map(|at| *at as u64));
        let at = heard.all.len();
        heard.all.push(span);
        heard.open.insert(id.into_u64(), at);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _context: Context<'_, S>) {
        let mut heard = HEARD.lock().unwrap();
        let at = heard.open[&id.into_u64()];
        values.record(&mut Collect(&mut heard.all[at].fields));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let Some(span) = context.event_span(event) else { return };
        let mut fields = Fields::new();
        event.record(&mut Collect(&mut fields));
        let mut heard = HEARD.lock().unwrap();
        let at = heard.open[&span.id().into_u64()];
        heard.all[at].events.push(fields);
    }

    fn on_close(&self, id: Id, _context: Context<'_, S>) {
        let mut heard = HEARD.lock().unwrap();
        let at = heard.open.remove(&id.into_u64()).unwrap();
        heard.all[at].is_closed = true;
    }
}

static RECORDER: LazyLock<PrometheusHandle> = LazyLock::new(|| {
    tracing_subscriber::registry().with(Listener).init();
    let recorder = PrometheusBuilder::new().install_recorder().unwrap();
    partywall::record_metrics();
    recorder
});

/// Has what follows heard.
pub(crate) fn listen() {
    LazyLock::force(&RECORDER);
}

/// The spans of calls on a link or, without a number, of a method that only one test calls.
pub(crate) fn spans(of: impl Fn(&Fields) -> bool) -> Vec<Span> {
    let heard = HEARD.lock().unwrap();
    heard.all.iter().filter(|span| of(&span.fields)).cloned().collect()
}

/// The span with this number among all.
pub(crate) fn span(number: u64) -> Span {
    HEARD.lock().unwrap().all[number as usize].clone()
}

/// The sum of a metric's values whose labels have all of these.
pub(crate) fn metric(name: &str, labels: &[(&str, &str)]) -> f64 {
    let text = RECORDER.render();
    let begin = format!("{name}{{");
    let with: Vec<_> = labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
    let lines = text.lines().filter(|line| line.starts_with(&begin));
    let lines = lines.filter(|line| with.iter().all(|label| line.contains(label)));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

/// Waits until it is so, which another task or thread sees to.
pub(crate) async fn eventually(is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(10), "never so:\n{}", RECORDER.render());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The values of a label of a metric.
pub(crate) fn values(name: &str, label: &str) -> Vec<String> {
    let text = RECORDER.render();
    let begin = format!("{name}{{");
    let label = format!("{label}=\"");
    let lines = text.lines().filter(|line| line.starts_with(&begin));
    let values = lines.filter_map(|line| Some(line.split_once(&label)?.1.split_once('"')?.0));
    values.map(str::to_owned).collect()
}

/// A service at a name and at a path for HTTP/2, one at a time, which keeps the metadata of what comes.
pub(crate) struct Served {
    pub(crate) host: Host,
    pub(crate) url: String,
    pub(crate) came: Arc<Mutex<Vec<MetadataMap>>>,
    _alone: tokio::sync::OwnedMutexGuard<()>,
}

impl Served {
    pub(crate) async fn new(policy: &str) -> Self {
        static ONE: LazyLock<Arc<tokio::sync::Mutex<()>>> = LazyLock::new(Arc::default);
        let alone = Arc::clone(&ONE).lock_owned().await;
        listen();
        // The runtime of the test before ends its links.
        eventually(|| metric("partywall_links", &[]) == 0.0).await;
        let host = Host::with(policy);
        let url = format!("unix:{}", host.socket.with_file_name("h2.sock").display());
        let came = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&came);
        let layer = tower::layer::layer_fn(move |inner: partywall::Routes| {
            let keep = Arc::clone(&keep);
            let inner = inner.map_request(move |request: http::Request<tonic::body::Body>| {
                let metadata = MetadataMap::from_headers(request.headers().clone());
                keep.lock().unwrap().push(metadata);
                tracing::info!(step = "before");
                request
            });
            inner.map_response(|response| {
                tracing::info!(step = "after");
                response
            })
        });
        let server = Server::builder().coordinator(&host.socket).layer(layer);
        let router = { server }.add_service(test_service_with(Handle::default()));
        let bound = router.bind(format!("test,{url}")).await.unwrap();
        tokio::spawn(bound.serve().into_future());
        Self { host, url, came, _alone: alone }
    }

    /// The name, by this coordinator.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::from_static("partywall:///test").coordinator(&self.host.socket)
    }

    /// A channel over a ring.
    pub(crate) async fn ring(&self) -> Channel {
        self.endpoint().connect().await.unwrap()
    }

    /// A channel over HTTP/2.
    pub(crate) async fn http2(&self) -> Channel {
        Channel::connect(&self.url).await.unwrap()
    }
}
