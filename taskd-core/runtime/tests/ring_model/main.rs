//! The ring under the orders in which two threads' reads and writes can become visible to each other (loom).
//!
//! What loom does not show is a read that is done after a later write. The ring relies on none being: a reader frees a
//! slot by a compare-and-exchange that releases, which on every processor comes after the reads before it.
//!
//! The source is the recorder's own, compiled with loom's cells and with shorter records: what is whole for two words
//! is whole for seven.

#[path = "../../src/trace/recorder/ring.rs"]
#[allow(dead_code, unreachable_pub)] // not everything is asked of the model
mod ring;

/// What the ring is made of here.
mod cells {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    pub(super) const RECORD_WORDS: usize = 2;
}

use loom::sync::Arc;
use loom::thread;
use ring::{Head, Ring, Slot, WhenFull, Words, Writer};

/// A ring that two threads share.
struct Shared {
    head: Head,
    slots: [Slot; 2],
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared { head: Head::default(), slots: Default::default() })
    }

    fn ring(&self) -> Ring<'_> {
        Ring::new(&self.head, &self.slots).expect("two is a power of two")
    }
}

/// Takes what is there, and returns how many were lost.
fn take(shared: &Shared, taken: &mut Vec<u64>) -> u64 {
    let (ring, from) = (shared.ring(), shared.head.taken());
    let reading = ring.read_from(from, u64::MAX, |number, words| {
        assert_eq!(number_of(words), number);
        taken.push(number);
    });
    assert!(ring.commit(from, reading), "there is one reader");
    reading.lost
}

/// The record of a number; one that is put together from two others is none.
fn record(number: u64) -> Words {
    [number, !number]
}

fn number_of(words: Words) -> u64 {
    assert_eq!(words, record(words[0]), "a torn record");
    words[0]
}

/// Writes `records` records and returns how many found room.
fn write(shared: &Arc<Shared>, records: u64, when_full: WhenFull) -> thread::JoinHandle<u64> {
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        let mut writer = Writer::new(shared.ring(), when_full);
        (0..records).filter(|number| writer.push(&record(*number))).count() as u64
    })
}

#[test]
fn ring_with_drop_oldest_yields_ordered_records_and_counts_losses() {
    loom::model(|| {
        let shared = Shared::new();
        let writer = write(&shared, 3, WhenFull::DropOldest);
        let (mut taken, mut lost) = (Vec::new(), 0);
        lost += take(&shared, &mut taken);
        writer.join().unwrap();
        lost += take(&shared, &mut taken);
        assert!(taken.is_sorted_by(|a, b| a < b), "{taken:?}");
        assert_eq!(taken.last(), Some(&2), "the last one is there");
        assert_eq!((taken.len() as u64 + lost, shared.head.overwritten()), (3, lost));
    });
}

#[test]
fn full_ring_with_drop_newest_holds_the_first_and_counts_drops() {
    loom::model(|| {
        let shared = Shared::new();
        let writer = write(&shared, 3, WhenFull::DropNewest);
        let mut taken = Vec::new();
        assert_eq!(take(&shared, &mut taken), 0, "nothing is written over");
        let written = writer.join().unwrap();
        assert_eq!(take(&shared, &mut taken), 0);
        assert!(taken.is_sorted_by(|a, b| a < b) && taken.starts_with(&[0, 1]), "{taken:?}");
        assert_eq!((taken.len() as u64, shared.head.dropped()), (written, 3 - written));
    });
}

#[test]
fn non_consuming_read_returns_whole_records_or_none() {
    loom::model(|| {
        let shared = Shared::new();
        let writer = write(&shared, 3, WhenFull::DropOldest);
        for number in 0..3 {
            if let Some(words) = shared.ring().read(number) {
                assert_eq!(number_of(words), number);
            }
        }
        writer.join().unwrap();
        assert_eq!(shared.ring().present(), 1..3);
        assert_eq!([0, 1, 2].map(|number| shared.ring().read(number)), [None, Some(record(1)), Some(record(2))]);
    });
}

#[test]
fn published_records_are_readable_during_a_write() {
    loom::model(|| {
        let shared = Shared::new();
        let writer = write(&shared, 2, WhenFull::DropOldest);
        for number in shared.ring().present() {
            assert_eq!(shared.ring().read(number), Some(record(number)));
        }
        writer.join().unwrap();
    });
}
