//! A page that shows functions live, and what it is made of.
//!
//! | path | what |
//! | --- | --- |
//! | `/` | the page, which asks for the next one each second |
//! | `/functions.json` | [`Shown`]: each function with its counts, and the same by owners |
//!
//! Whoever can connect sees all names, owners and counts, and can change nothing. The page loads nothing from
//! elsewhere.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use partywall::Bound;
use partywall_functions::dispatcher::Times;
use serde::Serialize;

use crate::host::{Host, Listed};
use crate::http::{bind_routes, no_guess};

const PAGE: &str = include_str!("page.html");
/// No script but the page's own.
const SOURCES: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'";
const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");

/// Listens for who wants to see the page of a host; [`Bound::serve`] shows it.
///
/// # Errors
/// The kernel's.
pub async fn bind(host: Arc<Host>, address: SocketAddr) -> Result<Bound, partywall::Error> {
    let content = |kind: &'static str, text: &'static str| {
        get(move || async move { ([(CONTENT_TYPE, kind)], text) })
    };
    let page = get(|| async {
        let policy = HeaderValue::from_static(SOURCES);
        ([(CONTENT_SECURITY_POLICY, policy)], axum::response::Html(PAGE))
    });
    let routes = Router::new()
        .route("/", page)
        .route("/page.js", content("text/javascript; charset=utf-8", SCRIPT))
        .route("/page.css", content("text/css; charset=utf-8", STYLE))
        .route("/functions.json", get(functions))
        .with_state(host)
        .layer(map_response(no_guess));
    bind_routes(routes, address).await
}

async fn functions(State(host): State<Arc<Host>>) -> Response {
    let listed = tokio::task::spawn_blocking(move || host.list()).await;
    match listed {
        Ok(Ok(listed)) => ([(CACHE_CONTROL, "no-store")], Json(shown(listed))).into_response(),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "the function host ends\n").into_response(),
    }
}

/// What is shown.
#[derive(Debug, Serialize)]
pub struct Shown {
    /// By their names.
    pub functions: Vec<OfFunction>,
    /// By their names.
    pub owners: Vec<OfOwner>,
}

/// A function.
#[derive(Debug, Serialize)]
pub struct OfFunction {
    /// Its name.
    pub name: String,
    /// The version that is called.
    pub version: u32,
    /// Whose it is.
    pub owner: String,
    /// Whose functions it may meet in one worker.
    pub share: &'static str,
    /// `banned`, `loaded` or `cold`.
    pub state: &'static str,
    /// Its strikes.
    pub strikes: u32,
    /// What has come of its calls.
    #[serde(flatten)]
    pub counts: Counts,
    /// The time from admission to end of half of its calls, in nanoseconds; 0 before the first.
    pub p50_ns: u64,
    /// The same of 99 of 100.
    pub p99_ns: u64,
}

/// An owner.
#[derive(Debug, Default, Serialize)]
pub struct OfOwner {
    /// Its name.
    pub name: String,
    /// How many functions it has.
    pub functions: u64,
    /// The bytes of their images, of all versions.
    pub image_bytes: u64,
    /// What has come of their calls.
    #[serde(flatten)]
    pub counts: Counts,
    /// The time from admission to end of half of all their calls, in nanoseconds; 0 before the first.
    pub p50_ns: u64,
    /// The same of 99 of 100.
    pub p99_ns: u64,
}

/// Counts of calls since the host has started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Calls that have ended.
    pub calls: u64,
    /// Those that ended with the function's own error.
    pub errors: u64,
    /// Those that ended by what the function did wrong.
    pub failures: u64,
    /// Those that were stopped for their budget.
    pub overruns: u64,
    /// Those that were not taken.
    pub refused: u64,
    /// How often an image was loaded for a call.
    pub cold: u64,
    /// The CPU time of all of them, in microseconds.
    pub cpu_us: u64,
}

impl Counts {
    fn of(listed: &Listed) -> Self {
        let Some(report) = &listed.report else { return Self::default() };
        let counts = &report.counts;
        Self {
            calls: counts.calls,
            errors: counts.errors,
            failures: counts.failures,
            overruns: counts.overruns,
            refused: counts.refused,
            cold: counts.cold,
            cpu_us: counts.cpu_ns / 1000,
        }
    }

    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.errors += other.errors;
        self.failures += other.failures;
        self.overruns += other.overruns;
        self.refused += other.refused;
        self.cold += other.cold;
        self.cpu_us += other.cpu_us;
    }
}

/// What is shown of these functions.
pub fn shown(listed: Vec<Listed>) -> Shown {
    let mut owners = BTreeMap::<_, (OfOwner, Times)>::new();
    let functions = listed.into_iter().map(|one| {
        let (counts, record) = (Counts::of(&one), &one.record);
        let (owner, times) = owners.entry(record.owner.clone()).or_default();
        owner.functions += 1;
        owner.image_bytes += record.image_bytes();
        owner.counts.add(counts);
        let report = one.report.as_ref();
        report.into_iter().for_each(|report| times.add(&report.counts));
        let quantile = |part| report.and_then(|report| report.counts.quantile(part));
        OfFunction {
            version: record.current,
            owner: record.owner.clone(),
            share: one.share,
            state: match report {
                _ if record.is_banned => "banned",
                Some(report) if report.is_banned => "banned",
                Some(report) if report.is_loaded => "loaded",
                _ => "cold",
            },
            strikes: report.map_or(0, |report| report.strikes),
            counts,
            p50_ns: nanoseconds(quantile(0.5)),
            p99_ns: nanoseconds(quantile(0.99)),
            name: one.name,
        }
    });
    let functions = functions.collect();
    let owners = owners.into_iter().map(|(name, (owner, times))| OfOwner {
        name,
        p50_ns: nanoseconds(times.quantile(0.5)),
        p99_ns: nanoseconds(times.quantile(0.99)),
        ..owner
    });
    Shown { functions, owners: owners.collect() }
}

fn nanoseconds(time: Option<Duration>) -> u64 {
    time.map_or(0, |time| time.as_nanos() as u64)
}
