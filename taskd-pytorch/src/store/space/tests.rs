//! The effect of each request on keys and waiting clients. `tests/store` compares the answers with torch's own server.

use super::*;

/// A space with default limits, and short words for requests.
struct Room {
    space: Space,
    ledger: Ledger,
    limits: Limits,
}

impl Room {
    fn new() -> Room {
        let ledger = Ledger::default();
        Room { space: Space::new(ledger.clone()), ledger, limits: Limits::default() }
    }

    fn ask(&mut self, client: ClientId, request: Request<'_>) -> Vec<u8> {
        self.try_ask(client, request).unwrap()
    }

    fn try_ask(&mut self, client: ClientId, request: Request<'_>) -> Result<Vec<u8>, Violation> {
        let mut answers = Outbox::default();
        self.space.apply(client, request, &mut answers, &self.limits)?;
        let mut bytes = Vec::new();
        while !answers.is_empty() {
            bytes.extend_from_slice(answers.front());
            answers.advance(answers.front().len());
        }
        Ok(bytes)
    }

    fn set(&mut self, key: &str, value: &str) {
        assert!(self.ask(0, Request::Set { key: key.as_bytes(), value: value.as_bytes() }).is_empty());
    }

    fn get(&mut self, key: &str) -> Vec<u8> {
        self.ask(0, Request::Get { key: key.as_bytes() })[8..].to_vec()
    }

    fn wait(&mut self, client: ClientId, keys: &[&str]) -> Vec<u8> {
        let list = list(keys);
        self.ask(client, Request::Wait { keys: Keys::of(&list) })
    }

    fn push(&mut self, key: &str) {
        assert!(self.ask(0, Request::QueuePush { key: key.as_bytes(), value: b"x" }).is_empty());
    }

    fn woken(&mut self) -> Vec<ClientId> {
        std::mem::take(self.space.woken())
    }

    fn is_empty(&self) -> bool {
        self.space.entries.is_empty() && self.space.waits() == 0 && self.ledger.total() == 0
    }
}

fn list(keys: &[&str]) -> Vec<u8> {
    let string = |key: &&str| [&(key.len() as u64).to_le_bytes(), key.as_bytes()].concat();
    keys.iter().flat_map(string).collect()
}

#[test]
fn a_wait_that_is_refused_for_want_of_room_leaves_nothing() {
    let mut room = Room::new();
    room.limits.store_bytes = (ENTRY_BYTES + 1 + WAIT_BYTES / 2) as u64;
    let list = list(&["a"]);
    for _ in 0..3 {
        room.try_ask(1, Request::Wait { keys: Keys::of(&list) }).unwrap_err();
        assert!(room.is_empty());
    }
}

/// Limits count entries: a client must not hold memory that none of them counts.
#[test]
fn lists_give_memory_back_when_most_of_their_entries_are_gone() {
    let mut room = Room::new();
    for _ in 0..4096 {
        room.push("queue");
    }
    while room.ask(0, Request::QueueLen { key: b"queue" }) != 1i64.to_le_bytes() {
        room.ask(0, Request::QueuePop { key: b"queue" });
    }
    assert!(room.space.entries[&b"queue"[..]].queue.capacity() <= 64);
    assert!(room.wait(1, &["held"]).is_empty());
    assert!(room.wait(2, &["held"; 4096]).is_empty());
    room.ask(2, Request::CancelWait);
    assert!(room.space.entries[&b"held"[..]].waiting.capacity() <= 64);
}

#[test]
fn a_wait_is_over_when_its_last_key_is_there() {
    let mut room = Room::new();
    room.set("a", "1");
    assert_eq!(room.wait(1, &["a"]), [STOP_WAITING]);
    assert_eq!(room.wait(1, &[]), [STOP_WAITING]);
    assert!(room.wait(1, &["a", "b", "c", "c"]).is_empty());
    assert!(room.wait(2, &["c"]).is_empty());
    room.set("b", "1");
    assert!(room.woken().is_empty());
    assert_eq!(room.ask(0, Request::DeleteKey { key: b"b" }), 1i64.to_le_bytes());
    room.set("c", "1");
    assert_eq!(room.woken(), [1, 2], "b was there: that it is gone again does not matter, as with torch");
    room.set("c", "2");
    assert!(room.woken().is_empty(), "once");
    assert_eq!(room.space.waits(), 0);
}

