//! The viewer: a page on the loopback interface that shows what the processor sees.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use clap::Args;
use tokio::net::TcpListener;
use tonic::Status;

use crate::processor_client::ProcessorClient;
use crate::{Error, NextRequest, View, Way, picture};

const PAGE: &str = include_str!("page.html");

/// What is shown for what is not known yet.
const NONE: &str = "–";

#[derive(Debug, Args)]
pub struct Options {
    /// The processor's name
    #[arg(long, default_value = "partywall:///processor")]
    of: String,
    /// The port of the page on the loopback interface; 0 for any that is free
    #[arg(long, default_value_t = 8460)]
    port: u16,
}

/// Serves the page until Ctrl-C.
///
/// # Errors
/// The port cannot be had, or the processor's name is none.
pub async fn run(options: Options) -> Result<(), Error> {
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, options.port));
    let listener = TcpListener::bind(at).await;
    let listener = listener
        .map_err(|error| format!("cannot listen at {at}: {error}; remedy: another `--port`, which PORT sets in compose.yaml"))?;
    println!("http://{}/", listener.local_addr()?);
    let shown = Shown::default();
    let router = Router::new()
        .route("/", get(page))
        .route("/figures", get(figures))
        .route("/picture/{way}", get(show))
        .with_state(shown.clone());
    tokio::select! {
        served = axum::serve(listener, router) => Ok(served?),
        watched = watch(&options.of, &shown) => watched,
        stopped = crate::stopped() => Ok(stopped?),
    }
}

/// The last view of each way, and why there are no more.
#[derive(Clone, Default)]
struct Shown(Arc<Mutex<Last>>);

#[derive(Default)]
struct Last {
    views: [Option<View>; 2],
    now: Option<Way>,
    fault: Option<Status>,
}

impl Shown {
    fn with<T>(&self, act: impl FnOnce(&mut Last) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Asks for view after view. What fails is shown, and asked again a second later.
async fn watch(of: &str, shown: &Shown) -> Result<(), Error> {
    let channel = partywall::Endpoint::new(of)?.wait_for_ready(true).connect_lazy();
    let mut client = ProcessorClient::new(channel);
    let mut after = 0;
    loop {
        match client.next(NextRequest { after }).await {
            Ok(view) => {
                let view = view.into_inner();
                after = view.number;
                let whole = picture::SMALL_WIDTH * picture::SMALL_HEIGHT * 3;
                let Some(way) =
                    Way::try_from(view.way).ok().filter(|_| view.picture.len() == whole)
                else {
                    continue;
                };
                shown.with(|last| {
                    last.views[way as usize] = Some(view);
                    (last.now, last.fault) = (Some(way), None);
                });
            }
            Err(status) => {
                shown.with(|last| (last.now, last.fault) = (None, Some(status)));
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// The page with what is known now; its script asks for the same values again.
async fn page(State(shown): State<Shown>) -> impl IntoResponse {
    let mut page = PAGE.to_owned();
    for (name, value) in shown.with(|last| values(last)) {
        page = page.replace(&format!("{{{name}}}"), &escaped(&value));
    }
    let policy = "default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; \
                  script-src 'unsafe-inline'; connect-src 'self'";
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(page))
}

async fn figures(State(shown): State<Shown>) -> impl IntoResponse {
    let values = serde_json::to_string(&shown.with(|last| values(last)));
    let values = values.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR);
    ([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], values)
}

async fn show(State(shown): State<Shown>, Path(way): Path<String>) -> impl IntoResponse {
    let way = [Way::Parcel, Way::Message].into_iter().find(|one| name(*one) == way);
    let way = way.ok_or(StatusCode::NOT_FOUND)?;
    let view = shown.with(|last| last.views[way as usize].clone());
    let view = view.unwrap_or_else(|| View {
        picture: vec![128; picture::SMALL_WIDTH * picture::SMALL_HEIGHT * 3].into(),
        ..View::default()
    });
    let head = [(header::CONTENT_TYPE, "image/bmp"), (header::CACHE_CONTROL, "no-store")];
    Ok::<_, StatusCode>((head, picture::bmp(&view.picture, view.motion.as_ref())))
}

fn name(way: Way) -> &'static str {
    match way {
        Way::Parcel => "parcel",
        Way::Message => "message",
    }
}

/// Texts of the page, by the ids of their elements.
fn values(last: &Last) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    let fault = last.fault.as_ref();
    let fault = fault.map(|status| format!("No view: {}", status.message())).unwrap_or_default();
    values.insert("fault".to_owned(), fault);
    for way in [Way::Parcel, Way::Message] {
        let view = last.views[way as usize].as_ref();
        let figures = view.and_then(|view| view.figures).filter(|figures| figures.processed > 0.0);
        let figure = |text: &dyn Fn(crate::Figures) -> String| figures.map_or(NONE.into(), text);
        let copies = way.copies();
        let motion = |view: &View| match &view.motion {
            Some(area) => {
                format!("{} × {} at {}, {}", area.width, area.height, area.left, area.top)
            }
            None => "none".to_owned(),
        };
        let texts = [
            ("turn", if last.now == Some(way) { "now".to_owned() } else { String::new() }),
            ("frame", view.map_or(NONE.into(), |view| view.frame.to_string())),
            ("rate", figure(&|figures| format!("{:.1}", figures.processed))),
            ("dropped", figure(&|figures| format!("{:.1}", figures.dropped))),
            ("copies", copies.len().to_string()),
            ("copied", format!("{:.1} MB", (copies.len() * picture::BYTES) as f64 / 1e6)),
            (
                "where",
                match copies {
                    [] => "read where the camera has written it".to_owned(),
                    copies => copies.join("; "),
                },
            ),
            ("camera", figure(&|figures| format!("{:.0} %", figures.camera_cpu))),
            ("processor", figure(&|figures| format!("{:.0} %", figures.processor_cpu))),
            ("time", figure(&|figures| format!("{:.1} ms", figures.round_trip_ms))),
            ("motion", view.map_or(NONE.into(), motion)),
            (
                "brightness",
                view.map_or(NONE.into(), |view| format!("{:.0} of 255", view.brightness)),
            ),
        ];
        values.extend(texts.map(|(key, text)| (format!("{}-{key}", name(way)), text)));
    }
    values
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
