//! Encoding of protocol buffers, as far as a trace needs it.
//!
//! `packets` defines the field numbers of the messages.

use std::iter;

/// Wire types of fields.
const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const LENGTH: u64 = 2;

/// Encoded fields, concatenated.
#[derive(Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// Adds an integer, a flag or a value of an enumeration.
    pub(super) fn number(&mut self, field: u32, value: u64) {
        self.tag(field, VARINT);
        self.0.extend(varint(value));
    }

    /// Adds a floating-point number.
    pub(super) fn double(&mut self, field: u32, value: f64) {
        self.tag(field, FIXED_64);
        self.0.extend(value.to_le_bytes());
    }

    /// Adds a string.
    pub(super) fn text(&mut self, field: u32, value: &str) {
        self.tag(field, LENGTH);
        self.0.extend(varint(value.len() as u64));
        self.0.extend(value.as_bytes());
    }

    /// Adds a nested message.
    pub(super) fn message(&mut self, field: u32, fill: impl FnOnce(&mut Message)) {
        self.tag(field, LENGTH);
        let start = self.0.len();
        fill(self);
        let length = varint((self.0.len() - start) as u64);
        self.0.splice(start..start, length);
    }

    /// Removes and returns all encoded bytes.
    pub(super) fn drain(&mut self) -> impl AsRef<[u8]> {
        self.0.drain(..)
    }

    fn tag(&mut self, field: u32, wire_type: u64) {
        self.0.extend(varint(u64::from(field) << 3 | wire_type));
    }
}

/// Encodes a varint: seven bits per byte, lowest first, the eighth bit set in all but the last.
fn varint(value: u64) -> impl Iterator<Item = u8> {
    iter::successors(Some(value), |rest| Some(rest >> 7).filter(|more| *more > 0))
        .map(|rest| (rest & 0x7f) as u8 | if rest > 0x7f { 0x80 } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the protocol-buffer documentation, and the largest integer.
    #[test]
    fn fields_are_encoded_as_in_the_protobuf_documentation() {
        let mut message = Message::default();
        message.number(1, 150);
        message.text(2, "testing");
        message.message(3, |inner| inner.number(1, 150));
        message.number(4, u64::MAX);
        message.double(5, 1.0);
        let expected = [
            &[0x08, 0x96, 0x01][..],
            &[0x12, 0x07, b't', b'e', b's', b't', b'i', b'n', b'g'],
            &[0x1a, 0x03, 0x08, 0x96, 0x01],
            &[0x20, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            &[0x29, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f],
        ];
        assert_eq!(message.drain().as_ref(), expected.concat());
        assert_eq!(message.drain().as_ref(), [0; 0]);
    }

    #[test]
    fn a_long_message_in_a_message_gets_a_long_length() {
        let mut message = Message::default();
        message.message(1, |inner| inner.text(2, &"x".repeat(300)));
        let bytes = message.drain().as_ref().to_vec();
        assert_eq!(bytes[..6], [0x0a, 0xaf, 0x02, 0x12, 0xac, 0x02]);
        assert_eq!(bytes.len(), 6 + 300);
    }
}
