//! The server over real sockets: a run that grows while it is read, and clients that should get nothing.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use taskd_analysis::document::Analysis;
use taskd_live::{EVERY_MIN, LiveLimits, LiveReport, LiveServer, ReadError, RunDirectory};
use taskd_runtime::job::{Incarnation, Rank};
use taskd_runtime::trace::recorder::{Detail, Event, Kind, NameId};
use taskd_runtime::trace::store::{StoreConfig, TraceStore};
use taskd_runtime::trace::{NameTable, Origin, RecordBatch, TimedRecord};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Bound of each wait of a test: far more than any of them takes.
const LIMIT: Duration = Duration::from_secs(20);

/// Adds one step of two ranks to a store, and waits until it is in the files.
fn step(store: &TraceStore, number: u64) {
    for rank in 0..2 {
        let origin = Origin { rank: Rank(rank), incarnation: Incarnation(1), pid: 70 + rank };
        let record = |unix_nanos, event, detail| TimedRecord {
            unix_nanos,
            thread: 1,
            kind: Kind::Step,
            event,
            name: NameId(0),
            detail,
        };
        let begun = 1_700_000_000_000_000_000 + number * 100_000_000;
        let records = vec![
            record(begun, Event::Begin { range: number }, Detail::Step { number, cpu_nanos: 0 }),
            record(begun + 90_000_000, Event::End { range: number }, Detail::None),
            record(begun + 95_000_000, Event::Begin { range: 1000 + number }, Detail::None),
        ];
        store.append(Arc::new(RecordBatch { origin, names: Arc::new(NameTable::default()), lost: 0, records }));
    }
    assert!(store.flush(LIMIT), "the records are on disk");
}

struct Response {
    status: u16,
    head: String,
    body: String,
}

/// Sends a request as it stands, and reads the response until the server closes the connection.
async fn send(address: SocketAddr, request: &str) -> io::Result<Response> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut bytes = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut bytes)).await??;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Ok(Response { status, head: head.to_lowercase(), body: body.to_owned() })
}

/// Returns the path of something below the token.
fn path(server: &LiveServer, name: &str) -> String {
    let url = server.url();
    let (_, path) = url.split_once(&server.address().to_string()).unwrap();
    format!("{path}{name}")
}

async fn get(server: &LiveServer, name: &str) -> Response {
    let (address, path) = (server.address(), path(server, name));
    send(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")).await.unwrap()
}

/// An open event stream.
struct Events(BufReader<TcpStream>);

impl Events {
    async fn open(server: &LiveServer, revision: u64) -> Events {
        let mut stream = BufReader::new(TcpStream::connect(server.address()).await.unwrap());
        let path = path(server, &format!("events?revision={revision}"));
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", server.address().port());
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            timeout(LIMIT, stream.read_line(&mut line)).await.unwrap().unwrap();
        }
        Events(stream)
    }

    /// Returns the next chunk: some events. `None` at the end of the stream.
    async fn chunk(&mut self) -> Option<String> {
        let mut line = String::new();
        timeout(LIMIT, self.0.read_line(&mut line)).await.unwrap().ok()?;
        let length = usize::from_str_radix(line.trim(), 16).ok().filter(|length| *length > 0)?;
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes).await.ok()?;
        bytes.truncate(length);
        Some(String::from_utf8(bytes).unwrap())
    }

    /// Returns the data of the next event of a name.
    async fn next(&mut self, name: &str) -> serde_json::Value {
        loop {
            let chunk = self.chunk().await.expect("the stream goes on");
            let data = chunk.split("\n\n").find_map(|event| event.split_once(&format!("event: {name}\ndata: ")));
            if let Some((_, data)) = data {
                return serde_json::from_str(data).unwrap();
            }
        }
    }
}

fn nothing() -> LiveReport {
    LiveReport::from_fn(|| Ok(Analysis::default()))
}

