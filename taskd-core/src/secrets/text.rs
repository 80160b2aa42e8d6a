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

/// How a key in the form of RFC 7468 begins.
const PEM_BEGIN: &[u8] = b"-----BEGIN ";

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
        let is_option = argument.starts_with('-') && argument.bytes().all(is_of_a_name) && names.cover(argument);
        // A token may begin with a dash, as long as it can be told from an option.
        let is_value = !argument.is_empty() && !argument.starts_with("--") && !is_option;
        all.push(match option.filter(|_| is_value) {
            _ if argument.contains(MARK) => whole(&format!("argument {number}")),
            Some(option) => whole(option),
            None => in_text(argument, names),
        });
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
            () if bytes[at..].starts_with(br":\/\/") => user_of(text, at + 5), // as JSON may have it
            () if bytes[at..].starts_with(PEM_BEGIN) => private_key_of(text, at),
            () if !name.is_empty() && (names.cover(name) || is_password_of_a_connection(name)) => {
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

/// Whether this is the password of a connection string (`Server=a;Pwd=x`): the variable that names a directory has capitals.
fn is_password_of_a_connection(name: &str) -> bool {
    name != "PWD" && name.eq_ignore_ascii_case("pwd")
}

/// Who logs in at the URL whose authority begins here.
fn user_of(text: &str, from: usize) -> Option<Found> {
    let rest = text.get(from..)?;
    let ends = |c: char| matches!(c, '/' | '"' | '<' | '>' | '\\') || c.is_whitespace();
    let authority = rest.get(..rest.find(ends).unwrap_or(rest.len()))?;
    let (user, host) = authority.rsplit_once('@')?;
    // These belong into no user part, but people have them in passwords; before a password they end what is the host.
    let is_host = user.find(['?', '#']).is_some_and(|end| !user[..end].contains(':'));
    if user.is_empty() || is_host || user.split(':').all(is_looked_up) {
        return None;
    }
    let host: String = host.chars().take(HOST_BYTES_MAX).collect();
    Some(Found { range: from..from + user.len(), place: format!("@{host}") })
}

/// Whether a shell looks this up or runs it (`$NAME`, `${NAME}`, `$(…)`): it is no value yet.
fn is_looked_up(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('$') else { return false };
    let is_of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'{' | b'}');
    rest.starts_with('(') || rest.bytes().all(is_of_a_name)
}

/// The content of a private key in the form of RFC 7468 that begins here, up to its end.
fn private_key_of(text: &str, from: usize) -> Option<Found> {
    let rest = text.get(from + PEM_BEGIN.len()..)?;
    let label = rest.get(..rest.find("-----")?)?.trim();
    let start = text.len() - rest.len() + rest.find("-----")? + "-----".len();
    let length = text.get(start..)?.find("-----END").unwrap_or(text.len() - start);
    let is_one = label.ends_with("PRIVATE KEY") && length > 0;
    is_one.then(|| Found { range: start..start + length, place: label.replace(' ', "_") })
}

/// What a value stands in, which decides where it ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A command line, a shell's or another language's assignment.
    Word,
    /// A header line or a document, behind a colon.
    Document,
}

/// The value that stands behind a name that ends here, if one does.
fn value_behind(bytes: &[u8], end: usize, name: &str) -> Option<Range<usize>> {
    let (from, form) = value_begins(bytes, end, name)?;
    let quote = quote_at(bytes, from).unwrap_or_default();
    let is_triple = quote.len() == 1 && bytes[from..].starts_with(&quote.repeat(3));
    let quote = if is_triple { &bytes[from..from + 3] } else { quote };
    let start = from + quote.len();
    let rest = bytes.get(start..)?;
    let range = match rest.first() {
        _ if !quote.is_empty() => start..start + up_to_quote(rest, quote),
        Some(b'[' | b'{') => start..start + bracketed(rest),
        Some(b'\n' | b'|' | b'>') if form == Form::Document => block_behind(bytes, end - name.len(), start)?,
        _ => start..start + rest.iter().position(|byte| form.ends(*byte)).unwrap_or(rest.len()),
    };
    let value = std::str::from_utf8(bytes.get(range.clone())?).ok()?;
    let is_looked_up = form == Form::Word && (value.starts_with("${") || is_looked_up(value));
    (!range.is_empty() && !is_looked_up).then_some(range)
}

