//! Parses identifiers from text: each type reads the form that it prints, and a shorter form that is quick to type.

use super::{
    CommandId, Domain, Generation, GroupId, GroupKind, Incarnation, IncidentId, Name, NodeId, OrderId, ProcId, Rank,
    Role, Seq,
};
use std::str::FromStr;

/// Error: a text cannot be parsed as an identifier, such as a rank. The message states what to write.
///
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use taskd_core::job::{ProcId, Rank};
///
/// assert_eq!("rank 3#2".parse(), Ok(ProcId::rank(3, 2)));
/// assert_eq!("3".parse(), Ok(Rank(3)));
/// let error = "three".parse::<Rank>().expect_err("not a number");
/// assert_eq!(error.to_string(), "\"three\" is not a rank: write its number, such as 3 or \"rank 3\"");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {what}: write {write}")]
pub struct ParseIdError {
    text: String,
    what: &'static str,
    write: &'static str,
}

impl ParseIdError {
    pub(crate) fn new(text: &str, what: &'static str, write: &'static str) -> ParseIdError {
        ParseIdError { text: text.to_owned(), what, write }
    }

    /// Returns the text that could not be parsed as an identifier.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

macro_rules! numbers {
    ($($name:ident, $prefix:literal, $what:literal, $write:literal;)*) => {$(
        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<$name, ParseIdError> {
                let number = text.strip_prefix($prefix).unwrap_or(text);
                number.parse().map($name).map_err(|_| ParseIdError::new(text, $what, $write))
            }
        }
    )*};
}

numbers! {
    Rank, "rank ", "a rank", "its number, such as 3 or \"rank 3\"";
    Incarnation, "#", "an incarnation", "its number, such as 2 or #2";
    Generation, "generation ", "a generation", "its number, such as 4 or \"generation 4\"";
    CommandId, "command ", "a command", "its number, such as 12 or \"command 12\"";
    OrderId, "order ", "an order", "its number, such as 5 or \"order 5\"";
    IncidentId, "incident ", "an incident", "its number, such as 1 or \"incident 1\"";
    Seq, "input ", "the number of an input", "its number, such as 77 or \"input 77\"";
}

impl FromStr for Name {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Name, ParseIdError> {
        match text {
            "" => Err(ParseIdError::new(text, "a name", "at least one character")),
            text => Ok(Name::from(text.to_owned())),
        }
    }
}

impl FromStr for NodeId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<NodeId, ParseIdError> {
        let name = text.strip_prefix("node ").unwrap_or(text);
        let error = |_| ParseIdError::new(text, "a host", "its name, such as node-7 or \"node node-7\"");
        name.parse().map(NodeId).map_err(error)
    }
}

impl FromStr for GroupKind {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<GroupKind, ParseIdError> {
        match text {
            "" => Err(ParseIdError::new(text, "a kind of group", "its abbreviation, such as tp")),
            text => Ok(GroupKind::named(text)),
        }
    }
}

impl FromStr for Role {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Role, ParseIdError> {
        let role = match text.strip_prefix("service ") {
            Some(name) => name.parse().map(Role::Service),
            None => text.parse().map(Role::Rank),
        };
        let write = "a rank, such as 3 or \"rank 3\", or a service, such as \"service store\"";
        role.map_err(|_| ParseIdError::new(text, "a role", write))
    }
}

impl FromStr for ProcId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<ProcId, ParseIdError> {
        let parts = text.rsplit_once('#');
        let proc = parts
            .and_then(|(role, number)| Some(ProcId { role: role.parse().ok()?, incarnation: number.parse().ok()? }));
        let write = "its role and its start number, such as 3#2, \"rank 3#2\" or \"service store#1\"";
        proc.ok_or_else(|| ParseIdError::new(text, "a process", write))
    }
}

impl FromStr for Domain {
    type Err = ParseIdError;

    /// Reads what a domain prints. A group is recognised first, by the form `tp group 3` or `tp:3`, so the name of a
    /// host or plugin must not have that form.
    fn from_str(text: &str) -> Result<Domain, ParseIdError> {
        domain(text).ok_or_else(|| {
            let write = "\"the job\", \"rank 3\", \"service store\", \"node node-7\", \"device 0 of node node-7\", \
                         \"the guard of node node-7\", \"tp group 3\" or \"plugin silence\"";
            ParseIdError::new(text, "a fault domain", write)
        })
    }
}

