//! Clients that mean harm: none of them hurts the store, or another client.

use crate::raw::{GET, MULTI_GET, NUM_KEYS, Raw, SET, VALIDATE, WAIT, string};
use crate::service::Store;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use taskd_pytorch::store::{Bound, Query};

const MIB: u64 = 1 << 20;

/// A client like others is served as ever.
fn is_well(address: SocketAddr) {
    let mut client = Raw::client(address);
    client.set("well", b"yes");
    assert_eq!(client.get("well"), b"yes");
}

#[tokio::test]
async fn garbage_is_closed_and_counted() {
    let mut store = Store::start().await;
    let address = store.serve(1).await;
    let mut random = StdRng::seed_from_u64(1);
    let (mut strangers, mut unknown) = (0, 0);
    for _ in 0..100 {
        let mut garbage: Vec<u8> = (0..random.random_range(1..2000)).map(|_| random.random()).collect();
        garbage[0] |= 1;
        let mut stranger = Raw::silent(address);
        stranger.say(&garbage);
        assert!(stranger.is_closed());
        strangers += 1;
        let mut client = Raw::client(address);
        garbage[0] |= 0x80;
        client.say(&garbage);
        assert!(client.is_closed());
        unknown += 1;
    }
    for request in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], b"\x16\x03\x01\x02\0\x01\0", b"\0\0\0\0\0"] {
        let mut stranger = Raw::silent(address);
        stranger.say(request);
        assert!(stranger.is_closed());
        strangers += 1;
    }
    is_well(address);
    let stats = store.until("all are gone", |stats| stats.clients == 0).await;
    assert_eq!((stats.not_validated, stats.unknown_queries), (strangers, unknown));
    assert_eq!((stats.buffer_bytes, stats.lost), (0, 0));
}

#[tokio::test]
async fn announced_bytes_that_never_arrive_take_no_memory() {
    let mut store = Store::start().await;
    let address = store.serve(1).await;
    is_well(address);
    let before = store.memory();
    let mut clients = Vec::new();
    for _ in 0..500 {
        let mut client = Raw::client(address);
        let longest = 8 * MIB; // 4 GiB in all, if it were believed
        client.say(&[&[SET], &string(b"k")[..], &longest.to_le_bytes(), b"and then nothing"].concat());
        clients.push(client);
    }
    store.until("all are received", |stats| stats.clients == 500 && stats.bytes_in >= 500 * 39).await;
    is_well(address);
    assert!(store.memory() < before + 8 * MIB, "{} KiB more", (store.memory() - before) >> 10);

    for (length, bound) in [(8 * MIB + 1, Bound::ValueBytes), (u64::MAX, Bound::ValueBytes)] {
        let before = store.control.stats().await.unwrap().reached(bound);
        let mut client = Raw::client(address);
        client.say(&[&[SET], &string(b"k")[..], &length.to_le_bytes()].concat());
        assert!(client.is_closed());
        assert_eq!(store.control.stats().await.unwrap().reached(bound), before + 1);
    }
    let mut client = Raw::client(address);
    client.say(&[&[GET][..], &(1u64 << 62).to_le_bytes()].concat());
    assert!(client.is_closed());
    let mut client = Raw::client(address);
    client.say(&[&[WAIT][..], &(1u64 << 62).to_le_bytes()].concat());
    assert!(client.is_closed());
    let stats = store.control.stats().await.unwrap();
    assert_eq!((stats.reached(Bound::KeyBytes), stats.reached(Bound::Names)), (1, 1));
    drop(clients);
    let stats = store.until("all are gone", |stats| stats.clients == 0).await;
    assert_eq!((stats.buffer_bytes, stats.requested(Query::Set)), (0, 2));
}