/// Where the value of a name that ends here begins, with its quotation mark, and in what it stands.
fn value_begins(bytes: &[u8], end: usize, name: &str) -> Option<(usize, Form)> {
    let is = |at: usize, byte: u8| bytes.get(at) == Some(&byte);
    let behind_blanks = |from: usize| {
        let mut at = from;
        while is(at, b' ') || is(at, b'\t') || (is(at, b'\\') && is(at + 1, b'\n')) {
            at += 1 + usize::from(is(at, b'\\')); // a shell goes on in the next line
        }
        at
    };
    let close = end + quote_at(bytes, end).map_or(0, <[u8]>::len); // "api_key": …
    let close = close + usize::from(close > end && is(close, b']')); // environ["API_KEY"] = …
    let sign = behind_blanks(close);
    let sign = sign + usize::from(is(sign, b'+') && is(sign + 1, b'='));
    let (from, form) = match bytes.get(sign)? {
        b'=' if is(sign + 1, b'=') => return None,
        b'=' if sign > close => (behind_blanks(sign + 1), Form::Word),
        b'=' => (sign + 1, Form::Word),
        b':' if is(sign + 1, b'/') => return None,
        b':' => (behind_blanks(sign + 1), Form::Document),
        _ if sign > end && close == end && name.starts_with('-') && !is(sign, b'-') => (sign, Form::Word),
        _ => return None,
    };
    let is_prefix = |byte: &&u8| matches!(byte.to_ascii_lowercase(), b'f' | b'r' | b'b' | b'u');
    let letters = bytes.iter().skip(from).take_while(is_prefix).count(); // Python's f"…"
    let is_quoted = letters <= 2 && quote_at(bytes, from + letters).is_some();
    Some((if is_quoted { from + letters } else { from }, form))
}

/// The quotation mark here: within a string of JSON with backslashes before it.
fn quote_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    let slashes = rest.iter().take_while(|byte| **byte == b'\\').count();
    matches!(rest.get(slashes)?, b'"' | b'\'').then(|| &rest[..=slashes])
}

/// How long a quoted value is: one with another number of backslashes before it is a part of the value.
fn up_to_quote(rest: &[u8], quote: &[u8]) -> usize {
    let is_end = |at: usize| rest[at..].starts_with(quote) && (at == 0 || rest[at - 1] != b'\\');
    (0..rest.len()).find(|at| is_end(*at)).unwrap_or(rest.len())
}

/// How long a list or an object is, its brackets included; those within strings do not count.
fn bracketed(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        match rest[at] {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth -= 1,
            b'"' => at += 1 + up_to_quote(&rest[at + 1..], b"\""),
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// The lines below a name that belong to it, as in YAML: those that are further in, and those of a list.
fn block_behind(bytes: &[u8], name: usize, from: usize) -> Option<Range<usize>> {
    let end_of_line =
        |from: usize| bytes[from..].iter().position(|byte| *byte == b'\n').map(|length| from + length + 1);
    let indent = |from: usize| bytes[from..].iter().take_while(|byte| **byte == b' ').count();
    let own = bytes[..name].iter().rev().take_while(|byte| **byte == b' ').count();
    let start = end_of_line(from)?;
    let mut end = start;
    while end < bytes.len() {
        let first = bytes.get(end + indent(end)).copied();
        let belongs =
            indent(end) > own || matches!(first, Some(b'\n') | None) || (indent(end) == own && first == Some(b'-'));
        if !belongs {
            break;
        }
        end = end_of_line(end).unwrap_or(bytes.len());
    }
    Some(start..end)
}

impl Form {
    /// Whether an unquoted value ends here.
    const fn ends(self, byte: u8) -> bool {
        let ends_word =
            byte.is_ascii_whitespace() || matches!(byte, b';' | b'|' | b'(' | b')' | b'<' | b'>' | b'`' | b'"' | b'\'');
        let ends_line = matches!(byte, b'\n' | b'\r' | b'"' | b'\'' | b'}' | b']');
        match self {
            Form::Word => ends_word,
            Form::Document => ends_line,
        }
    }
}