fn domain(text: &str) -> Option<Domain> {
    let group = text.parse::<GroupId>().ok().map(Domain::Group);
    let is_plain = |kind: &str| !kind.contains(' ');
    let of_plain_kind =
        group.clone().filter(|group| matches!(group, Domain::Group(g) if is_plain(&g.kind.to_string())));
    if text == "job" || text == "the job" {
        return Some(Domain::Job);
    }
    if let Some(group) = of_plain_kind {
        return Some(group);
    }
    if let Some(name) = text.strip_prefix("plugin ") {
        return name.parse().ok().map(Domain::Plugin);
    }
    if let Some(rest) = text.strip_prefix("device ") {
        let (index, node) = rest.split_once(" of ")?;
        return Some(Domain::Device(node.parse().ok()?, index.parse().ok()?));
    }
    if let Some(node) = text.strip_prefix("the guard of ").or_else(|| text.strip_prefix("guard of ")) {
        return node.parse().ok().map(Domain::Guard);
    }
    if let Some(name) = text.strip_prefix("topology domain ") {
        return name.parse().ok().map(Domain::Topology);
    }
    if text.starts_with("node ") {
        return text.parse().ok().map(Domain::Node);
    }
    text.parse().ok().map(Domain::Process).or(group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fmt::{Debug, Display};

    fn round_trips<T: FromStr<Err: Debug> + Display + PartialEq + Debug>(id: &T) {
        assert_eq!(&id.to_string().parse::<T>().expect("it was printed"), id);
    }

    /// Any text, also with the words and signs of the printed forms.
    fn any_name() -> impl Strategy<Value = Name> {
        "(node |rank |service |#[0-9]| group [0-9]|:[0-9]|.){1,6}".prop_map(Name::from)
    }

    fn word() -> impl Strategy<Value = Name> {
        "[a-z][a-z0-9_.-]{0,12}".prop_map(Name::from)
    }

    fn role(names: impl Strategy<Value = Name>) -> impl Strategy<Value = Role> {
        prop_oneof![any::<u32>().prop_map(|rank| Role::Rank(Rank(rank))), names.prop_map(Role::Service)]
    }

    fn group(names: impl Strategy<Value = Name>) -> impl Strategy<Value = GroupId> {
        let known = prop_oneof![Just("dp"), Just("tp"), Just("pp"), Just("ep"), Just("cp")].prop_map(GroupKind::named);
        let kind = prop_oneof![known, names.prop_map(|name| GroupKind::named(name.as_str()))];
        (kind, any::<u32>()).prop_map(|(kind, index)| GroupId { kind, index })
    }

    fn domains() -> impl Strategy<Value = Domain> {
        let node = || word().prop_map(NodeId);
        prop_oneof![
            Just(Domain::Job),
            node().prop_map(Domain::Node),
            (node(), any::<u16>()).prop_map(|(node, index)| Domain::Device(node, index)),
            role(word()).prop_map(Domain::Process),
            group(word()).prop_map(Domain::Group),
            word().prop_map(Domain::Plugin),
            node().prop_map(Domain::Guard),
            word().prop_map(Domain::Topology),
        ]
    }

    proptest! {
        #[test]
        fn numbers_printed_parse_back(number: u64, short: u32) {
            round_trips(&Rank(short));
            round_trips(&Incarnation(short));
            round_trips(&Generation(number));
            round_trips(&CommandId(number));
            round_trips(&OrderId(number));
            round_trips(&IncidentId(number));
            round_trips(&Seq(number));
            prop_assert_eq!(number.to_string().parse::<IncidentId>(), Ok(IncidentId(number)));
        }

        #[test]
        fn names_hosts_and_groups_printed_parse_back(name in any_name(), group in group(any_name())) {
            round_trips(&name);
            round_trips(&NodeId(name));
            round_trips(&group);
            round_trips(&group.kind);
            prop_assert_eq!(String::from(group.clone()).parse::<GroupId>(), Ok(group));
        }

        #[test]
        fn roles_and_processes_printed_parse_back(role in role(any_name()), incarnation: u32) {
            round_trips(&role);
            round_trips(&ProcId { role, incarnation: Incarnation(incarnation) });
        }

        #[test]
        fn domains_printed_parse_back(domain in domains()) {
            round_trips(&domain);
        }

        #[test]
        fn any_text_parses_or_is_refused_with_an_example(text in "\\PC{0,20}") {
            if let Err(error) = text.parse::<Domain>() {
                prop_assert!(error.to_string().contains("such as") || error.to_string().contains("write \""));
                prop_assert_eq!(error.text(), text);
            }
        }
    }

    #[test]
    fn short_forms_parse() {
        assert_eq!("3#2".parse(), Ok(ProcId::rank(3, 2)));
        assert_eq!("7".parse(), Ok(Domain::Process(Role::Rank(Rank(7)))));
        assert_eq!("tp:3".parse(), Ok(Domain::Group(GroupId { kind: GroupKind::Tp, index: 3 })));
        assert_eq!("node-7".parse(), Ok(NodeId(Name::new("node-7"))));
        assert_eq!("job".parse(), Ok(Domain::Job));
    }

    #[test]
    fn wrong_texts_are_refused_with_what_to_write() {
        let error = "rank three".parse::<Role>().expect_err("no number").to_string();
        assert!(error.contains("\"rank three\" is not a role: write a rank, such as 3"), "{error}");
        let error = "tp group x".parse::<GroupId>().expect_err("no index").to_string();
        assert!(error.contains("such as \"tp:3\""), "{error}");
        for text in ["", "node ", "somewhere", "device x of node a", "service "] {
            assert!(text.parse::<Domain>().is_err(), "{text:?}");
        }
    }
}