#[tokio::test]
async fn client_that_does_not_read_is_paused_and_gets_answers_later() {
    const ASKED: usize = 2000;
    let mut store = Store::start().await;
    let address = store.serve(1).await;
    let (large, small) = (vec![7; 4 << 20], vec![9; 3000]);
    let mut client = Raw::client(address);
    client.set("large", &large);
    client.set("small", &small);
    client.ping();
    let before = store.memory();
    let mut slow = Raw::client(address);
    let ask = |key: &str| [&[GET], &string(key.as_bytes())[..]].concat();
    for _ in 0..ASKED {
        slow.say(&[ask("large"), ask("small")].concat()); // 8 GiB of answers
    }
    store.until("it is paused", |stats| stats.reached(Bound::UnreadBytes) > 0).await;
    client.set("large", b"another one by now");
    for _ in 0..100 {
        client.ping();
    }
    assert!(store.memory() < before + 8 * MIB, "{} KiB more", (store.memory() - before) >> 10);
    let head = |received: Vec<u8>| usize::try_from(u64::from_le_bytes(received.try_into().unwrap())).unwrap();
    let (mut of_old, mut of_new) = (0, 0);
    for _ in 0..ASKED {
        let length = head(slow.receive(8));
        if length == large.len() {
            assert!(slow.receive(length) == large);
            of_old += 1;
        } else {
            assert_eq!(slow.receive(length), b"another one by now");
            of_new += 1;
        }
        let length = head(slow.receive(8));
        assert!(slow.receive(length) == small);
    }
    assert_eq!(of_old + of_new, ASKED);
    assert!(of_old > 0 && of_new > of_old, "its requests have waited: {of_old} and {of_new}");
    drop(slow);
    let stats = store.until("nothing is held", |stats| stats.buffer_bytes == 0 && stats.clients == 1).await;
    assert_eq!(stats.requested(Query::Get), 2 * ASKED as u64);
    assert!(stats.store_bytes < 10_000, "the old value is gone with its last reader: {}", stats.store_bytes);
}

#[tokio::test]
async fn request_for_too_large_an_answer_closes_its_client() {
    let mut store = Store::start().await;
    let address = store.serve(1).await;
    let mut client = Raw::client(address);
    client.set("k", &[7; 4096]);
    let (keys, mut list) = (100_000u64, Vec::new()); // 400 MiB of copies
    (0..keys).for_each(|_| list.extend_from_slice(&string(b"k")));
    let mut greedy = Raw::client(address);
    greedy.say(&[&[MULTI_GET], &keys.to_le_bytes()[..], &list].concat());
    assert!(greedy.is_closed());
    client.ping();
    let stats = store.until("it is gone", |stats| stats.clients == 1).await;
    assert_eq!((stats.reached(Bound::AnswerBytes), stats.buffer_bytes), (1, 0));
}

#[tokio::test]
async fn a_flood_of_requests_leaves_turns_for_others() {
    let mut store = Store::start().await;
    let address = store.serve(1).await;
    let mut client = Raw::client(address);
    client.set("k", &[7; 4000]);
    client.ping();
    let stop = Arc::new(AtomicBool::new(false));
    let floods: Vec<_> = (0..8)
        .map(|_| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut client = Raw::client(address);
                let many = [&[GET], &string(b"k")[..]].concat().repeat(2000);
                client.0.set_nonblocking(true).unwrap();
                let mut sent = 0;
                while !stop.load(Ordering::Relaxed) {
                    match client.0.write(&many[sent..]) {
                        Ok(bytes) => sent = (sent + bytes) % many.len(), // it never reads
                        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                    }
                    std::thread::yield_now();
                }
            })
        })
        .collect();
    store.until("they are paused", |stats| stats.reached(Bound::UnreadBytes) >= 8).await;
    for _ in 0..200 {
        client.ping();
    }
    stop.store(true, Ordering::Relaxed);
    floods.into_iter().for_each(|flood| flood.join().unwrap());
    let stats = store.until("they are gone", |stats| stats.clients == 1).await;
    assert!(store.memory() < 64 * MIB, "{}", store.memory());
    assert_eq!(stats.buffer_bytes, 0);
}

#[tokio::test]
async fn client_beyond_the_limit_is_refused_and_the_others_remain() {
    let mut store = Store::with(&["clients=50"], None).await;
    let address = store.serve(1).await;
    let mut clients: Vec<Raw> = (0..50).map(|_| Raw::client(address)).collect();
    clients.iter_mut().for_each(Raw::ping);
    for _ in 0..20 {
        assert!(Raw::silent(address).is_closed());
    }
    clients.iter_mut().for_each(Raw::ping);
    let stats = store.control.stats().await.unwrap();
    assert_eq!((stats.clients, stats.reached(Bound::Clients)), (50, 20));
    drop(clients.pop());
    store.until("there is room", |stats| stats.clients == 49).await;
    is_well(address);
}

