//! Makes foreign text safe for reports, logs and terminals: output of programs, messages of peers, files, the kernel's
//! log.
//!
//! Readable text is never changed, and no function fails.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Maximum length of an escape sequence that is removed as a whole, in characters. A longer one is not treated as a
/// sequence.
const SEQUENCE_CHARS_MAX: usize = 2048;

/// Removes or escapes everything that a terminal would interpret in a text from outside the runtime, so that the
/// text can be shown anywhere.
///
/// Every text from outside passes through this function before it enters a report, an event, a log line or a
/// message: output and records of processes, messages of peers and operators, names from files, lines of the Linux
/// kernel's log. Output logs of processes keep the original bytes, and so does live output
/// (`LocalLauncherBuilder::tee`): it replaces the processes' own terminal, as with `kubectl logs`. Statements
/// *about* a process are escaped, as by `kubectl describe` and `git`.
///
/// - Complete sequences that only change how a terminal shows text (colours, the cursor, a window's title) are removed.
/// - A carriage return, as in a progress bar, becomes a line end; before a line end it is removed.
/// - Every other control character is shown in the usual notation: `^[` for escape, `^G` for a bell. Unicode characters
///   that reorder or hide text (U+202E, for instance) are shown as `\u{202e}`.
/// - Line ends and tabs are kept. A text without any of these characters is returned unchanged.
///
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use taskd_core::job::printable;
///
/// assert_eq!(printable("\u{1b}[31mloss is NaN\u{1b}[0m\u{7}"), "loss is NaN^G");
/// assert_eq!(printable("10%\r20%\r\n"), "10%\n20%\n");
/// assert_eq!(printable("a\u{202e}b"), "a\\u{202e}b");
/// ```
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some(length) = sequence(rest) {
            rest = &rest[length..];
            continue;
        }
        rest = &rest[first.len_utf8()..];
        match first {
            '\r' if rest.starts_with('\n') => {}
            '\r' => shown.push('\n'),
            '\0'..='\u{1f}' | '\u{7f}' if is_obeyed(first) => {
                shown.push('^');
                shown.push(char::from((first as u8) ^ 0x40)); // ASCII, as the pattern guarantees
            }
            other if is_obeyed(other) => _ = write!(shown, "{}", other.escape_unicode()),
            other => shown.push(other),
        }
    }
    Cow::Owned(shown)
}

/// Returns true for a character that is not shown but interpreted, by a terminal or by the algorithm that orders
/// characters on a line.
const fn is_obeyed(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' => true,
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        '\u{2028}' | '\u{2029}' | '\u{feff}' => true,
        _ => false,
    }
}

/// Returns the length in bytes of the complete escape sequence (ECMA-48) at the beginning of a text; `None` if there is
/// none.
fn sequence(text: &str) -> Option<usize> {
    let (kind, body) = match text.strip_prefix('\u{1b}') {
        Some(rest) => (rest.chars().next()?, rest.get(1..)?),
        None => {
            let first = text.chars().next()?;
            let kind = match first {
                '\u{9b}' => '[',
                '\u{9d}' => ']',
                '\u{90}' => 'P',
                _ => return None,
            };
            (kind, &text[first.len_utf8()..])
        }
    };
    let before = text.len() - body.len();
    match kind {
        '[' => {
            let end = body.char_indices().take(SEQUENCE_CHARS_MAX).find(|(_, c)| !matches!(c, '\u{20}'..='\u{3f}'))?;
            matches!(end.1, '\u{40}'..='\u{7e}').then_some(before + end.0 + 1)
        }
        ']' | 'P' | '^' | '_' | 'X' => {
            let mut characters = body.char_indices().take(SEQUENCE_CHARS_MAX);
            let (at, end) = characters.find(|(_, c)| matches!(c, '\u{7}' | '\u{1b}' | '\u{9c}' | '\n'))?;
            match end {
                '\u{7}' | '\u{9c}' => Some(before + at + end.len_utf8()),
                '\u{1b}' if body[at..].starts_with("\u{1b}\\") => Some(before + at + 2),
                _ => None,
            }
        }
        '(' | ')' | '#' | '%' | ' ' => body.chars().next().filter(char::is_ascii_graphic).map(|_| before + 1),
        '7' | '8' | '=' | '>' | 'c' | 'D' | 'E' | 'H' | 'M' => Some(before),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn terminal_control_sequences_are_removed_or_shown() {
        for (text, shown) in [
            ("plain, with\ttabs\nand é", "plain, with\ttabs\nand é"),
            ("\u{1b}[1;31mred\u{1b}[m", "red"),
            ("\u{1b}]0;a title\u{7}x", "x"),
            ("\u{1b}]8;;http://x\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
            ("\u{1b}]0;never ended\nx", "^[]0;never ended\nx"),
            ("\u{1b}[2J\u{1b}[H\u{1b}cgone", "gone"),
            ("\u{9b}31mred", "red"),
            ("\u{1b}(Bx\u{1b}7y", "xy"),
            ("cut \u{1b}", "cut ^["),
            ("cut \u{1b}[31", "cut ^[[31"),
            ("\u{1b}[31\u{1b}[0mx", "^[[31x"),
            ("bell\u{7} back\u{8} nul\0 del\u{7f}", "bell^G back^H nul^@ del^?"),
            ("a\r\nb\rc", "a\nb\nc"),
            ("\u{85}\u{200f}\u{2066}", "\\u{85}\\u{200f}\\u{2066}"),
        ] {
            assert_eq!(printable(text), shown, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn printable_text_has_no_control_sequences_and_is_stable(text in "(?s)[\\x00-\\x20\\[\\]0-9;mPX\\\\\u{7f}-\u{9f}\u{200e}-\u{202f}a-c]{0,80}") {
            let shown = printable(&text).into_owned();
            prop_assert!(!shown.contains(is_obeyed), "{shown:?}");
            prop_assert_eq!(printable(&shown), shown.as_str());
        }

        #[test]
        fn readable_text_is_unchanged(text in "[ -~\\n\\t\u{a0}-\u{2fff}&&[^\u{200e}\u{200f}\u{2028}-\u{202e}\u{2066}-\u{2069}]]{0,80}") {
            prop_assert_eq!(printable(&text), text.as_str());
        }
    }
}
