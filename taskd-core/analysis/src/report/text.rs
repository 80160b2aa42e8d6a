//! Text of documents in HTML, SVG and on a terminal.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// Returns the text with the characters escaped that have a meaning in HTML, SVG and their attributes. Control characters,
/// which XML forbids, and other characters that are not seen become spaces.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' => escaped.push('\n'),
            hidden if is_hidden(hidden) => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Returns JSON that may stand in a script element: without `<`, so that neither `</script` nor `<!--` ends or changes the
/// element, and without the line separators that older scripts treat as ends of lines. All are in strings only.
pub(super) fn script_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find(['<', '\u{2028}', '\u{2029}']) {
        let (before, from) = rest.split_at(at);
        safe.push_str(before);
        let mut characters = from.chars();
        match characters.next() {
            Some('<') => safe.push_str("\\u003c"),
            Some('\u{2028}') => safe.push_str("\\u2028"),
            _ => safe.push_str("\\u2029"),
        }
        rest = characters.as_str();
    }
    safe.push_str(rest);
    safe
}

/// Hash of an inline element for a content security policy.
pub(super) fn content_hash(content: &str) -> String {
    STANDARD.encode(Sha256::digest(content.as_bytes()))
}

/// Returns the text in one line without control characters, so that a name cannot move a terminal's cursor or set its colour.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|character| if is_hidden(character) { ' ' } else { character }).collect()
}

/// Returns true for control characters, line and paragraph separators, and characters that change the direction of the
/// text around them.
fn is_hidden(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Microseconds as milliseconds with three decimals: exactly the figure of the document.
pub(super) fn milliseconds(us: f64) -> String {
    format!("{:.3} ms", us / 1000.0)
}

/// A number without digits that carry nothing.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}
