//! Every request, complete and in parts, every violation, and many mutated requests.

use super::super::outbox::Outbox;
use super::super::space::Space;
use super::super::value::Ledger;
use super::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Requests as torch's client sends them.
#[derive(Default)]
struct Sent(Vec<u8>);

impl Sent {
    fn query(mut self, query: Query) -> Sent {
        self.0.push(query as u8);
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Sent {
        self.0.extend_from_slice(bytes);
        self
    }

    fn number(self, number: u64) -> Sent {
        self.raw(&number.to_le_bytes())
    }

    fn string(self, bytes: &[u8]) -> Sent {
        self.number(bytes.len() as u64).raw(bytes)
    }

    fn validate(self) -> Sent {
        self.query(Query::Validate).raw(&MAGIC.to_le_bytes())
    }
}

fn limits() -> Limits {
    Limits::default()
}

/// Decodes requests, as text, from parts of these lengths; the last part takes the rest.
fn decode(bytes: &[u8], parts: impl Iterator<Item = usize>, limits: &Limits) -> Result<Vec<String>, Violation> {
    let (mut decoder, mut buffer, mut seen, mut rest) = (Decoder::default(), Vec::new(), Vec::new(), bytes);
    for part in parts.chain([usize::MAX]) {
        let (now, later) = rest.split_at(part.min(rest.len()));
        buffer.extend_from_slice(now);
        rest = later;
        let mut used = 0;
        while let Some((length, query, request)) = decoder.next(&buffer[used..], limits)? {
            assert!(length <= limits.request_bytes);
            seen.push(format!("{query:?} {request:?}"));
            used += length;
        }
        buffer.drain(..used);
        if rest.is_empty() {
            break;
        }
    }
    Ok(seen)
}

/// One request of each kind, including the list and the pairs.
fn everything() -> Vec<u8> {
    Sent::default()
        .validate()
        .query(Query::Ping)
        .raw(&7u32.to_le_bytes())
        .query(Query::Set)
        .string(b"/key")
        .string(b"value")
        .query(Query::CompareSet)
        .string(b"/key")
        .string(b"value")
        .string(b"")
        .query(Query::Get)
        .string(b"/key")
        .query(Query::Add)
        .string(b"init/")
        .raw(&(-3i64).to_le_bytes())
        .query(Query::Check)
        .number(2)
        .string(b"/a")
        .string(b"")
        .query(Query::Wait)
        .number(0)
        .query(Query::NumKeys)
        .query(Query::DeleteKey)
        .string(b"/key")
        .query(Query::Append)
        .string(b"/key")
        .string(b"more")
        .query(Query::MultiGet)
        .number(1)
        .string(b"/key")
        .query(Query::MultiSet)
        .number(2)
        .string(b"/a")
        .string(b"1")
        .string(b"/b")
        .string(b"")
        .query(Query::CancelWait)
        .query(Query::QueuePush)
        .string(b"/q")
        .string(b"x")
        .query(Query::QueuePop)
        .string(b"/q")
        .query(Query::QueueLen)
        .string(b"/q")
        .0
}

#[test]
fn every_request_is_understood_however_it_is_cut() {
    let bytes = everything();
    let whole = decode(&bytes, std::iter::empty(), &limits()).unwrap();
    assert_eq!(whole.len(), Query::ALL.len() + 2, "each once, and two pairs: {whole:?}");
    for query in Query::ALL {
        assert!(whole.iter().any(|request| request.starts_with(&format!("{query:?}"))), "{query:?}");
    }
    for part in 1..40 {
        assert_eq!(decode(&bytes, std::iter::repeat(part), &limits()).unwrap(), whole, "{part} bytes at a time");
    }
}

#[test]
fn invalid_client_is_detected_from_its_first_byte() {
    let first = |bytes: &[u8]| decode(bytes, std::iter::empty(), &limits()).unwrap_err();
    assert_eq!(first(b"GET / HTTP/1.1\r\n\r\n"), Violation::NotValidated);
    assert_eq!(first(&[1]), Violation::NotValidated, "a query before the client is known");
    assert_eq!(first(&MAGIC.to_le_bytes()), Violation::NotValidated, "what torch 2.1 sends");
    assert_eq!(first(&[0, 1, 2, 3, 4]), Violation::NotValidated, "another magic");
    assert_eq!(decode(&[0, 0xce], std::iter::empty(), &limits()), Ok(vec![]), "there may be more");
    let after = |bytes: &[u8]| first(&Sent::default().validate().raw(bytes).0);
    assert_eq!(after(&[17]), Violation::UnknownQuery(17));
    assert_eq!(after(&[255]), Violation::UnknownQuery(255));
    assert_eq!(after(&[0]), Violation::UnknownQuery(0), "once is enough");
}

#[test]
fn announced_length_beyond_a_bound_is_refused() {
    let refused = |sent: Sent| {
        let bytes = Sent::default().validate().raw(&sent.0).0;
        match decode(&bytes, std::iter::empty(), &limits()) {
            Err(Violation::Bound(bound)) => bound,
            other => panic!("{other:?}"),
        }
    };
    let new = Sent::default;
    let long = limits().key_bytes as u64 + 1;
    for (length, query) in [(long, Query::Get), (u64::MAX, Query::Set), (1 << 63, Query::Add)] {
        assert_eq!(refused(new().query(query).number(length)), Bound::KeyBytes);
    }
    let long = limits().value_bytes as u64 + 1;
    for length in [long, u64::MAX, u64::MAX - 8] {
        assert_eq!(refused(new().query(Query::Set).string(b"k").number(length)), Bound::ValueBytes);
        assert_eq!(refused(new().query(Query::MultiSet).number(1).string(b"k").number(length)), Bound::ValueBytes);
    }
    for query in [Query::Check, Query::Wait, Query::MultiGet, Query::MultiSet] {
        assert_eq!(refused(new().query(query).number(limits().names + 1)), Bound::Names);
        assert_eq!(refused(new().query(query).number(u64::MAX)), Bound::Names);
    }
    let mut many = new().query(Query::Wait).number(limits().names);
    for _ in 0..limits().request_bytes / limits().key_bytes {
        many = many.string(&vec![7; limits().key_bytes]);
    }
    assert_eq!(refused(many), Bound::RequestBytes);
}

#[test]
fn a_byte_at_a_time_costs_no_more_than_all_at_once() {
    // If every byte caused a scan from the start, this would take hours.
    let mut sent = Sent::default().validate().query(Query::Check).number(100_000);
    for key in 0..100_000u32 {
        sent = sent.string(&key.to_le_bytes());
    }
    let mut decoder = Decoder::default();
    let mut found = 0;
    let mut used = 0;
    for end in 1..=sent.0.len() {
        while let Some((length, _, _)) = decoder.next(&sent.0[used..end], &limits()).unwrap() {
            (used, found) = (used + length, found + 1);
        }
    }
    assert_eq!((found, used), (2, sent.0.len()));
}

/// Random valid requests.
fn random_requests(random: &mut StdRng) -> Vec<u8> {
    let mut sent = Sent::default().validate();
    for _ in 0..random.random_range(1..8) {
        let query = Query::ALL[random.random_range(1..Query::ALL.len())];
        sent = sent.query(query);
        let key = |random: &mut StdRng| vec![b'a' + random.random_range(0..4u8); random.random_range(0..5)];
        let value = |random: &mut StdRng| vec![b'0' + random.random_range(0..10u8); random.random_range(0..30)];
        for field in query.shape() {
            sent = match field {
                Field::Fixed(_) if query == Query::MultiSet => {
                    let count = random.random_range(0..4);
                    (0..count).fold(sent.number(count), |sent, _| sent.string(&key(random)).string(&value(random)))
                }
                Field::Fixed(bytes) => sent.raw(&random.random::<u64>().to_le_bytes()[..*bytes]),
                Field::Key => sent.string(&key(random)),
                Field::Value => sent.string(&value(random)),
                Field::Keys => {
                    let count = random.random_range(0..4);
                    (0..count).fold(sent.number(count), |sent, _| sent.string(&key(random)))
                }
            };
        }
    }
    sent.0
}

fn mutate(bytes: &mut Vec<u8>, random: &mut StdRng) {
    for _ in 0..random.random_range(0..4) {
        let at = random.random_range(0..bytes.len());
        match random.random_range(0..6) {
            0 => bytes[at] = random.random(),
            1 => bytes[at] ^= 1 << random.random_range(0..8),
            2 => bytes.truncate(at.max(1)),
            3 => drop(bytes.remove(at)),
            4 => bytes.insert(at, random.random()),
            _ => {
                let number: u64 = [0, 1, 31, 33, u64::MAX, 1 << 63, 1 << 32][random.random_range(0..7)];
                let end = (at + 8).min(bytes.len());
                bytes.splice(at..end, number.to_le_bytes());
            }
        }
        if bytes.is_empty() {
            bytes.push(0);
        }
    }
}

#[test]
fn mutated_requests_are_refused_or_carried_out_and_nothing_else() {
    let cases = if std::env::var_os("TASKD_SOAK").is_some() { 10_000_000 } else { 20_000 };
    let mut random = StdRng::seed_from_u64(7);
    let limits = Limits {
        key_bytes: 32,
        value_bytes: 64,
        appended_bytes: 200,
        names: 16,
        request_bytes: 400,
        keys: 40,
        store_bytes: 12_000,
        answer_bytes: 2_000,
        unread_bytes: 1_000,
        ..Limits::default()
    };
    let ledger = Ledger::default();
    let mut space = Space::new(ledger.clone());
    let (mut refused, mut carried_out) = (0u64, 0u64);
    for case in 0..cases {
        let mut bytes = random_requests(&mut random);
        mutate(&mut bytes, &mut random);
        let part = random.random_range(1..30);
        let whole = decode(&bytes, std::iter::empty(), &limits);
        assert_eq!(decode(&bytes, std::iter::repeat(part), &limits), whole, "case {case}: {part} bytes of {bytes:?}");

        let client = case % 20;
        let (mut decoder, mut answers, mut rest) = (Decoder::default(), Outbox::default(), &bytes[..]);
        loop {
            match decoder.next(rest, &limits) {
                Ok(None) => break,
                Ok(Some((length, _, request))) => {
                    rest = &rest[length..];
                    if space.apply(client, request, &mut answers, &limits).is_err() {
                        refused += 1;
                        space.forget(client);
                        break;
                    }
                    carried_out += 1;
                }
                Err(_) => {
                    refused += 1;
                    space.forget(client);
                    break;
                }
            }
        }
        space.woken().clear();
        assert!(ledger.total() <= limits.store_bytes + 500, "case {case}: {} bytes", ledger.total());
        if case % 1000 == 999 {
            drop(space);
            assert_eq!(ledger.total(), 0, "case {case}: what is gone does not count");
            space = Space::new(ledger.clone());
        }
    }
    assert!(refused > cases / 10 && carried_out > cases, "{refused} refused, {carried_out} carried out of {cases}");
}
