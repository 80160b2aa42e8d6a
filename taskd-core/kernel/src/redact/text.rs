//! Finds secrets in a text: after the name of a secret, and in the user part of a URL.
//!
//! It removes everything that a reader would consider a secret, and rather too much than too little, because removed
//! values are restored unchanged. It does not parse languages: values that a script computes, and values without a
//! name, are not found.

use super::{MARK, SecretNames};
use std::ops::Range;

/// A part of a text that is a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Found {
    /// Position of the secret in the text, in bytes.
    pub range: Range<usize>,
    /// Name that distinguishes the secret from others in the same text; empty for the whole value of a variable.
    pub place: String,
}

/// Beginning of a key in the format of RFC 7468.
const PEM_BEGIN: &[u8] = b"-----BEGIN ";

/// Maximum length of the part of a host that distinguishes URLs, in bytes.
const HOST_BYTES_MAX: usize = 100;

/// Finds the secrets in a variable's value, in order.
#[doc(hidden)]
pub fn in_variable(name: &str, value: &str, names: &SecretNames) -> Vec<Found> {
    if value.contains(MARK) || (names.cover(name) && !value.is_empty()) {
        return vec![Found { range: 0..value.len(), place: String::new() }];
    }
    if names.exempt(name) { Vec::new() } else { in_text(value, names) }
}

/// Finds the secrets in the arguments of a command line. Returns one list of secrets for each argument.
#[doc(hidden)]
pub fn in_arguments<S: AsRef<str>>(arguments: &[S], names: &SecretNames) -> Vec<Vec<Found>> {
    let mut option: Option<&str> = None;
    let mut all = Vec::with_capacity(arguments.len());
    for (number, argument) in arguments.iter().map(AsRef::as_ref).enumerate() {
        let whole = |place: &str| vec![Found { range: 0..argument.len(), place: place.to_owned() }];
        let is_option = argument.starts_with('-') && argument.bytes().all(is_of_a_name) && names.cover(argument);
        // A token may begin with a dash, if it can be distinguished from an option.
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

/// Finds the secrets in a text, in order.
pub(crate) fn in_text(text: &str, names: &SecretNames) -> Vec<Found> {
    // `--password=…`: everything after `=` is the value.
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
            () if bytes[at..].starts_with(br":\/\/") => user_of(text, at + 5), // JSON may escape slashes
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

/// Returns true for the password of a connection string (`Server=a;Pwd=x`): the variable for a directory is in upper
/// case.
fn is_password_of_a_connection(name: &str) -> bool {
    name != "PWD" && name.eq_ignore_ascii_case("pwd")
}

/// Returns the user part of the URL whose authority begins at `from`.
fn user_of(text: &str, from: usize) -> Option<Found> {
    let rest = text.get(from..)?;
    let ends = |c: char| matches!(c, '/' | '"' | '<' | '>' | '\\') || c.is_whitespace();
    let authority = rest.get(..rest.find(ends).unwrap_or(rest.len()))?;
    let (user, host) = authority.rsplit_once('@')?;
    // These characters are not allowed in a user part, but passwords contain them; before a password they end the host.
    let is_host = user.find(['?', '#']).is_some_and(|end| !user[..end].contains(':'));
    if user.is_empty() || is_host || user.split(':').all(is_looked_up) {
        return None;
    }
    let host: String = host.chars().take(HOST_BYTES_MAX).collect();
    Some(Found { range: from..from + user.len(), place: format!("@{host}") })
}

/// Returns true if a shell expands or executes this text (`$NAME`, `${NAME}`, `$(…)`): it is not a value yet.
fn is_looked_up(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('$') else { return false };
    let is_of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'{' | b'}');
    rest.starts_with('(') || rest.bytes().all(is_of_a_name)
}

/// Returns the content of a private key in the format of RFC 7468 that begins at `from`, up to its end.
fn private_key_of(text: &str, from: usize) -> Option<Found> {
    let rest = text.get(from + PEM_BEGIN.len()..)?;
    let label = rest.get(..rest.find("-----")?)?.trim();
    let start = text.len() - rest.len() + rest.find("-----")? + "-----".len();
    let length = text.get(start..)?.find("-----END").unwrap_or(text.len() - start);
    let is_one = label.ends_with("PRIVATE KEY") && length > 0;
    is_one.then(|| Found { range: start..start + length, place: label.replace(' ', "_") })
}

/// The context of a value, which determines its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A command line, or an assignment in a shell or another language.
    Word,
    /// A header line or a document, after a colon.
    Document,
}

/// Returns the value after a name that ends at `end`, if there is one.
fn value_behind(bytes: &[u8], end: usize, name: &str) -> Option<Range<usize>> {
    let (from, form) = value_begins(bytes, end, name)?;
    let quote = quote_at(bytes, from).unwrap_or_default();
    let is_triple = quote.len() == 1 && bytes[from..].starts_with(&quote.repeat(3));
    let quote = if is_triple { &bytes[from..from + 3] } else { quote };
    let start = from + quote.len();
    let rest = bytes.get(start..)?;
    let range = match rest.first() {
        _ if !quote.is_empty() => start..start + quoted(rest, quote, form),
        Some(b'[' | b'{') => start..start + bracketed(rest),
        Some(b'\r' | b'\n' | b'|' | b'>' | b'#' | b'!') if form == Form::Document => {
            block_behind(bytes, end - name.len(), start)?
        }
        _ if form == Form::Word => start..start + word(rest),
        _ => {
            let line = start + rest.iter().position(|byte| form.ends(*byte)).unwrap_or(rest.len());
            let goes_on = matches!(bytes.get(line), Some(b'\r' | b'\n'));
            let block = block_behind(bytes, end - name.len(), start).filter(|block| goes_on && !block.is_empty());
            start..block.map_or(line, |block| block.end)
        }
    };
    let value = std::str::from_utf8(bytes.get(range.clone())?).ok()?;
    let is_looked_up = form == Form::Word && (value.starts_with("${") || is_looked_up(value));
    (!range.is_empty() && !is_looked_up).then_some(range)
}

/// Returns the start of the value after a name that ends at `end`, including its quotation mark, and its context.
fn value_begins(bytes: &[u8], end: usize, name: &str) -> Option<(usize, Form)> {
    let is = |at: usize, byte: u8| bytes.get(at) == Some(&byte);
    let behind_blanks = |from: usize| {
        let mut at = from;
        while is(at, b' ') || is(at, b'\t') || (is(at, b'\\') && is(at + 1, b'\n')) {
            at += 1 + usize::from(is(at, b'\\')); // a shell continues on the next line
        }
        at
    };
    let close = end + quote_at(bytes, end).map_or(0, <[u8]>::len); // "api_key": …
    let close = close + usize::from(close > end && is(close, b']')); // environ["API_KEY"] = …
    let sign = behind_blanks(close);
    let sign = sign + usize::from(is(sign, b'+') && is(sign + 1, b'='));
    let (from, form) = match bytes.get(sign)? {
        b'=' if is(sign + 1, b'=') => return None,
        b'=' if is(sign + 1, b'>') => (behind_blanks(sign + 2), Form::Word), // as in Ruby and Perl
        b'=' if sign > close => (behind_blanks(sign + 1), Form::Word),
        b'=' => (sign + 1, Form::Word),
        b':' if is(sign + 1, b'/') => return None,
        b':' => match behind_annotation(bytes, sign + 1) {
            Some(from) => (from, Form::Word),
            None => (behind_blanks(sign + 1), Form::Document),
        },
        _ if sign > end && close == end && name.starts_with('-') && !is(sign, b'-') => (sign, Form::Word),
        _ => return None,
    };
    let is_prefix = |byte: &&u8| matches!(byte.to_ascii_lowercase(), b'f' | b'r' | b'b' | b'u' | b'$');
    let letters = bytes.iter().skip(from).take_while(is_prefix).count(); // Python's f"…", a shell's $'…'
    let is_quoted = letters <= 2 && quote_at(bytes, from + letters).is_some();
    Some((if is_quoted { from + letters } else { from }, form))
}

/// Returns the quotation mark at `at`, with the backslashes before it that a JSON string contains.
fn quote_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    let slashes = rest.iter().take_while(|byte| **byte == b'\\').count();
    matches!(rest.get(slashes)?, b'"' | b'\'').then(|| &rest[..=slashes])
}

