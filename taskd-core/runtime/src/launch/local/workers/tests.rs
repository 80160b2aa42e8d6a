//! Peers that send invalid messages: each is refused and counted, none is kept, and none makes the supervisor hold much
//! memory.
//!
//! `TASKD_SOAK=1` runs two hundred thousand conversations, and prints the results.

use super::frames::{FRAME_BYTES_MAX, FromWorker, VERSION};
use super::*;
use crate::job::{Name, NodeId};
use crate::launch::guard::wire::{JobId, ProcReport};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::json;
use std::cell::RefCell;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

const RANK: ProcId = ProcId::rank(0, 1);

/// The links of a job whose only rank is this process.
fn workers() -> Arc<Workers> {
    let history = History::new(JobId("job".into()), NodeId(Name::new("here")), 8);
    let pid = std::process::id();
    history.learn(ProcReport { proc: RANK, pid, start_time: 1, phase: Phase::Running, page: None });
    Workers::new(Arc::new(history))
}

/// Sends these bytes on a connection of its own and closes it. Returns true if the connection was accepted as the
/// process's, whose link is removed again.
async fn is_taken(workers: &Arc<Workers>, bytes: &[u8]) -> bool {
    let (mut peer, own) = UnixStream::pair().unwrap();
    peer.write_all(bytes).await.unwrap();
    peer.shutdown().await.unwrap();
    workers.seats().clear();
    conn::serve(Arc::clone(workers), own, 1).await;
    let seats = workers.seats();
    assert!(seats.values().all(|seat| seat.linked.is_none() && seat.way.is_none()), "nothing is left of it");
    !seats.is_empty()
}

fn frame(body: &[u8]) -> Vec<u8> {
    [&u32::try_from(body.len()).unwrap().to_le_bytes(), body].concat()
}

fn hello(version: u32) -> Vec<u8> {
    let hello = json!({"version": version, "proc": "rank-0.1", "pid": 7, "generation": 1, "framework": "f", "position": "in-loop"});
    json!({ "hello": hello }).to_string().into_bytes()
}

