//! Scans JSON values in a slice that may end before the value does. Nothing is copied, allocated or checked for UTF-8,
//! and nesting costs no stack.
//!
//! The scan is lenient: a skipped value only has to be delimited correctly.

use std::borrow::Cow;

/// Reason for which a scan stopped before the end of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The slice ends within the value.
    End,
    /// The slice is not JSON at this offset.
    NotJson(usize),
}

/// A JSON string without its quotes, as it is in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Text<'a> {
    /// The bytes between the quotes.
    pub(super) raw: &'a [u8],
    /// True if the bytes contain an escape sequence.
    pub(super) is_escaped: bool,
}

impl<'a> Text<'a> {
    /// Returns the characters of the string. Bytes that are not UTF-8 and invalid escapes become U+FFFD.
    pub(super) fn decode(self) -> Cow<'a, str> {
        if self.is_escaped { Cow::Owned(unescape(self.raw)) } else { String::from_utf8_lossy(self.raw) }
    }

    /// Returns the bytes of the string with its escapes replaced. Other bytes are not checked.
    #[inline]
    pub(super) fn bytes(self) -> Cow<'a, [u8]> {
        if self.is_escaped { Cow::Owned(unescape(self.raw).into_bytes()) } else { Cow::Borrowed(self.raw) }
    }
}

fn unescape(raw: &[u8]) -> String {
    let text = String::from_utf8_lossy(raw);
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_ref();
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let mut characters = after.chars();
        match characters.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some('b') => out.push('\u{8}'),
            Some('f') => out.push('\u{c}'),
            Some('u') => {
                let (character, length) = unicode(characters.as_str());
                out.push(character);
                rest = after.get(1 + length..).unwrap_or_default();
                continue;
            }
            Some(other) => out.push(other),
            None => out.push(char::REPLACEMENT_CHARACTER),
        }
        rest = characters.as_str();
    }
    out.push_str(rest);
    out
}

/// Decodes the digits after `\u`, and a second escape if the first one is half of a surrogate pair. Returns the
/// character and the number of bytes used.
fn unicode(text: &str) -> (char, usize) {
    let digits = |at: usize| text.get(at..at + 4).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    let Some(first) = digits(0) else {
        return (char::REPLACEMENT_CHARACTER, 0);
    };
    if (0xd800..0xdc00).contains(&first)
        && text.get(4..6) == Some("\\u")
        && let Some(second) = digits(6).filter(|second| (0xdc00..0xe000).contains(second))
    {
        let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        return (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 10);
    }
    (char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER), 4)
}

/// Position in a slice.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

/// Classes of the bytes that matter outside of strings.
const OTHER: u8 = 0;
const OPEN: u8 = 1;
const CLOSE: u8 = 2;
const QUOTE: u8 = 3;
/// Ends a number or a literal.
const AFTER: u8 = 4;

const CLASSES: [u8; 256] = {
    let mut classes = [OTHER; 256];
    classes[b'{' as usize] = OPEN;
    classes[b'[' as usize] = OPEN;
    classes[b'}' as usize] = CLOSE;
    classes[b']' as usize] = CLOSE;
    classes[b'"' as usize] = QUOTE;
    classes[b',' as usize] = AFTER;
    classes[b':' as usize] = AFTER;
    classes[b' ' as usize] = AFTER;
    classes[b'\n' as usize] = AFTER;
    classes[b'\r' as usize] = AFTER;
    classes[b'\t' as usize] = AFTER;
    classes
};

/// Strings up to this length are searched eight bytes at a time; the search routine for longer ones has to be called.
const SHORT: usize = 32;

