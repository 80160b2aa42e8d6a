//! Finds secrets in variables, arguments and other texts, by their names, and removes them from what people are shown.
//!
//! Pure text processing: it knows no job and stores no value.

mod names;
#[doc(hidden)]
pub mod text;

pub use names::SecretNames;
use std::ops::Range;
use text::Found;

/// Beginning of every mark with which taskd replaces a secret. If a value already contains this text, the whole value
/// is removed, so that all remaining marks were made by taskd.
#[doc(hidden)]
pub const MARK: &str = "<redacted";

/// Formats a command line for people. Each secret in the command line, as recognised by the names of options and
/// variables, is replaced by a mark.
#[doc(hidden)]
pub fn shown_arguments<S: AsRef<str>>(arguments: &[S], names: &SecretNames) -> Vec<String> {
    let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
    let found = text::in_arguments(&arguments, names);
    arguments.iter().zip(found).map(|(argument, found)| shown(argument, &found, names)).collect()
}

/// Formats a variable's value for people, without values that are secrets by their names.
pub(crate) fn shown_variable(name: &str, value: &str, names: &SecretNames) -> String {
    shown(value, &text::in_variable(name, value, names), names)
}

fn shown(text: &str, found: &[Found], names: &SecretNames) -> String {
    let marked = text.contains(MARK).then(|| text::in_text(text, names)); // with a mark, `found` covers the whole text
    let masked = |range: &Range<usize>| {
        let is_in = |at: usize| range.start < at + MARK.len() && at < range.end;
        text.match_indices(MARK).any(|(at, _)| is_in(at)) // already removed
    };
    let mut shown = text.to_owned();
    for found in marked.as_deref().unwrap_or(found).iter().rev().filter(|found| !masked(&found.range)) {
        shown.replace_range(found.range.clone(), "<redacted>");
    }
    shown
}

#[cfg(test)]
mod tests;
