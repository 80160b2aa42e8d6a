//! What the server answers: the page, its events, all figures as JSON, single views as SVG.

use crate::access::{Token, is_own_host, is_own_origin};
use crate::events::{first_reading, follow};
use crate::limits::{Counts, LiveLimits, Refusal};
use crate::reading::{Board, Figures, State as Reading};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taskd_analysis::document::Analysis;
use taskd_analysis::report::{self, LiveStatus, View};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Time for which the first request waits for the first reading; after it the page comes without figures.
const FIRST_WITHIN: Duration = Duration::from_secs(5);
/// Policy of responses that are no page: they are shown, and load nothing. The images have styles of their own.
const PLAIN_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox";

/// Everything that answers need.
pub(crate) struct Served {
    pub(crate) board: Arc<Board>,
    pub(crate) counts: Counts,
    pub(crate) limits: LiveLimits,
    pub(crate) closing: CancellationToken,
    pub(crate) token: Token,
    pub(crate) port: u16,
    /// Policy of the page.
    pub(crate) policy: HeaderValue,
    /// Admits one rendering at a time.
    pub(crate) rendering: Semaphore,
}

impl Served {
    /// Returns the status of a reading, with the refusals so far.
    pub(crate) fn status_of(&self, reading: &Reading) -> LiveStatus {
        LiveStatus { refused: self.counts.all(), pages: *self.board.streams.borrow(), ..reading.status() }
    }

    /// Asks for another reading, waits for the first one, and returns the newest state.
    async fn newest(&self) -> Reading {
        self.board.requested.notify_one();
        first_reading(&self.board, FIRST_WITHIN).await;
        self.board.state.borrow().clone()
    }

    fn refuse(&self, refusal: Refusal, status: StatusCode) -> Response {
        self.counts.add(refusal);
        status.into_response()
    }
}

/// True once a connection has sent a request with the token.
#[derive(Clone, Debug, Default)]
pub(crate) struct HasShown(pub(crate) Arc<AtomicBool>);

pub(crate) fn router(served: &Arc<Served>) -> Router {
    Router::new()
        .route("/{token}/", get(page))
        .route("/{token}/events", get(events))
        .route("/{token}/document.json", get(document))
        .route("/{token}/status.json", get(status))
        .route("/{token}/{view}", get(view))
        .fallback(
            |State(served): State<Arc<Served>>| async move { served.refuse(Refusal::Address, StatusCode::NOT_FOUND) },
        )
        .layer(from_fn_with_state(Arc::clone(served), admit))
        .with_state(Arc::clone(served))
}

/// Checks a request before anything reads it, and gives every response the same headers.
async fn admit(State(served): State<Arc<Served>>, request: Request, next: Next) -> Response {
    let mut response = match check(&served, &request) {
        Ok(()) => next.run(request).await,
        Err((refusal, status)) => served.refuse(refusal, status),
    };
    let headers = response.headers_mut();
    let fixed = [
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(PLAIN_POLICY));
    response
}

fn check(served: &Served, request: &Request) -> Result<(), (Refusal, StatusCode)> {
    let is_own = |name, is_own: fn(&str, u16) -> bool| {
        let mut values = request.headers().get_all(name).iter();
        let first = values.next().map(|value| value.to_str().is_ok_and(|text| is_own(text, served.port)));
        if values.next().is_some() { Some(false) } else { first }
    };
    if is_own(HOST, is_own_host) != Some(true) {
        return Err((Refusal::Host, StatusCode::MISDIRECTED_REQUEST));
    }
    if is_own(ORIGIN, is_own_origin) == Some(false) {
        return Err((Refusal::Origin, StatusCode::FORBIDDEN));
    }
    if !served.token.begins(request.uri().path()) {
        return Err((Refusal::Address, StatusCode::NOT_FOUND));
    }
    if let Some(HasShown(has_shown)) = request.extensions().get() {
        has_shown.store(true, Ordering::Relaxed);
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err((Refusal::Method, StatusCode::METHOD_NOT_ALLOWED));
    }
    Ok(())
}

async fn page(State(served): State<Arc<Served>>) -> Response {
    let reading = served.newest().await;
    let status = served.status_of(&reading);
    let page = render(&served, move || match &reading.figures {
        Some(figures) => report::live_html(&figures.analysis, &status),
        None => report::live_html(&Analysis::default(), &status),
    });
    match page.await {
        Some(page) => {
            let kind = HeaderValue::from_static("text/html; charset=utf-8");
            ([(CONTENT_TYPE, kind), (CONTENT_SECURITY_POLICY, served.policy.clone())], page).into_response()
        }
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn events(State(served): State<Arc<Served>>, request: Request) -> Response {
    let query = request.uri().query().and_then(|query| query.strip_prefix("revision="));
    let header = |headers: &HeaderMap| headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok());
    let shown = header(request.headers()).or_else(|| query?.parse().ok()).unwrap_or(0);
    match follow(&served, shown) {
        Some(events) => ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response(),
        None => served.refuse(Refusal::Streams, StatusCode::SERVICE_UNAVAILABLE),
    }
}

async fn document(State(served): State<Arc<Served>>) -> Response {
    let reading = served.newest().await;
    rendered(&served, reading.figures, "application/json", |figures| report::json(&figures.analysis)).await
}

async fn status(State(served): State<Arc<Served>>) -> Response {
    let reading = served.board.state.borrow().clone();
    let status = serde_json::to_string(&served.status_of(&reading)).unwrap_or_default();
    ([(CONTENT_TYPE, "application/json")], status).into_response()
}

async fn view(State(served): State<Arc<Served>>, Path((_, name)): Path<(String, String)>) -> Response {
    let view = name.strip_suffix(".svg").and_then(|name| View::ALL.into_iter().find(|(_, known)| *known == name));
    let Some((view, _)) = view else { return served.refuse(Refusal::Address, StatusCode::NOT_FOUND) };
    let reading = served.newest().await;
    rendered(&served, reading.figures, "image/svg+xml", move |figures| report::svg(&figures.analysis, view)).await
}

/// Returns a response with a form of the figures; without figures, status 503.
async fn rendered(
    served: &Served,
    figures: Option<Arc<Figures>>,
    kind: &'static str,
    form: impl FnOnce(&Figures) -> String + Send + 'static,
) -> Response {
    let Some(figures) = figures else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    match render(served, move || form(&figures)).await {
        Some(text) => ([(CONTENT_TYPE, kind)], text).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Renders off the async threads, one response at a time: pages of large runs have many megabytes.
async fn render(served: &Served, form: impl FnOnce() -> String + Send + 'static) -> Option<String> {
    let _turn = served.rendering.acquire().await.ok()?;
    tokio::task::spawn_blocking(form).await.ok()
}