/// What `bash` does as a user of this host that is neither the store's nor root, and what it prints.
fn as_another_user(script: &str) -> String {
    use std::os::unix::process::CommandExt;
    const UNPRIVILEGED: u32 = 65_534;
    let mut command = std::process::Command::new("timeout");
    command.args(["20", "bash", "-c", script]).current_dir("/").uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    let out = command.output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

#[tokio::test]
async fn another_user_of_this_host_neither_reads_nor_sets_a_key() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can act as another user");
        return;
    }
    let mut store = Store::start().await;
    let address = store.serve(1).await;
    let mut client = Raw::client(address);
    client.set("k", b"ours");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    let dial = format!("exec 3<>/dev/tcp/127.0.0.1/{}", address.port());
    let read = hex(&[&VALIDATE[..], &[GET], &string(b"k")].concat());
    let set = hex(&[&VALIDATE[..], &[SET], &string(b"k"), &string(b"theirs")].concat());
    assert_eq!(as_another_user(&format!("{dial}; printf '{read}' >&3; cat <&3 | wc -c")).lines().next(), Some("0"));
    // One that has closed its socket by the time at which it is looked at has no user any more; the system shows root.
    as_another_user(&format!("for i in $(seq 200); do {dial}; printf '{set}' >&3; exec 3>&-; done 2>/dev/null"));
    let stats = store.until("all are closed", |stats| stats.foreign >= 201).await;
    assert_eq!((stats.requested(Query::Set), stats.not_validated), (1, 0), "nothing of theirs is read");
    assert_eq!(client.get("k"), b"ours");
}

#[tokio::test]
async fn silent_connections_are_closed_first_if_descriptors_run_out() {
    let mut store = Store::with(&[], Some(40)).await;
    let address = store.serve(1).await;
    let mut clients: Vec<Raw> = (0..20).map(|_| Raw::client(address)).collect();
    clients.iter_mut().for_each(Raw::ping);
    let silent: Vec<Raw> = (0..60).map(|_| Raw::silent(address)).collect();
    let stats = store.until("some are closed", |stats| stats.reached(Bound::OpenFiles) >= 20).await;
    assert!(stats.clients >= 25 && stats.clients < 40, "{stats:#?}");
    let before = store.ticks();
    clients.iter_mut().for_each(Raw::ping);
    is_well(address); // a client takes the place of a connection that has sent nothing
    // A client that waits without being taken would wake it without end: in a second, that is a hundred ticks.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert!(store.ticks() - before < 30, "{} ticks in a second", store.ticks() - before);
    drop(silent);
    store.until("they are gone", |stats| stats.clients == 20).await;
    clients.iter_mut().for_each(Raw::ping);
    is_well(address);
}

#[tokio::test]
async fn client_beyond_a_store_bound_is_closed_and_stored_data_remains() {
    let limits = ["keys=10", "value_bytes=1000", "appended_bytes=1500", "store_bytes=9000", "buffer_bytes=67108864"];
    let mut store = Store::with(&limits, None).await;
    let address = store.serve(1).await;
    let mut client = Raw::client(address);
    for key in 0..10 {
        client.set(&format!("k{key}"), b"1");
    }
    client.ping();
    let append = |length: usize| [&[9], &string(b"k1")[..], &string(&vec![b'1'; length])].concat();
    let set = |key: &str, length: usize| [&[SET], &string(key.as_bytes())[..], &string(&vec![b'1'; length])].concat();
    let mut check = async |bound: Bound, request: Vec<u8>| {
        let mut beyond = Raw::client(address);
        beyond.say(&request);
        assert!(beyond.is_closed());
        assert_eq!(store.control.stats().await.unwrap().reached(bound), 1, "{bound}");
    };
    check(Bound::Keys, set("one more", 1)).await;
    check(Bound::ValueBytes, set("k1", 1001)).await;
    check(Bound::AppendedBytes, [append(900), append(900)].concat()).await;
    let much: Vec<u8> = (2..10).flat_map(|key| set(&format!("k{key}"), 1000)).collect();
    check(Bound::StoreBytes, much).await;
    client.say(&[NUM_KEYS]);
    assert_eq!(client.receive(8), 10i64.to_le_bytes());
    assert_eq!(client.get("k0"), b"1");
}

#[tokio::test]
async fn all_unfinished_requests_together_have_a_bound() {
    let mut store = Store::with(&["buffer_bytes=67108864"], None).await;
    let address = store.serve(1).await;
    let mut clients = Vec::new();
    let part = vec![7; 4 << 20];
    for _ in 0..40 {
        let mut client = Raw::client(address);
        let head = [&[SET], &string(b"k")[..], &(8 * MIB).to_le_bytes()].concat();
        // Clients that come later are closed while they still send.
        if client.0.write_all(&[&head[..], &part].concat()).is_ok() {
            clients.push(client);
        }
    }
    let stats = store.until("some are closed", |stats| stats.reached(Bound::BufferBytes) > 10).await;
    assert!(stats.buffer_bytes <= 64 * MIB && stats.clients > 5, "{stats:#?}");
    assert!(store.memory() < 150 * MIB, "{}", store.memory());
    drop(clients);
    let stats = store.until("all are gone", |stats| stats.clients == 0).await;
    assert_eq!(stats.buffer_bytes, 0);
    is_well(address);
}
