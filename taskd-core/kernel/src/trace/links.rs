//! What a host has found about its links to other hosts: the reply to the probe [`LINKS`].

use super::ProbeResult;
use crate::job::{Name, NodeId};
use std::collections::BTreeMap;

/// Name of the probe about a host ([`Domain::Node`](crate::job::Domain)) that asks which of the other hosts in the probe it
/// reaches now. A host of a large probe may check only some of them. The reply is a [`ProbeResult::Text`] with a line for
/// each that it has checked, `reached NAME` or `unreached NAME`: see [`write_links`] and [`read_links`].
pub const LINKS: Name = Name::new("links");

const REACHED: &str = "reached";
const UNREACHED: &str = "unreached";

/// Returns the reply to the probe [`LINKS`]: true for each host that was reached.
#[must_use]
pub fn write_links(links: &BTreeMap<NodeId, bool>) -> ProbeResult {
    let line =
        |(host, reached): (&NodeId, &bool)| format!("{} {}\n", if *reached { REACHED } else { UNREACHED }, host.0);
    ProbeResult::Text(links.iter().map(line).collect())
}

/// Reads the reply to the probe [`LINKS`]. Lines of another form are skipped; a reply without text has none.
#[must_use]
pub fn read_links(reply: &ProbeResult) -> BTreeMap<NodeId, bool> {
    let ProbeResult::Text(text) = reply else { return BTreeMap::new() };
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let links = lines.filter_map(|(how, host)| match how {
        REACHED => Some((host, true)),
        UNREACHED => Some((host, false)),
        _ => None,
    });
    links.map(|(host, reached)| (NodeId(Name::from(host.to_owned())), reached)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_as_they_were_written_and_other_lines_are_skipped() {
        let node = |name: &str| NodeId(Name::from(name.to_owned()));
        let links: BTreeMap<NodeId, bool> = [(node("h1"), true), (node("a host"), false)].into();
        assert_eq!(read_links(&write_links(&links)), links);
        let text = "reached h1\nmaybe h2\nunreached\n\nunreached h3\n";
        assert_eq!(read_links(&ProbeResult::Text(text.into())), [(node("h1"), true), (node("h3"), false)].into());
        assert!(read_links(&ProbeResult::Silence).is_empty());
    }
}
