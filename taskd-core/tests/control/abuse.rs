//! Floods of requests, many or silent clients, and clients that do not read: all are bounded and counted, and the
//! runtime continues.

use crate::support::*;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use taskd_core::job::{ProcId, Rank};
use taskd_core::runtime::EVENTS_KEPT;
use taskd_core::runtime::control::SocketLimits;
use tokio::io::AsyncWriteExt;
use tokio::sync::broadcast::error::RecvError;

fn limits(adjust: impl FnOnce(&mut SocketLimits)) -> SocketLimits {
    let mut limits = SocketLimits::default();
    adjust(&mut limits);
    limits
}

#[tokio::test]
async fn a_flood_of_faults_is_refused_and_a_real_death_is_recovered() {
    let limits = limits(|l| {
        l.faults_per_s_max = 5;
        l.requests_per_s_max = 100_000;
    });
    let served = Served::with(limits, |builder| builder).await;
    served.handle.pause("so that only the flood counts").await.unwrap();
    let flood = |mut client: Client| async move {
        let (mut taken, mut busy) = (0, 0);
        for n in 0..500 {
            let fault = json!({"by": format!("f{n}"), "class": format!("c{n}"), "rank": 1, "confidence": 0.2});
            let answer = client.ask(json!({"do": "report_fault", "fault": fault})).await;
            match answer["error"]["kind"].as_str() {
                None => taken += 1,
                Some(kind) => {
                    assert_eq!(kind, "busy", "{answer}");
                    busy += 1;
                }
            }
        }
        (taken, busy)
    };
    let began = std::time::Instant::now();
    let (a, b) = tokio::join!(flood(served.client().await), flood(served.client().await));
    let seconds = began.elapsed().as_secs() + 1;
    let (taken, busy) = (a.0 + b.0, a.1 + b.1);
    assert_eq!(taken + busy, 1000);
    assert!(taken >= 5 && taken <= 5 * (seconds + 1), "{taken} in {seconds} s");
    let counts = served.socket.counts();
    assert_eq!((counts.faults, counts.faults_turned_away), (taken, busy));
    served.handle.resume("enough").await.unwrap();
    served.launcher.kill(&ProcId::rank(2, 1));
    served.all_run(2).await;
}

#[tokio::test]
async fn requests_beyond_the_rate_wait_and_all_are_answered() {
    let served = Served::with(limits(|l| l.requests_per_s_max = 50), |builder| builder).await;
    let mut client = served.client().await;
    let began = std::time::Instant::now();
    for _ in 0..75 {
        client.ok(json!({"do": "status"})).await;
    }
    assert!(began.elapsed() >= Duration::from_millis(450), "{:?}", began.elapsed());
    assert!(served.socket.counts().waits > 0);
}

#[tokio::test]
async fn a_connection_beyond_the_maximum_is_refused_until_one_closes() {
    let served = Served::with(limits(|l| l.connections_max = 3), |builder| builder).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = served.client().await;
        client.ok(json!({"do": "status"})).await;
        clients.push(client);
    }
    let mut fourth = served.client().await;
    let (kind, text) = error(&fourth.line().await.unwrap());
    assert_eq!(
        (kind.as_str(), text.as_str()),
        ("busy", "there are 3 connections already: close one, or try again later")
    );
    assert_eq!(fourth.line().await, None);
    clients.pop();
    let mut next = loop {
        let mut client = served.client().await;
        client.send(r#"{"v":2,"do":"status"}"#).await;
        if client.line().await.is_some_and(|answer| answer["ok"].is_object()) {
            break client;
        }
    };
    assert!(next.ok(json!({"do": "status"})).await["socket"]["crowded"].as_u64() >= Some(1));
}

#[tokio::test]
async fn a_line_that_never_ends_closes_its_connection_only() {
    let served = Served::with(limits(|l| l.line_bytes_max = 1000), |builder| builder).await;
    let (mut long, mut other) = (served.client().await, served.client().await);
    long.to.write_all(&vec![b'x'; 1001]).await.unwrap();
    let (kind, text) = error(&long.line().await.unwrap());
    assert_eq!((kind.as_str(), text.as_str()), ("bad_request", "a line is longer than 1000 bytes"));
    assert_eq!(long.line().await, None);
    assert_eq!(other.ok(json!({"do": "status"})).await["socket"]["long_lines"], 1);
}