#[test]
fn whatever_sets_a_key_ends_waits_and_what_sets_nothing_does_not() {
    for way in 0..4 {
        let mut room = Room::new();
        assert!(room.wait(1, &["k"]).is_empty());
        let (key, value) = (&b"k"[..], &b"1"[..]);
        match way {
            0 => room.ask(2, Request::Set { key, value }),
            1 => room.ask(2, Request::CompareSet { key, expected: b"", value }),
            2 => room.ask(2, Request::Add { key, number: 1 }),
            _ => room.ask(2, Request::Append { key, value }),
        };
        assert_eq!(room.woken(), [1], "way {way}");
        assert_eq!(room.get("k"), b"1");
    }
    let mut room = Room::new();
    assert!(room.wait(1, &["k"]).is_empty());
    let answer = room.ask(2, Request::CompareSet { key: b"k", expected: b"no", value: b"1" });
    assert_eq!(&answer[8..], b"no");
    assert!(room.woken().is_empty(), "torch's server wakes it, and it finds nothing");
    assert_eq!(room.ask(2, Request::NumKeys), 0i64.to_le_bytes(), "a key that is only waited for does not count");
}

#[test]
fn cancelled_or_forgotten_wait_leaves_no_entries() {
    let mut room = Room::new();
    assert!(room.wait(1, &["a", "b"]).is_empty());
    assert_eq!(room.ask(1, Request::CancelWait), [WAIT_CANCELED]);
    assert!(room.is_empty());
    assert_eq!(room.ask(1, Request::CancelWait), [WAIT_CANCELED], "always answered");
    assert!(room.wait(1, &["a"]).is_empty());
    assert!(room.wait(1, &["b"]).is_empty(), "one at a time: this one counts");
    room.set("a", "1");
    assert!(room.woken().is_empty());
    room.set("b", "1");
    assert_eq!(room.woken(), [1]);
    room.ask(0, Request::DeleteKey { key: b"a" });
    room.ask(0, Request::DeleteKey { key: b"b" });
    assert!(room.is_empty());
    assert!(room.wait(3, &["a"]).is_empty());
    room.space.forget(3);
    room.set("a", "1");
    assert!(room.woken().is_empty());
}

#[test]
fn waits_of_50000_clients_are_removed_in_linear_time() {
    // With quadratic time this would take minutes.
    let mut room = Room::new();
    let clients = 50_000;
    for client in 0..clients {
        assert!(room.wait(client, &["barrier", "x"]).is_empty());
    }
    for client in 0..clients - 1 {
        room.space.forget(client);
    }
    room.set("barrier", "1");
    room.set("x", "1");
    assert_eq!(room.woken(), [clients - 1], "the client that has not given up");
    room.ask(0, Request::DeleteKey { key: b"barrier" });
    room.ask(0, Request::DeleteKey { key: b"x" });
    assert!(room.is_empty());
}