#[tokio::test(start_paused = true)]
async fn peers_that_break_the_protocol_are_refused_and_counted() {
    let workers = workers();
    let hello = frame(&hello(VERSION));
    let after_hello = |bytes: &[u8]| [&hello, bytes].concat();
    let beyond = u32::try_from(FRAME_BYTES_MAX + 1).unwrap().to_le_bytes();
    let other = String::from_utf8(self::hello(VERSION)).unwrap().replace("rank-0.1", "rank-0.2");
    let refused = [
        ("nothing", vec![]),
        ("an earlier version", frame(&self::hello(VERSION - 1))),
        ("a later version", frame(&self::hello(VERSION + 1))),
        ("another process", frame(other.as_bytes())),
        ("a hello that ends early", hello[..hello.len() - 1].to_vec()),
        ("no hello", frame(br#"{"position": {"now": "in-loop"}}"#)),
        ("too much at once", beyond.to_vec()),
        ("too much after its hello", after_hello(&beyond)),
        ("two hellos", after_hello(&hello)),
        ("an empty frame", after_hello(&frame(b""))),
        ("no JSON", after_hello(&frame(b"{]"))),
        ("no UTF-8", after_hello(&frame(b"{\"failed\": {\"kind\": \"collective\", \"message\": \"\xff\"}}"))),
        ("no object", after_hello(&frame(b"[]"))),
        ("no message", after_hello(&frame(br#"{"dance": {}}"#))),
        ("JSON in JSON without an end", after_hello(&frame(&[b'['; 100_000]))),
    ];
    for (number, (what, bytes)) in (1..).zip(refused) {
        assert_eq!(is_taken(&workers, &bytes).await, bytes.starts_with(&hello), "{what}");
        assert_eq!(workers.counts(), LinkCounts { refused: number, unexpected: 0 }, "{what}");
    }
    let refused = workers.counts().refused;
    for cut in [0, 1, 5] {
        assert!(is_taken(&workers, &after_hello(&frame(b"[]")[..cut])).await);
    }
    assert_eq!(workers.counts().refused, refused, "a peer that dies while it sends has done nothing wrong");
}

#[tokio::test]
async fn a_peer_that_announces_an_oversized_frame_is_not_read_further() {
    let (mut peer, own) = UnixStream::pair().unwrap();
    let (workers, mut sent) = (workers(), 0);
    let serving = tokio::spawn(conn::serve(Arc::clone(&workers), own, 1));
    let mut bytes = frame(&hello(VERSION));
    bytes.extend(u32::MAX.to_le_bytes());
    while peer.write_all(&bytes).await.is_ok() {
        sent += bytes.len();
        bytes = vec![b' '; 64 << 10];
    }
    serving.await.unwrap();
    assert!(sent < 2 * FRAME_BYTES_MAX, "the socket's own room, not {sent} bytes");
    assert_eq!(workers.counts().refused, 1);
}

/// Returns true if a connection that sends these bytes and closes must be refused.
fn is_refused(mut bytes: &[u8]) -> bool {
    let mut is_first = true;
    loop {
        let Some((length, rest)) = bytes.split_first_chunk() else { return is_first };
        let length = u32::from_le_bytes(*length) as usize;
        if length > FRAME_BYTES_MAX {
            return true;
        }
        let Some((body, rest)) = rest.split_at_checked(length) else { return is_first };
        match (serde_json::from_slice(body), is_first) {
            (Ok(FromWorker::Hello(hello)), true) if (hello.version, &*hello.proc) == (VERSION, "rank-0.1") => {}
            (Ok(FromWorker::Hello(_)) | Err(_), _) | (Ok(_), true) => return true,
            (Ok(_), false) => {}
        }
        (is_first, bytes) = (false, rest);
    }
}

/// Conversations with some pieces of their frames replaced, some in another order, with wrong lengths, or with an early
/// end.
fn conversations() -> impl Strategy<Value = Vec<u8>> {
    let messages: [Vec<u8>; 6] = [
        hello(VERSION),
        br#"{"position": {"now": "parked", "state_bytes": 4096, "unsupported_reason": "no reason", "sharded": ["optimizer"]}}"#.to_vec(),
        br#"{"failed": {"kind": "collective", "op": "allreduce", "step": 41, "message": "closed by peer"}}"#.to_vec(),
        br#"{"in-memory-checkpoint": {"generation": 1, "number": 3, "at": 60, "of": {"made_in": 1, "step": 60}, "whole": true, "bytes": 9}}"#
            .to_vec(),
        br#"{"reply": {"id": 7, "ok": {"state": {"step": 3, "committed": 2, "window": "before"}, "joined_ms": 7.1}}}"#.to_vec(),
        br#"{"reply": {"id": 8, "error": "it does not want to"}}"#.to_vec(),
    ];
    let piece = || {
        let known = ["\"", "}", "[[[[", "-1", "1e999", ": \n", "é'", "\0", "null", "18446744073709551616"];
        let known = prop::sample::select(known.to_vec()).prop_map(|text| text.as_bytes().to_vec());
        prop_oneof![2 => known, 1 => prop::collection::vec(any::<u8>(), 0..8)]
    };
    let order = prop_oneof![3 => Just((0..6).collect::<Vec<usize>>()), 1 => prop::collection::vec(0..6usize, 0..8)];
    let edits = prop::collection::vec((0..6usize, any::<Index>(), 0..24usize, piece()), 0..3);
    let torn = prop::collection::vec((any::<Index>(), 0..8usize, piece()), 0..2);
    let end = prop::option::weighted(0.2, any::<Index>());
    (order, edits, torn, end).prop_map(move |(order, edits, torn, end)| {
        let mut messages = messages.clone();
        edits.into_iter().for_each(|(which, at, length, piece)| replace(&mut messages[which], at, length, piece));
        let mut bytes: Vec<u8> = order.into_iter().flat_map(|which| frame(&messages[which])).collect();
        torn.into_iter().for_each(|(at, length, piece)| replace(&mut bytes, at, length, piece));
        bytes.truncate(end.map_or(bytes.len(), |end| end.index(bytes.len() + 1)));
        bytes
    })
}

fn replace(bytes: &mut Vec<u8>, at: Index, length: usize, by: Vec<u8>) {
    let from = at.index(bytes.len() + 1);
    let to = (from + length).min(bytes.len());
    bytes.splice(from..to, by);
}

#[test]
fn every_conversation_is_read_to_its_end_or_refused() {
    let soak = std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1");
    let config = Config { cases: if soak { 200_000 } else { 5_000 }, failure_persistence: None, ..Config::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let seen = RefCell::new(BTreeMap::<_, u64>::new());
    let (workers, expected) = (workers(), RefCell::new(0));
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let result = runner.run(&conversations(), |bytes| {
        let is_taken = runtime.block_on(is_taken(&workers, &bytes));
        let is_refused = is_refused(&bytes);
        *expected.borrow_mut() += u64::from(is_refused);
        prop_assert_eq!(workers.counts().refused, *expected.borrow(), "every one is counted, and no other peer");
        *seen.borrow_mut().entry((is_taken, is_refused)).or_default() += 1;
        Ok(())
    });
    let seen = seen.into_inner();
    println!("(taken for the process, refused): {seen:?}");
    result.unwrap();
    assert_eq!(seen.keys().collect::<Vec<_>>(), [&(false, true), &(true, false), &(true, true)], "each is there");
}

#[tokio::test]
async fn connections_of_a_process_are_bounded_and_room_is_freed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("worker.sock");
    let workers = workers();
    let serving = tokio::spawn(Arc::clone(&workers).serve(UnixListener::bind(&path).unwrap()));
    let mut peers = Vec::new();
    for _ in 0..3 * CONNS_OF_PROCESS_MAX {
        peers.push(UnixStream::connect(&path).await.unwrap());
    }
    let refused = || workers.counts().refused;
    let until = async |count| {
        while refused() < count {
            tokio::task::yield_now().await;
        }
    };
    until(2 * CONNS_OF_PROCESS_MAX as u64).await;
    peers.clear();
    until(3 * CONNS_OF_PROCESS_MAX as u64).await; // those that were served have sent nothing: refused
    let mut peer = UnixStream::connect(&path).await.unwrap();
    peer.write_all(&frame(&hello(VERSION))).await.unwrap();
    while workers.seats().get(&RANK).is_none_or(|seat| seat.linked.is_none()) {
        tokio::task::yield_now().await; // there is room again
    }
    serving.abort();
}