#[tokio::test]
async fn page_figures_and_events_follow_a_store_that_grows() {
    let root = tempfile::tempdir().unwrap();
    let store = TraceStore::open(StoreConfig::new(root.path(), "task")).unwrap();
    step(&store, 1);
    let run = RunDirectory::new("a run").with_store(root.path().join("task"));
    let server = LiveReport::new(run).every(EVERY_MIN).serve().await.unwrap();
    let page = get(&server, "").await;
    assert_eq!(page.status, 200);
    assert!(page.head.contains("; connect-src 'self'; frame-ancestors 'none'"), "{}", page.head);
    assert!(page.body.contains("id=\"live-status\">{\"revision\":1,"), "it has the figures of the first reading");
    let mut events = Events::open(&server, 1).await;
    assert_eq!(events.next("status").await["revision"], 1, "a page that has the figures receives the status alone");
    step(&store, 2);
    let changed = events.next("analysis").await;
    assert_eq!(changed["steps"], serde_json::json!([1, 2]));
    assert!(!changed["missing"].to_string().contains("no end"), "a step that has not ended is no missing part");
    assert_eq!(events.next("status").await["revision"], 2);
    let mut late = Events::open(&server, 1).await;
    assert_eq!(late.next("analysis").await["steps"], serde_json::json!([1, 2]), "an older page receives them at once");
    let document = get(&server, "document.json").await;
    let document: Analysis = serde_json::from_str(&document.body).unwrap();
    assert_eq!((document.title, document.ranks.len(), document.steps), ("a run".to_owned(), 2, vec![1, 2]));
    let image = get(&server, "steps.svg").await;
    assert!(
        image.status == 200 && image.head.contains("image/svg+xml") && image.body.contains("<svg"),
        "{}",
        image.head
    );
    assert_eq!(server.status().pages, 2);
}

#[tokio::test]
async fn request_that_shows_no_token_or_names_another_host_learns_nothing() {
    let server = nothing().serve().await.unwrap();
    let (address, here) = (server.address(), path(&server, ""));
    let own = format!("Host: {address}\r\nConnection: close\r\n");
    let other_token = format!("/{}/", "0".repeat(40));
    let rebound = format!("Host: evil.example:{}\r\nConnection: close\r\n", address.port());
    let two_hosts = format!("{own}Host: evil.example\r\n");
    let foreign = format!("{own}Origin: http://evil.example\r\n");
    let same = format!("{own}Origin: http://{address}\r\n");
    for (line, headers, status) in [
        (format!("GET {here}"), &own, 200),
        (format!("HEAD {here}events"), &same, 200),
        ("GET /".to_owned(), &own, 404),
        (format!("GET {other_token}"), &own, 404),
        (format!("GET {}", here.trim_end_matches('/')), &own, 404),
        (format!("GET {here}nothing"), &own, 404),
        (format!("GET {here}nothing.svg"), &own, 404),
        (format!("POST {other_token}"), &own, 404),
        (format!("POST {here}"), &own, 405),
        (format!("OPTIONS {here}"), &own, 405),
        (format!("GET {here}"), &rebound, 421),
        (format!("GET {here}"), &two_hosts, 421),
        (format!("GET {here}document.json"), &foreign, 403),
    ] {
        let response = send(address, &format!("{line} HTTP/1.1\r\n{headers}\r\n")).await.unwrap();
        assert_eq!(response.status, status, "{line} {headers}");
        assert!(status == 200 || response.body.is_empty(), "{line}: {}", response.body);
        for header in [
            "cache-control: no-store",
            "referrer-policy: no-referrer",
            "x-content-type-options: nosniff",
            "content-security-policy: default-src 'none'",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(response.head.contains(header), "{line}: {}", response.head);
        }
        assert!(!response.head.contains("access-control"), "{}", response.head);
    }
    let refused = server.status().refused;
    let count = |name| refused[name];
    assert_eq!(
        (count("unknown_addresses"), count("foreign_hosts"), count("foreign_origins")),
        (6, 2, 1),
        "{refused:?}"
    );
    assert_eq!(count("other_methods"), 2);
    assert!(!format!("{server:?}").contains(here.trim_matches('/')), "Debug does not show the token");
}

#[tokio::test]
async fn only_loopback_addresses_are_served() {
    let error = nothing().with_address([0, 0, 0, 0].into()).serve().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("0.0.0.0 is not 127.0.0.1 or ::1"), "{error}");
    assert!(nothing().serve().await.unwrap().address().ip().is_loopback());
}

