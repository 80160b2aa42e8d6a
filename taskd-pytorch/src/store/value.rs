//! Values that are stored once however many clients wait to read them, and the account of their memory.

use std::cell::Cell;
use std::rc::Rc;

/// Approximate cost of an entry in addition to its key and its values, in bytes: its share of the map, the counts, one
/// or two allocations.
pub(super) const ENTRY_BYTES: usize = 160;
/// Cost of a value in addition to its bytes: counts, lengths, the allocation itself.
const VALUE_BYTES: usize = 64;

/// The memory used by all keys and values of a server, shared by everything that is counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(Rc<Cell<u64>>);

impl Ledger {
    pub(super) fn total(&self) -> u64 {
        self.0.get()
    }

    pub(super) fn add(&self, bytes: usize) {
        self.0.set(self.0.get() + bytes as u64);
    }

    pub(super) fn remove(&self, bytes: usize) {
        self.0.set(self.0.get() - bytes as u64);
    }
}

/// The bytes of a value. They are counted for as long as the value is held, also after the key was set again while a
/// slow client still reads the old value.
#[derive(Debug)]
pub(super) struct Value {
    bytes: Vec<u8>,
    /// Number of bytes that the ledger counts for this value: its length and a fixed cost.
    counted: usize,
    ledger: Ledger,
}

impl Value {
    pub(super) fn new(bytes: &[u8], ledger: &Ledger) -> Value {
        let counted = VALUE_BYTES + bytes.len();
        ledger.add(counted);
        Value { bytes: bytes.to_vec(), counted, ledger: ledger.clone() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the cost of a value of this length.
    pub(super) const fn cost(bytes: usize) -> usize {
        VALUE_BYTES + bytes
    }

    /// Replaces the bytes, without a new allocation if the old one is suitable.
    pub(super) fn replace(&mut self, bytes: &[u8]) {
        if self.bytes.capacity() > bytes.len().saturating_mul(2).max(64) {
            self.bytes = bytes.to_vec(); // a small value must not hold the memory of a large one
        } else {
            self.bytes.clear();
            self.bytes.extend_from_slice(bytes);
        }
        self.count();
    }

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.count();
    }

    fn count(&mut self) {
        let counted = VALUE_BYTES + self.bytes.capacity();
        self.ledger.remove(self.counted);
        self.ledger.add(counted);
        self.counted = counted;
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.ledger.remove(self.counted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_counted_until_its_last_reader_drops_it() {
        let ledger = Ledger::default();
        let value = Rc::new(Value::new(&[7; 1000], &ledger));
        let reader = Rc::clone(&value);
        assert_eq!(ledger.total(), Value::cost(1000) as u64);
        drop(value);
        assert_eq!(ledger.total(), Value::cost(1000) as u64, "a client still reads it");
        drop(reader);
        assert_eq!(ledger.total(), 0);
    }

    #[test]
    fn a_small_value_does_not_hold_the_memory_of_a_large_one() {
        let ledger = Ledger::default();
        let mut value = Value::new(&[7; 100_000], &ledger);
        value.replace(b"small");
        assert_eq!(value.bytes(), b"small");
        assert!(ledger.total() < 200, "{}", ledger.total());
        value.extend(b"er");
        assert_eq!(value.bytes(), b"smaller");
        drop(value);
        assert_eq!(ledger.total(), 0);
    }
}
