//! What a client has not read yet, in order: small answers together, large values where they are.
//!
//! It sends nothing itself.

use super::value::Value;
use std::collections::VecDeque;
use std::rc::Rc;

/// Values up to this are copied, so that an answer is one `send`; larger ones are shared.
const COPIED_BYTES_MAX: usize = 4096;
/// What a shared value costs the one who waits for it.
const SHARED_BYTES: usize = size_of::<Piece>();

/// Memory that an empty outbox keeps.
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

/// Answers on their way to one client.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Before all pieces: most answers are nothing else.
    first: Vec<u8>,
    pieces: VecDeque<Piece>,
    /// How much was sent of what stands first.
    sent: usize,
    /// Bytes to send.
    unread: usize,
    /// Bytes of memory.
    held: usize,
}

impl Outbox {
    pub(super) const fn is_empty(&self) -> bool {
        self.unread == 0
    }

    /// Bytes that are still to be sent.
    pub(super) const fn unread(&self) -> usize {
        self.unread
    }

    /// Bytes of memory that it takes, shared values aside.
    pub(super) const fn held(&self) -> usize {
        self.held
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        let last = match self.pieces.back_mut() {
            None => &mut self.first,
            Some(Piece::Copied(last)) => last,
            Some(Piece::Shared(_)) => {
                self.pieces.push_back(Piece::Copied(bytes.to_vec()));
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

    /// A value as the protocol has it: its length and its bytes.
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

    /// What comes next.
    pub(super) fn front(&self) -> &[u8] {
        let piece = if self.first.is_empty() { self.pieces.front().map_or(&[][..], Piece::bytes) } else { &self.first };
        piece.get(self.sent..).unwrap_or_default()
    }

    /// So much of [`Outbox::front`] was sent.
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
                    Piece::Copied(bytes) => bytes.len(),
                    Piece::Shared(_) => SHARED_BYTES,
                });
            } else {
                self.held -= self.first.len();
                self.first = Vec::new();
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.first.clear(); // keeps its memory, if it is little: the server's own outbox is used again and again
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