#[test]
fn queue_value_wakes_one_waiting_client() {
    let mut room = Room::new();
    room.set("there", "1");
    for client in 1..=3 {
        assert!(room.wait(client, &["q"]).is_empty());
    }
    assert!(room.wait(4, &["q", "other"]).is_empty());
    room.push("q");
    assert_eq!(room.woken(), [1], "the client that came first");
    assert_eq!(room.wait(1, &["q"]), [STOP_WAITING], "no client has taken it");
    assert_eq!(
        room.ask(1, Request::QueuePop { key: b"q" }),
        [&1i64.to_le_bytes()[..], &1u64.to_le_bytes(), b"x"].concat()
    );
    assert!(room.wait(1, &["k"]).is_empty());
    room.push("q");
    room.push("q");
    assert_eq!(room.woken(), [2, 3], "and not the one that waits for something else by now");
    room.push("q");
    room.push("q");
    assert!(room.woken().is_empty(), "several values of one queue are not the other key");
    room.push("other");
    assert_eq!(room.woken(), [4]);
    assert_eq!(room.ask(0, Request::QueueLen { key: b"q" }), 4i64.to_le_bytes());
    assert_eq!(room.ask(0, Request::QueueLen { key: b"none" }), 0i64.to_le_bytes());
    assert_eq!(room.ask(0, Request::QueuePop { key: b"none" }), 0i64.to_le_bytes(), "no value follows");
    assert_eq!(room.ask(0, Request::NumKeys), 1i64.to_le_bytes(), "queues are no keys");
    assert!(room.wait(5, &["q", "new"]).is_empty());
    room.set("new", "1");
    assert_eq!(room.woken(), [5], "a queue with values in it is there");
}

#[test]
fn a_queue_and_a_key_of_one_name_are_two_things() {
    let mut room = Room::new();
    room.set("k", "1");
    room.push("k");
    assert_eq!(room.ask(0, Request::DeleteKey { key: b"k" }), 1i64.to_le_bytes());
    assert_eq!(room.ask(0, Request::DeleteKey { key: b"k" }), 0i64.to_le_bytes());
    assert_eq!(room.ask(0, Request::QueueLen { key: b"k" }), 1i64.to_le_bytes());
    room.ask(0, Request::QueuePop { key: b"k" });
    assert!(room.is_empty());
}

#[test]
fn beyond_a_bound_nothing_is_done() {
    let mut room = Room::new();
    room.limits.keys = 2;
    room.set("a", "1");
    room.set("b", "1");
    let full = Err(Violation::Bound(Bound::Keys));
    assert_eq!(room.try_ask(1, Request::Set { key: b"c", value: b"1" }), full);
    assert_eq!(room.try_ask(1, Request::Add { key: b"c", number: 1 }), full);
    assert_eq!(room.try_ask(1, Request::QueuePush { key: b"c", value: b"1" }), full);
    let keys = list(&["a", "c", "d"]);
    assert_eq!(room.try_ask(1, Request::Wait { keys: Keys::of(&keys) }), full);
    assert_eq!(room.space.waits(), 0);
    room.set("a", "2");
    assert_eq!(room.ask(0, Request::NumKeys), 2i64.to_le_bytes());

    let mut room = Room::new();
    room.limits.store_bytes = 1000;
    let full = Err(Violation::Bound(Bound::StoreBytes));
    room.set("a", "1");
    assert_eq!(room.try_ask(1, Request::Set { key: b"b", value: &[7; 900] }), full);
    assert_eq!(room.try_ask(1, Request::Append { key: b"a", value: &[7; 900] }), full);
    assert_eq!(room.get("a"), b"1");
    room.limits.appended_bytes = 10;
    let long = Err(Violation::Bound(Bound::AppendedBytes));
    assert_eq!(room.try_ask(1, Request::Append { key: b"a", value: &[7; 10] }), long);
    assert_eq!(room.try_ask(1, Request::Append { key: b"a", value: &[7; 9] }), Ok(vec![]));
    let keys = list(&["a"; 200]);
    room.limits.answer_bytes = 1000;
    let many = Err(Violation::Bound(Bound::AnswerBytes));
    assert_eq!(room.try_ask(1, Request::MultiGet { keys: Keys::of(&keys) }), many);
    assert_eq!(room.try_ask(1, Request::Add { key: b"a", number: 1 }).map(drop), Ok(()), "it begins with a digit");
    room.set("a", "x1");
    assert_eq!(room.try_ask(1, Request::Add { key: b"a", number: 1 }), Err(Violation::NotANumber));
    let Room { space, ledger, .. } = room;
    drop(space);
    assert_eq!(ledger.total(), 0);
}
