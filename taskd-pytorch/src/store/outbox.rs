//! The answers that a client has not read yet, in order: small answers are copied together, large values are shared.
//!
//! This module only queues; sending is done elsewhere.

use super::value::Value;
use std::collections::VecDeque;
use std::rc::Rc;

/// Maximum length of values that are copied, so that an answer is one `send`; larger ones are shared.
const COPIED_BYTES_MAX: usize = 4096;
/// Cost of a shared value to the client that waits for it, in bytes.
const SHARED_BYTES: usize = size_of::<Piece>();
/// Cost of bytes after a shared value in addition to themselves: their place in the queue, and the minimum allocation.
const COPIED_BYTES: usize = size_of::<Piece>() + 32;

/// Capacity that an empty outbox keeps.
const KEPT_BYTES: usize = 64 << 10;

#[derive(Debug)]
enum Piece {
    Copied(Vec<u8>),
    Shared(Rc<Value>),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Copied(bytes) => bytes,
            Piece::Shared(value) => value.bytes(),
        }
    }
}

/// Answers in transit to one client.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Bytes that are sent before all pieces: most outboxes have nothing else.
    first: Vec<u8>,
    pieces: VecDeque<Piece>,
    /// Number of bytes of the front part that were sent already.
    sent: usize,
    /// Number of bytes that are still to be sent.
    unread: usize,
    /// Number of bytes of memory that the outbox uses, without shared values.
    held: usize,
}

impl Outbox {
    pub(super) const fn is_empty(&self) -> bool {
        self.unread == 0
    }

    /// Returns the number of bytes that are still to be sent.
    pub(super) const fn unread(&self) -> usize {
        self.unread
    }

    /// Returns the bytes of memory that it uses, without shared values.
    pub(super) const fn held(&self) -> usize {
        self.held
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        let last = match self.pieces.back_mut() {
            None => &mut self.first,
            Some(Piece::Copied(last)) => last,
            Some(Piece::Shared(_)) => {
                self.pieces.push_back(Piece::Copied(bytes.to_vec()));
                self.held += COPIED_BYTES;
                self.count(bytes.len());
                return;
            }
        };
        last.extend_from_slice(bytes);
        self.count(bytes.len());
    }

    pub(super) fn put_number(&mut self, number: i64) {
        self.put(&number.to_le_bytes());
    }

    /// Appends a value in the form of the protocol: its length and its bytes.
    pub(super) fn put_value(&mut self, value: &Rc<Value>) {
        let bytes = value.bytes();
        self.put(&(bytes.len() as u64).to_le_bytes());
        if bytes.len() <= COPIED_BYTES_MAX {
            self.put(bytes);
        } else {
            self.unread += bytes.len();
            self.held += SHARED_BYTES;
            self.pieces.push_back(Piece::Shared(Rc::clone(value)));
        }
    }

    pub(super) fn put_bytes(&mut self, bytes: &[u8]) {
        self.put(&(bytes.len() as u64).to_le_bytes());
        self.put(bytes);
    }

    /// Returns the bytes to send next.
    pub(super) fn front(&self) -> &[u8] {
        let piece = if self.first.is_empty() { self.pieces.front().map_or(&[][..], Piece::bytes) } else { &self.first };
        piece.get(self.sent..).unwrap_or_default()
    }

    /// Removes this many bytes of [`Outbox::front`], which were sent.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
        self.unread -= bytes;
        if self.unread == 0 {
            self.clear();
        } else if self.front().is_empty() {
            self.sent = 0;
            if self.first.is_empty() {
                let piece = self.pieces.pop_front();
                self.held -= piece.map_or(0, |piece| match piece {
                    Piece::Copied(bytes) => COPIED_BYTES + bytes.len(),
                    Piece::Shared(_) => SHARED_BYTES,
                });
            } else {
                self.held -= self.first.len();
                self.first = Vec::new();
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.first.clear(); // keeps little memory: the server's own outbox is used again and again
        if self.first.capacity() > KEPT_BYTES {
            self.first = Vec::new();
        }
        self.pieces.clear();
        (self.sent, self.unread, self.held) = (0, 0, 0);
    }

    const fn count(&mut self, bytes: usize) {
        self.unread += bytes;
        self.held += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::super::value::Ledger;
    use super::*;

    /// Checks that a client that requests many large values and reads none is bounded by all the memory that this
    /// takes.
    #[test]
    fn the_memory_of_small_pieces_between_shared_values_is_counted() {
        let large = Rc::new(Value::new(&[9; COPIED_BYTES_MAX + 1], &Ledger::default()));
        let mut outbox = Outbox::default();
        for _ in 0..1000 {
            outbox.put_value(&large);
        }
        assert!(outbox.held() >= 999 * (SHARED_BYTES + COPIED_BYTES + 8), "{}", outbox.held());
        outbox.advance(outbox.front().len());
        outbox.clear();
        assert_eq!(outbox.held(), 0);
    }

    #[test]
    fn everything_comes_out_in_order_however_little_is_read() {
        let ledger = Ledger::default();
        let large = Rc::new(Value::new(&[9; COPIED_BYTES_MAX + 1], &ledger));
        let small = Rc::new(Value::new(b"small", &ledger));
        for step in [1, 2, 7, 4000, 1 << 20] {
            let mut outbox = Outbox::default();
            outbox.put_number(-2);
            outbox.put_value(&small);
            outbox.put_value(&large);
            outbox.put_value(&large);
            outbox.put_bytes(b"last");
            let mut expected = (-2i64).to_le_bytes().to_vec();
            for value in [small.bytes(), large.bytes(), large.bytes(), b"last"] {
                expected.extend_from_slice(&(value.len() as u64).to_le_bytes());
                expected.extend_from_slice(value);
            }
            assert_eq!(outbox.unread(), expected.len());
            assert!(outbox.held() < 300, "large values are shared: {}", outbox.held());
            let mut read = Vec::new();
            while !outbox.is_empty() {
                let front = outbox.front();
                let part = front.len().min(step);
                assert!(part > 0, "there is always something at the front");
                read.extend_from_slice(&front[..part]);
                outbox.advance(part);
            }
            assert_eq!(read, expected, "{step} at a time");
            assert_eq!((outbox.held(), outbox.unread(), outbox.front().len()), (0, 0, 0));
        }
    }
}
