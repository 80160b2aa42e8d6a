//! Checks that a document written by people is UTF-8 text without a byte-order mark.
//!
//! This module parses no document.

use std::fmt;

/// Reason why bytes are not the text of a document. Its `Display` completes a sentence about the document, for
/// example `is empty`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotText {
    /// The document is empty or contains only white space.
    Empty,
    /// The document begins with a byte-order mark of the encoding that the field names, such as UTF-8.
    ByteOrderMark(&'static str),
    /// The document is not UTF-8.
    NotUtf8 {
        /// Offset of the first byte that is not UTF-8, in bytes from the start of the document, from 0.
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
            NotText::NotUtf8 { at } => write!(f, "is not UTF-8 text (byte {at}): save it as UTF-8"),
        }
    }
}

impl std::error::Error for NotText {}

/// Byte-order marks and their encodings; of two marks with a common beginning the longer one comes first.
const MARKS: [(&[u8], &str); 5] = [
    (b"\xef\xbb\xbf", "UTF-8"),
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
];

/// Returns the bytes of a document as text, if they are UTF-8 without a byte-order mark, and not empty. Without
/// this check, JSON and YAML parsers report a byte-order mark as an unexpected character, or take it as part of the
/// first word, and report an empty document as incomplete.
///
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use taskd_core::job::document_text;
///
/// assert_eq!(document_text(b"{}"), Ok("{}"));
/// let why = |bytes| document_text(bytes).unwrap_err().to_string();
/// assert_eq!(why(b" \n"), "is empty");
/// assert_eq!(why(b"\xef\xbb\xbf{}"), "begins with a byte-order mark of UTF-8: save it as UTF-8 without one");
/// ```
///
/// # Errors
/// Returns [`NotText`] if the bytes are empty, are not UTF-8, or begin with a byte-order mark.
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
    fn empty_documents_and_non_utf8_documents_have_distinct_errors() {
        for nothing in ["", " ", "\n\t\r\n"] {
            assert_eq!(document_text(nothing.as_bytes()), Err(NotText::Empty));
        }
        assert_eq!(document_text(b"a: 1\n\xff"), Err(NotText::NotUtf8 { at: 5 }));
        assert_eq!(document_text("é".as_bytes()), Ok("é"));
    }
}
