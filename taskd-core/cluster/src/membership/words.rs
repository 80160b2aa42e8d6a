//! Words of the reasons.

use taskd_runtime::job::NodeId;

/// Largest number of hosts that a reason names; it counts the others.
const NAMED_MAX: usize = 4;

/// Returns `1 host`, `3 hosts`.
pub(super) fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Returns `is` or `are`, `has` or `have`, after a number.
pub(super) fn verb(n: usize, one: &'static str, several: &'static str) -> &'static str {
    if n == 1 { one } else { several }
}

/// Returns `host a`, `hosts a and b`, `hosts a, b, c, d and 7 more`.
pub(super) fn hosts<'a>(hosts: impl IntoIterator<Item = &'a NodeId>) -> String {
    let names: Vec<&str> = hosts.into_iter().map(|host| host.0.as_str()).collect();
    let word = if names.len() == 1 { "host" } else { "hosts" };
    let list = match names.as_slice() {
        [one] => (*one).to_owned(),
        several if several.len() <= NAMED_MAX => {
            let (last, others) = several.split_last().unwrap_or((&"", &[]));
            format!("{} and {last}", others.join(", "))
        }
        many => format!("{} and {} more", many[..NAMED_MAX].join(", "), many.len() - NAMED_MAX),
    };
    format!("{word} {list}")
}