#[tokio::test]
async fn silent_and_oversized_requests_hold_no_place() {
    let limits = LiveLimits { connections_max: 2, head_within: Duration::from_millis(300), ..LiveLimits::default() };
    let server = nothing().with_limits(limits).serve().await.unwrap();
    // A connection that sends nothing, and one that never finishes its head, are closed at the time limit.
    let mut silent = TcpStream::connect(server.address()).await.unwrap();
    let mut slow = TcpStream::connect(server.address()).await.unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nHost: ").await.unwrap();
    for stream in [&mut silent, &mut slow] {
        let mut rest = Vec::new();
        let _ = timeout(LIMIT, stream.read_to_end(&mut rest)).await.expect("it is closed");
    }
    let long = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(20 << 10));
    let refused = send(server.address(), &long).await;
    assert!(refused.is_err() || refused.is_ok_and(|response| response.status == 431), "a long head is refused");
    let refused = server.status().refused;
    assert_eq!((refused["slow_heads"], refused["bad_heads"]), (2, 1), "{refused:?}");
}

#[tokio::test]
async fn connection_that_shows_nothing_makes_room_for_the_operator() {
    let limits = LiveLimits { connections_max: 2, streams_max: 1, head_within: LIMIT, ..LiveLimits::default() };
    let server = nothing().with_limits(limits).serve().await.unwrap();
    let mut silent = TcpStream::connect(server.address()).await.unwrap();
    let mut events = Events::open(&server, 0).await;
    events.next("status").await;
    let second = get(&server, "events").await;
    assert_eq!((second.status, &*second.body), (503, ""), "one page receives events");
    assert_eq!(silent.read(&mut [0; 8]).await.unwrap(), 0, "the silent one was closed for it");
    let refused = server.status().refused;
    assert_eq!((refused["connections_beyond_the_limit"], refused["streams_beyond_the_limit"]), (1, 1), "{refused:?}");
}

#[tokio::test]
async fn page_that_reads_nothing_loses_its_place() {
    let limits = LiveLimits { unread_within: Duration::from_millis(300), ..LiveLimits::default() };
    let large = "x".repeat(12 << 20); // more than the sockets buffer
    let source = move || Ok::<_, ReadError>(Analysis { title: large.clone(), ..Analysis::default() });
    let server = LiveReport::from_fn(source).with_limits(limits).serve().await.unwrap();
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let path = path(&server, "events");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", server.address());
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut look, mut was_open) = (tokio::time::interval(Duration::from_millis(20)), false);
    let closed = async {
        while !was_open || server.status().pages > 0 {
            was_open |= server.status().pages > 0;
            look.tick().await;
        }
    };
    timeout(LIMIT, closed).await.expect("its place is free");
    drop(stream);
}

#[tokio::test]
async fn reading_that_fails_keeps_the_figures_and_shows_error_and_age() {
    let readings = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&readings);
    let source = move || match count.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(Analysis { title: "first".into(), ..Analysis::default() }),
        1 => Err("the disk is gone".into()),
        _ => Ok(Analysis { title: "third".into(), ..Analysis::default() }),
    };
    let server = LiveReport::from_fn(source).every(EVERY_MIN).serve().await.unwrap();
    let mut events = Events::open(&server, 0).await;
    assert_eq!(events.next("analysis").await["title"], "first");
    let mut failed = events.next("status").await;
    while failed["error"].is_null() {
        failed = events.next("status").await;
    }
    assert_eq!((failed["error"].as_str(), failed["revision"].as_u64()), (Some("the disk is gone"), Some(1)));
    assert!(failed["age_ms"].as_u64() >= Some(400), "{failed}");
    assert_eq!(events.next("analysis").await["title"], "third");
    assert!(events.next("status").await["error"].is_null());
}

#[tokio::test]
async fn end_of_the_run_is_shown_and_shutdown_ends_all_connections() {
    let server = nothing().serve().await.unwrap();
    let mut events = Events::open(&server, 0).await;
    assert_eq!(events.next("status").await["has_ended"], false);
    let _silent = TcpStream::connect(server.address()).await.unwrap();
    server.end().await;
    while events.next("status").await["has_ended"] == false {}
    let before = server.status().readings;
    assert_eq!(get(&server, "").await.status, 200, "it is served from memory");
    assert_eq!(server.status().readings, before, "a run that has ended is not read again");
    let address = server.address();
    timeout(LIMIT, server.shutdown()).await.expect("it ends although connections are open");
    assert_eq!(events.chunk().await, None);
    assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
}

#[tokio::test]
async fn dropped_server_closes_its_port() {
    let server = nothing().serve().await.unwrap();
    let mut events = Events::open(&server, 0).await;
    events.next("status").await;
    drop(server);
    while events.chunk().await.is_some() {}
}
