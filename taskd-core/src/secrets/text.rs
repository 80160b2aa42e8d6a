//! Where secrets stand in a text: behind a name that is one of a secret's, and in the user part of a URL.
//!
//! It takes what a reader would take for a secret, and rather more than less: what is found is put back unchanged. It cannot read a
//! language: what a script computes, and what has no name, is not found.

use super::{MARK, SecretNames};
use std::ops::Range;

/// A part of a text that is a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) range: Range<usize>,
    /// What tells it from others in the text; empty for the whole of a variable.
    pub(super) place: String,
}

/// Most bytes of a host that tell one URL from another.
const HOST_BYTES_MAX: usize = 100;

/// The secrets in a variable's value, in order.
pub(super) fn in_variable(name: &str, value: &str, names: &SecretNames) -> Vec<Found> {
    if value.contains(MARK) || (names.cover(name) && !value.is_empty()) {
        return vec![Found { range: 0..value.len(), place: String::new() }];
    }
    if names.exempt(name) { Vec::new() } else { in_text(value, names) }
}

/// The secrets in each of these arguments.
pub(super) fn in_arguments<S: AsRef<str>>(arguments: &[S], names: &SecretNames) -> Vec<Vec<Found>> {
    let mut option: Option<&str> = None;
    let mut all = Vec::with_capacity(arguments.len());
    for (number, argument) in arguments.iter().map(AsRef::as_ref).enumerate() {
        let whole = |place: &str| vec![Found { range: 0..argument.len(), place: place.to_owned() }];
        all.push(match option.filter(|_| !argument.starts_with('-') && !argument.is_empty()) {
            _ if argument.contains(MARK) => whole(&format!("argument {number}")),
            Some(option) => whole(option),
            None => in_text(argument, names),
        });
        let is_option = argument.starts_with('-') && argument.bytes().all(is_of_a_name) && names.cover(argument);
        option = is_option.then_some(argument);
    }
    all
}

/// The secrets in a text, in order.
fn in_text(text: &str, names: &SecretNames) -> Vec<Found> {
    // `--password=…`: whatever stands behind it is the value.
    if let Some((name, value)) = text.split_once('=')
        && !value.is_empty()
        && name.bytes().all(|byte| is_of_a_name(byte) || byte == b'+')
        && names.cover(name)
    {
        return vec![Found { range: name.len() + 1..text.len(), place: name.to_owned() }];
    }
    let bytes = text.as_bytes();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let end = at + bytes[at..].iter().take_while(|byte| is_of_a_name(**byte)).count();
        let name = text.get(at..end).unwrap_or_default();
        let here = match () {
            () if bytes[at..].starts_with(b"://") => user_of(text, at + 3),
            () if !name.is_empty() && names.cover(name) => {
                value_behind(bytes, end, name).map(|range| Found { range, place: name.to_owned() })
            }
            () => None,
        };
        at = here.as_ref().map_or(end.max(at + 1), |found| found.range.end);
        found.extend(here);
    }
    found
}

const fn is_of_a_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}

/// Who logs in at the URL whose authority begins here.
fn user_of(text: &str, from: usize) -> Option<Found> {
    let rest = text.get(from..)?;
    let ends = |c: char| matches!(c, '/' | '?' | '#' | '"' | '\'' | '<' | '>' | '\\') || c.is_whitespace();
    let authority = rest.get(..rest.find(ends).unwrap_or(rest.len()))?;
    let (user, host) = authority.rsplit_once('@')?;
    if user.is_empty() || user.starts_with('$') {
        return None;
    }
    let host: String = host.chars().take(HOST_BYTES_MAX).collect();
    Some(Found { range: from..from + user.len(), place: format!("@{host}") })
}

/// The value that stands behind a name that ends here, if one does.
fn value_behind(bytes: &[u8], end: usize, name: &str) -> Option<Range<usize>> {
    let blanks = |from: usize| bytes.iter().skip(from).take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let is = |at: usize, byte: u8| bytes.get(at) == Some(&byte);
    let close = end + usize::from(is(end, b'"') || is(end, b'\'')); // "api_key": …
    let sign = close + blanks(close);
    let (from, ends): (usize, fn(u8) -> bool) = match bytes.get(sign)? {
        b'=' if is(sign + 1, b'=') => return None,
        b'=' if sign > close => (sign + 1 + blanks(sign + 1), ends_word),
        b'=' => (sign + 1, ends_word),
        b':' if is(sign + 1, b'/') => return None,
        b':' => (sign + 1 + blanks(sign + 1), ends_line),
        _ if sign > end && close == end && name.starts_with('-') && !is(sign, b'-') => (sign, ends_word),
        _ => return None,
    };
    let quote = bytes.get(from).copied().filter(|byte| matches!(byte, b'"' | b'\''));
    let start = from + usize::from(quote.is_some());
    let rest = bytes.get(start..)?;
    let length = match quote {
        Some(quote) => (0..rest.len()).find(|at| rest[*at] == quote && (*at == 0 || rest[at - 1] != b'\\')),
        None => rest.iter().position(|byte| ends(*byte)),
    };
    let range = start..start + length.unwrap_or(rest.len());
    (!range.is_empty() && !is(start, b'$')).then_some(range) // what a shell looks up is no value yet
}

/// Whether an unquoted word of a shell ends here.
const fn ends_word(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, b';' | b'&' | b'|' | b'(' | b')' | b'<' | b'>' | b'`' | b'"' | b'\'')
}

/// Whether the value behind a colon ends here, of a header line or a document.
const fn ends_line(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r' | b'"' | b'\'' | b',' | b'}' | b']')
}