/// Returns the start of the value in `password: str = "…"`, after the type annotation between name and value.
fn behind_annotation(bytes: &[u8], from: usize) -> Option<usize> {
    let is_type =
        |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b' ' | b'[' | b']' | b'|' | b'&');
    let sign = from + bytes.get(from..)?.iter().take_while(|byte| is_type(byte)).count();
    let blanks = bytes.get(sign + 1..)?.iter().take_while(|byte| **byte == b' ').count();
    let value = sign + 1 + blanks;
    (bytes.get(sign) == Some(&b'=') && quote_at(bytes, value).is_some()).then_some(value)
}

/// Returns the length of a quoted value, including text that a shell joins to it: `x"y"z` is one word.
fn quoted(rest: &[u8], quote: &[u8], form: Form) -> usize {
    let length = up_to_quote(rest, quote);
    let behind = length + quote.len();
    match rest.get(behind) {
        Some(byte) if form == Form::Word && quote.len() == 1 && (byte.is_ascii_alphanumeric() || *byte == b'\\') => {
            behind + word(&rest[behind..])
        }
        _ => length,
    }
}

/// Returns the length of a word, including its quoted parts and escaped characters.
fn word(rest: &[u8]) -> usize {
    let mut at = 0;
    while let Some(byte) = rest.get(at) {
        at += match byte {
            b'\\' if at + 1 < rest.len() && rest[at + 1] != b'\n' && quote_at(rest, at).is_none() => 2,
            b'"' | b'\'' if at > 0 => {
                let behind = rest.get(at + 1..).unwrap_or_default();
                let length = up_to_quote(behind, &[*byte]);
                let is_joined = length < behind.len() && !behind[..length].contains(&b'\n');
                if !is_joined {
                    return at;
                }
                length + 2
            }
            byte if Form::Word.ends(*byte) => return at,
            _ => 1,
        };
    }
    rest.len()
}

/// Returns the length of a quoted value: a quotation mark with another number of backslashes is part of the value.
fn up_to_quote(rest: &[u8], quote: &[u8]) -> usize {
    let is_end = |at: usize| rest[at..].starts_with(quote) && (at == 0 || rest[at - 1] != b'\\');
    (0..rest.len()).find(|at| is_end(*at)).unwrap_or(rest.len())
}

/// Returns the length of a list or an object with its brackets; brackets within strings do not count.
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

/// Returns the lines below a name that belong to it, as in YAML: lines with more indentation, and lines of a list.
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
    /// Returns true if an unquoted value ends at this byte.
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