#[tokio::test]
async fn an_idle_or_dripping_client_is_closed_and_a_listener_is_not() {
    let served = Served::with(limits(|l| l.idle_within = Duration::from_millis(200)), |builder| builder).await;
    let (mut silent, mut drip, mut listener) = (served.client().await, served.client().await, served.client().await);
    listener.ok(json!({"do": "events"})).await;
    let dripping = async {
        while drip.to.write_all(b"{").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, dripping).await.expect("it is closed although bytes come");
    assert_eq!(silent.line().await, None);
    served.counted(|counts| counts.idle == 2).await;
    served.launcher.kill(&ProcId::rank(1, 1));
    assert!(listener.line().await.is_some(), "a client that listens may be silent");
}

/// Orders that lead to many events.
async fn make_events(served: &Served) {
    for rank in (0..4).cycle().take(80) {
        served.handle.restart([Rank(rank)], "x".repeat(200)).await.unwrap();
    }
}

#[tokio::test]
async fn a_slow_client_loses_the_oldest_events_and_receives_their_count() {
    let served = Served::with(limits(|l| l.write_within = PATIENCE), |builder| builder).await;
    let mut slow = served.client().await;
    slow.ok(json!({"do": "events"})).await;
    let all = Arc::new(AtomicU64::new(0));
    let (mut events, counted) = (served.handle.events(), Arc::clone(&all));
    let counting = tokio::spawn(async move {
        loop {
            match events.recv().await {
                Ok(_) => counted.fetch_add(1, Relaxed),
                Err(RecvError::Lagged(missed)) => counted.fetch_add(missed, Relaxed),
                Err(RecvError::Closed) => return,
            };
        }
    });
    while all.load(Relaxed) < 4 * EVENTS_KEPT as u64 {
        make_events(&served).await; // far more than the system and the runtime keep for a client that does not read
    }
    let mut answered = 0;
    let missed = loop {
        let line = slow.line().await.expect("it is not closed");
        match line["missed"].as_u64() {
            Some(missed) => break missed,
            None => answered += 1,
        }
    };
    assert!(missed > EVENTS_KEPT as u64 && answered > 10, "{missed} missed, {answered} answered before");
    assert_eq!(served.socket.counts().events_missed, missed);
    assert!(slow.line().await.is_some_and(|line| line["event"].is_object()), "and then the newest are sent");
    counting.abort();
}

#[tokio::test]
async fn a_client_that_never_reads_is_dropped_and_others_are_served() {
    let served = Served::with(limits(|l| l.write_within = Duration::from_millis(300)), |builder| builder).await;
    let (mut stuck, mut other) = (served.client().await, served.client().await);
    stuck.ok(json!({"do": "events"})).await;
    while served.socket.counts().slow_readers == 0 {
        make_events(&served).await;
        other.ok(json!({"do": "status"})).await;
    }
    assert_eq!(other.ok(json!({"do": "status"})).await["socket"]["slow_readers"], 1);
}

#[tokio::test]
async fn a_request_to_a_runtime_that_does_not_run_is_answered_busy() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::new().await;
    let limits = limits(|l| l.answer_within = Duration::from_millis(100));
    let idle = taskd_core::runtime::Runtime::builder()
        .job(taskd_core::job::JobSpec::new("idle", 1, taskd_core::testing::doubles::FakeProgram::Runs.spec()))
        .detector(taskd_core::detect::ExitDetector::new())
        .strategy(taskd_core::recover::Restart::new())
        .launcher(served.launcher.clone())
        .build()
        .unwrap();
    let path = dir.path().join("idle.sock");
    let socket = taskd_core::runtime::control::ControlSocket::bind(&path, idle.handle(), limits).unwrap();
    let mut client = Client::of(&path).await;
    let (kind, text) = client.error(json!({"do": "status"})).await;
    assert_eq!(kind, "busy");
    assert!(text.contains("did not answer within 100ms"), "{text}");
    assert_eq!(socket.counts().unanswered, 1);
}
