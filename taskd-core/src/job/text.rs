//! The text of a document that people write: whether there is one, and what a program of theirs has put before it.
//!
//! It reads no document.

use std::fmt;

/// Why bytes are the text of no document. Shown as what is said of the document: `is empty`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotText {
    /// There is nothing in it but white space.
    Empty,
    /// It begins with a byte-order mark, of this encoding.
    ByteOrderMark(&'static str),
    /// It is not UTF-8.
    NotUtf8 {
        /// The first byte that is none, from 0.
        at: usize,
    },
}

impl fmt::Display for NotText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotText::Empty => f.write_str("is empty"),
            NotText::ByteOrderMark(of) => {
                write!(f, "begins with a byte-order mark of {of}: save it as UTF-8 without one")
            }
            NotText::NotUtf8 { at } => write!(f, "is no text in UTF-8 (byte {at}): save it as UTF-8"),
        }
    }
}

impl std::error::Error for NotText {}

/// Byte-order marks; of two that begin alike the longer one stands first.
const MARKS: [(&[u8], &str); 5] = [
    (b"\xef\xbb\xbf", "UTF-8"),
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
];

/// The text of a document. Readers of JSON and YAML call a byte-order mark an unexpected character, or take it for a part of the
/// first word; of an empty document they say that something is missing.
///
/// ```
/// use taskd_core::job::document_text;
///
/// assert_eq!(document_text(b"{}"), Ok("{}"));
/// let why = |bytes| document_text(bytes).unwrap_err().to_string();
/// assert_eq!(why(b" \n"), "is empty");
/// assert_eq!(why(b"\xef\xbb\xbf{}"), "begins with a byte-order mark of UTF-8: save it as UTF-8 without one");
/// ```
///
/// # Errors
/// [`NotText`]: why there is none.
pub fn document_text(bytes: &[u8]) -> Result<&str, NotText> {
    if let Some((_, of)) = MARKS.iter().find(|(mark, _)| bytes.starts_with(mark)) {
        return Err(NotText::ByteOrderMark(of));
    }
    let text = str::from_utf8(bytes).map_err(|error| NotText::NotUtf8 { at: error.valid_up_to() })?;
    if text.trim().is_empty() { Err(NotText::Empty) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_known_by_the_encoding_that_they_are_of() {
        let utf16 = |text: &str| -> Vec<u8> { text.encode_utf16().flat_map(u16::to_le_bytes).collect() };
        for (bytes, of) in [
            ("\u{feff}{}".as_bytes().to_vec(), "UTF-8"),
            (utf16("\u{feff}{}"), "UTF-16"),
            (vec![0xfe, 0xff, 0, b'{'], "UTF-16"),
            (vec![0xff, 0xfe, 0, 0, b'{', 0, 0, 0], "UTF-32"),
            (vec![0, 0, 0xfe, 0xff, 0, 0, 0, b'{'], "UTF-32"),
        ] {
            assert_eq!(document_text(&bytes), Err(NotText::ByteOrderMark(of)));
        }
    }

    #[test]
    fn nothing_and_what_is_no_text_is_told_apart() {
        for nothing in ["", " ", "\n\t\r\n"] {
            assert_eq!(document_text(nothing.as_bytes()), Err(NotText::Empty));
        }
        assert_eq!(document_text(b"a: 1\n\xff"), Err(NotText::NotUtf8 { at: 5 }));
        assert_eq!(document_text("é".as_bytes()), Ok("é"));
    }
}
