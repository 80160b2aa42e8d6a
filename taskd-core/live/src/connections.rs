//! Accepts connections within their bounds, and passes their requests to the routes.

use crate::limits::{HEAD_BYTES_MIN, HEADERS_MAX, Refusal};
use crate::routes::{HasShown, Served, router};
use axum::Extension;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Pause after a connection could not be accepted, for example because no descriptor was free.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Open connections by their numbers, in the order in which they came.
type Open = Arc<Mutex<BTreeMap<u64, (CancellationToken, HasShown)>>>;

/// Serves until the server closes. All connections end with it.
pub(crate) async fn serve(listener: TcpListener, served: Arc<Served>) {
    let open = Open::default();
    let mut tasks = JoinSet::new();
    let mut number = 0;
    loop {
        tokio::select! {
            () = served.closing.cancelled() => break,
            Some(_) = tasks.join_next() => (),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    number += 1;
                    if let Some(entry) = Entry::new(&open, number, &served) {
                        tasks.spawn(connection(stream, entry, Arc::clone(&served)));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection to the live report was not accepted");
                    tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                }
            },
        }
    }
    tasks.shutdown().await;
}

/// The place of a connection among the open ones.
struct Entry {
    open: Open,
    number: u64,
    evicted: CancellationToken,
    has_shown: HasShown,
}

impl Entry {
    /// Takes a place. If all are taken, the oldest connection that has not shown the token loses its place; `None` if
    /// there is none.
    fn new(open: &Open, number: u64, served: &Served) -> Option<Entry> {
        let (evicted, has_shown) = (served.closing.child_token(), HasShown::default());
        let mut all = open.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= served.limits.connections_max {
            served.counts.add(Refusal::Connections);
            let silent = all.iter().find(|(_, (_, has_shown))| !has_shown.0.load(Ordering::Relaxed));
            let silent = silent.map(|(number, _)| *number)?;
            if let Some((evicted, _)) = all.remove(&silent) {
                evicted.cancel();
            }
        }
        all.insert(number, (evicted.clone(), has_shown.clone()));
        Some(Entry { open: Arc::clone(open), number, evicted, has_shown })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

async fn connection(stream: TcpStream, entry: Entry, served: Arc<Served>) {
    let unread_within = u32::try_from(served.limits.unread_within.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, unread_within); // error: the peer is gone
    let _ = stream.set_nodelay(true); // the same
    let routes = TowerToHyperService::new(router(&served).layer(Extension(entry.has_shown.clone())));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(served.limits.head_within)
        .max_buf_size(served.limits.head_bytes_max.max(HEAD_BYTES_MIN))
        .max_headers(HEADERS_MAX);
    let connection = pin!(http.serve_connection(TokioIo::new(stream), routes));
    let ended = tokio::select! {
        ended = connection => ended,
        () = entry.evicted.cancelled() => return,
    };
    match ended {
        // A page that keeps its connection for a next request is not slow.
        Err(error) if error.is_timeout() && !entry.has_shown.0.load(Ordering::Relaxed) => {
            served.counts.add(Refusal::SlowHead);
        }
        Err(error) if error.is_parse() => served.counts.add(Refusal::BadHead),
        _ => (),
    }
}
