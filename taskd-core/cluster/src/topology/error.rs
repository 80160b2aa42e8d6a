//! What can be wrong with a description of domains.

use super::{DOMAINS_MAX, HOSTS_MAX, LEVELS_MAX, NAME_BYTES_MAX, TEXT_BYTES_MAX};
use taskd_runtime::job::Name;

/// Error: a description of domains cannot be used. Its message names the entry and the correction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A name is empty, too long, or contains a character that names do not have.
    #[error(
        "{name:?} is not a name of a {what}: write 1 to {NAME_BYTES_MAX} bytes without control characters, and without \
         spaces at the ends"
    )]
    Name {
        /// What has the name: `level`, `host`, or the level of a domain.
        what: String,
        /// The name, shortened to [`NAME_BYTES_MAX`].
        name: String,
    },
    /// A level is listed twice.
    #[error("the level {0} is listed twice: list each level once, from the widest to the narrowest")]
    RepeatedLevel(Name),
    /// A host, or a domain of one level, has two entries.
    #[error("{0} has two entries: merge them into one")]
    Repeated(String),
    /// A level is used that is not listed.
    #[error("{used_by} uses the level {level:?}, the levels are {known}: use one of them, or list the level")]
    UnknownLevel {
        /// The level that is not listed.
        level: String,
        /// The entry or call that uses the level.
        used_by: String,
        /// All levels, from the widest to the narrowest.
        known: String,
    },
    /// Two labels of one host name different domains of one level.
    #[error("host {host}: label {first} and label {second} name two domains of one level: remove one of them")]
    Labels {
        /// The host.
        host: Name,
        /// One label, `KEY=VALUE`.
        first: String,
        /// The other label, `KEY=VALUE`.
        second: String,
    },
    /// A host or a domain would lie in two domains of one level.
    #[error(
        "{subject} lies in {first}, and {stated_by} places it in {second}, too: it can lie in one {level} only. \
         Correct one of the entries, or give two domains two names"
    )]
    TwoPlaces {
        /// The host or the domain, such as `leaf l1`.
        subject: String,
        /// The level of the two domains.
        level: Name,
        /// The domain that earlier statements gave.
        first: String,
        /// The domain that this statement gives.
        second: String,
        /// The entry that contains this statement, such as `host n7`.
        stated_by: String,
    },
    /// Domains contain each other.
    #[error("a domain cannot contain itself, but these entries form a cycle: {path}. Remove one of them")]
    Cycle {
        /// The cycle, such as `leaf l1 in spine s1 in leaf l1`.
        path: String,
    },
    /// A domain is placed in a domain that is not of a wider level.
    #[error("{domain} is placed in {within}, which is not of a wider level: the order of the levels is {order}")]
    NotWider {
        /// The domain.
        domain: String,
        /// The domain in which it is placed.
        within: String,
        /// All levels, from the widest to the narrowest.
        order: String,
    },
    /// There are too many levels, hosts or domains, or the file is too long.
    #[error(
        "there are too many {what}: {LEVELS_MAX} levels, {HOSTS_MAX} hosts, {DOMAINS_MAX} domains and files of \
         {TEXT_BYTES_MAX} bytes are the limits"
    )]
    TooMany {
        /// What there is too much of.
        what: &'static str,
    },
    /// The JSON form cannot be read.
    #[error("the topology cannot be read: {0}")]
    Form(#[source] serde_json::Error),
    /// The JSON form has a version that this program does not read.
    #[error("the topology has format version {0}, this program reads version 1: write it in version 1")]
    Version(u32),
    /// A line cannot be read.
    #[error("line {line} of the topology, {text:?}, cannot be read: {write}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// The line, shortened to [`NAME_BYTES_MAX`].
        text: String,
        /// What to write.
        write: &'static str,
    },
}

/// Returns the start of a text that has no known length, for a message.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(NAME_BYTES_MAX).collect()
}