impl<'a> Cursor<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Skips white space, and returns the byte after it without consuming it.
    #[inline]
    pub(super) fn peek(&mut self) -> Result<u8, Stop> {
        loop {
            match self.bytes.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                Some(byte) => return Ok(*byte),
                None => return Err(Stop::End),
            }
        }
    }

    /// Skips white space, and consumes the byte after it, which has to be this one.
    #[inline]
    pub(super) fn expect(&mut self, byte: u8) -> Result<(), Stop> {
        if self.peek()? != byte {
            return Err(Stop::NotJson(self.at));
        }
        self.at += 1;
        Ok(())
    }

    /// Consumes the byte if it is the next one after white space.
    #[inline]
    pub(super) fn take(&mut self, byte: u8) -> Result<bool, Stop> {
        let is_next = self.peek()? == byte;
        self.at += usize::from(is_next);
        Ok(is_next)
    }

    /// Consumes a string.
    #[inline]
    pub(super) fn string(&mut self) -> Result<Text<'a>, Stop> {
        self.expect(b'"')?;
        let start = self.at;
        let mut is_escaped = false;
        loop {
            let found = self.quote_or_backslash()?;
            if self.bytes[found] == b'"' {
                self.at = found + 1;
                return Ok(Text { raw: &self.bytes[start..found], is_escaped });
            }
            is_escaped = true;
            self.at = found + 2; // the byte after a backslash is never the end of the string
        }
    }

    /// Returns the offset of the next quote or backslash.
    #[inline]
    fn quote_or_backslash(&self) -> Result<usize, Stop> {
        const LOW: u64 = 0x0101_0101_0101_0101;
        const HIGH: u64 = 0x8080_8080_8080_8080;
        let mut at = self.at;
        while at < self.at + SHORT {
            let Some(word) = self.bytes.get(at..at + 8).and_then(|word| word.try_into().ok()) else { break };
            let word = u64::from_le_bytes(word);
            // The lowest set bit of each term marks the first zero byte, as published by Mycroft in 1987.
            let quotes = word ^ (LOW * b'"' as u64);
            let backslashes = word ^ (LOW * b'\\' as u64);
            let found = (quotes.wrapping_sub(LOW) & !quotes | backslashes.wrapping_sub(LOW) & !backslashes) & HIGH;
            if found != 0 {
                return Ok(at + found.trailing_zeros() as usize / 8);
            }
            at += 8;
        }
        let rest = self.bytes.get(at..).ok_or(Stop::End)?;
        memchr::memchr2(b'"', b'\\', rest).map(|found| at + found).ok_or(Stop::End)
    }

    /// Consumes the key of an object's member and the colon.
    #[inline]
    pub(super) fn key(&mut self) -> Result<Text<'a>, Stop> {
        let key = self.string()?;
        self.expect(b':')?;
        Ok(key)
    }

    /// Consumes a value. Returns the bytes of a number, of `true` or `false`, or between the quotes of a string; `None`
    /// for `null`, an object or an array.
    #[inline]
    pub(super) fn scalar(&mut self) -> Result<Option<&'a [u8]>, Stop> {
        match self.peek()? {
            b'"' => Ok(Some(self.string()?.raw)),
            b'{' | b'[' => self.skip_nested().map(|()| None),
            _ => {
                let value = self.bare()?;
                Ok((value != b"null").then_some(value))
            }
        }
    }

    /// Consumes a value of any kind, and returns its bytes.
    #[inline]
    pub(super) fn value(&mut self) -> Result<&'a [u8], Stop> {
        let first = self.peek()?;
        let start = self.at;
        match first {
            b'"' => drop(self.string()?),
            b'{' | b'[' => self.skip_nested()?,
            _ => drop(self.bare()?),
        }
        Ok(&self.bytes[start..self.at])
    }

    /// Consumes a number or a literal.
    #[inline]
    fn bare(&mut self) -> Result<&'a [u8], Stop> {
        let start = self.at;
        let rest = self.bytes.get(start..).ok_or(Stop::End)?;
        let length = rest.iter().position(|byte| CLASSES[usize::from(*byte)] != OTHER).ok_or(Stop::End)?;
        if length == 0 {
            return Err(Stop::NotJson(start));
        }
        self.at = start + length;
        Ok(&rest[..length])
    }

    /// Consumes an object or an array.
    #[inline]
    fn skip_nested(&mut self) -> Result<(), Stop> {
        let mut depth = 0_usize;
        loop {
            let byte = *self.bytes.get(self.at).ok_or(Stop::End)?;
            match CLASSES[usize::from(byte)] {
                QUOTE => {
                    self.string()?;
                    continue;
                }
                OPEN => depth += 1,
                CLOSE if depth <= 1 => {
                    self.at += 1;
                    return Ok(());
                }
                CLOSE => depth -= 1,
                _ => {}
            }
            self.at += 1;
        }
    }

    /// Consumes the comma before the next member of an object or array, or the bracket that closes it. Returns true for
    /// a comma.
    #[inline]
    pub(super) fn has_more(&mut self, close: u8) -> Result<bool, Stop> {
        match self.peek()? {
            b',' => {
                self.at += 1;
                Ok(true)
            }
            byte if byte == close => {
                self.at += 1;
                Ok(false)
            }
            _ => Err(Stop::NotJson(self.at)),
        }
    }
}
