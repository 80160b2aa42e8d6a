//! Details of communications, from the arguments that PyTorch attaches to NCCL kernels and gloo annotations.

use crate::kineto::classify;
use crate::kineto::decimal;
use crate::kineto::document::Distributed;
use crate::kineto::scan::{Cursor, Stop, Text};
use std::collections::BTreeMap;
use taskd_core::analysis::model::{Communication, Group, GroupRole, Kind, Names};

/// Communications of one rank, and the groups that they name.
#[derive(Default)]
pub(super) struct Communications {
    pub(super) all: Vec<Communication>,
    groups: Vec<Group>,
    by_name: BTreeMap<String, u32>,
}

/// Arguments of a communication, unparsed.
#[derive(Default)]
struct Arguments<'a> {
    operation: Option<Text<'a>>,
    elements_in: u64,
    elements_out: u64,
    element_bytes: u64,
    group: Option<Text<'a>>,
    description: Option<Text<'a>>,
    ranks: Option<Text<'a>>,
    source: Option<u32>,
    destination: Option<u32>,
    sequence: Option<u64>,
    dimensions: &'a [u8],
    types: &'a [u8],
}

impl Communications {
    /// Adds a communication, and returns its index.
    pub(super) fn add(&mut self, name: &str, arguments: &[u8], names: &mut Names) -> Option<u32> {
        let index = u32::try_from(self.all.len()).ok()?;
        let arguments = Arguments::parse(arguments);
        let (kind, operation) = match arguments.operation {
            Some(operation) => classify::communication(&operation.decode()),
            None => classify::communication(name),
        };
        let peer = match kind {
            Kind::Send => arguments.destination,
            Kind::Receive => arguments.source,
            _ => None,
        };
        let group = self.group(&arguments);
        self.all.push(Communication {
            operation: names.intern(&operation),
            group,
            sequence: arguments.sequence,
            bytes: arguments.bytes(),
            peer,
            ..Communication::default()
        });
        Some(index)
    }

    fn group(&mut self, arguments: &Arguments<'_>) -> Option<u32> {
        let name = arguments.group?.decode();
        if let Some(index) = self.by_name.get(name.as_ref()) {
            return Some(*index);
        }
        let index = u32::try_from(self.groups.len()).ok()?;
        let description = arguments.description.map(Text::decode).unwrap_or_default();
        let members = arguments.ranks.map(|ranks| rank_list(&ranks.decode())).unwrap_or_default();
        self.groups.push(Group { name: name.clone().into_owned(), role: GroupRole::of_name(&description), members });
        self.by_name.insert(name.into_owned(), index);
        Some(index)
    }

    /// Returns the groups of the communications, followed by those that only the header names. The header completes
    /// members and roles.
    pub(super) fn groups_with(&mut self, header: &Distributed) -> Vec<Group> {
        for config in &header.pg_config {
            let role = GroupRole::of_name(&config.pg_desc);
            let index = self.by_name.get(&config.pg_name).copied();
            match index.and_then(|index| self.groups.get_mut(index as usize)) {
                Some(group) => {
                    if group.members.is_empty() {
                        group.members.clone_from(&config.ranks);
                    }
                    if group.role == GroupRole::Unknown {
                        group.role = role;
                    }
                }
                None => self.groups.push(Group { name: config.pg_name.clone(), role, members: config.ranks.clone() }),
            }
        }
        std::mem::take(&mut self.groups)
    }
}

impl<'a> Arguments<'a> {
    fn parse(bytes: &'a [u8]) -> Self {
        let mut arguments = Self::default();
        // The object was scanned before: an error means that there is none.
        let _ = arguments.read(&mut Cursor::new(bytes));
        arguments
    }

    fn read(&mut self, cursor: &mut Cursor<'a>) -> Result<(), Stop> {
        cursor.expect(b'{')?;
        loop {
            let key = cursor.key()?;
            match key.raw {
                b"Collective name" => self.operation = text(cursor)?,
                b"In msg nelems" => self.elements_in = number(cursor)?.unwrap_or_default(),
                b"Out msg nelems" => self.elements_out = number(cursor)?.unwrap_or_default(),
                b"dtype" => {
                    let name = text(cursor)?.unwrap_or_default();
                    self.element_bytes = classify::element_bytes(&name.decode());
                }
                b"Process Group Name" => self.group = text(cursor)?,
                b"Process Group Description" => self.description = text(cursor)?,
                b"Process Group Ranks" => self.ranks = text(cursor)?,
                b"Src Rank" => self.source = number(cursor)?.and_then(|rank| u32::try_from(rank).ok()),
                b"Dst Rank" => self.destination = number(cursor)?.and_then(|rank| u32::try_from(rank).ok()),
                b"Seq" => self.sequence = number(cursor)?,
                b"Input Dims" => self.dimensions = cursor.value()?,
                b"Input type" => self.types = cursor.value()?,
                _ => drop(cursor.value()?),
            }
            if !cursor.has_more(b'}')? {
                return Ok(());
            }
        }
    }

    /// Returns the payload: what this rank contributes, or what it receives if it contributes nothing.
    fn bytes(&self) -> u64 {
        if self.element_bytes > 0 {
            let elements = if self.elements_in > 0 { self.elements_in } else { self.elements_out };
            return elements.saturating_mul(self.element_bytes);
        }
        // gloo: the shape and the type of each input.
        let dimensions: Vec<Vec<u64>> = serde_json::from_slice(self.dimensions).unwrap_or_default();
        let types: Vec<String> = serde_json::from_slice(self.types).unwrap_or_default();
        let bytes = dimensions.iter().zip(&types).map(|(sizes, name)| {
            sizes.iter().fold(classify::element_bytes(name), |bytes, size| bytes.saturating_mul(*size))
        });
        bytes.fold(0, u64::saturating_add)
    }
}

fn text<'a>(cursor: &mut Cursor<'a>) -> Result<Option<Text<'a>>, Stop> {
    if cursor.peek()? == b'"' { cursor.string().map(Some) } else { cursor.value().map(|_| None) }
}

fn number(cursor: &mut Cursor<'_>) -> Result<Option<u64>, Stop> {
    Ok(cursor.scalar()?.and_then(decimal::integer).and_then(|number| u64::try_from(number).ok()))
}

/// Returns the ranks in a list such as `[0, 1]`. PyTorch shortens long lists to `[0, 1, ...]`: their members are unknown.
fn rank_list(text: &str) -> Vec<u32> {
    let inner = text.trim().trim_start_matches('[').trim_end_matches(']');
    let ranks: Result<Vec<u32>, _> = inner.split(',').map(|rank| rank.trim().parse()).collect();
    ranks.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortened_rank_list_has_no_members() {
        assert_eq!(rank_list("[0, 8, 16]"), [0, 8, 16]);
        assert_eq!(rank_list("[0, 1, ..., 63]"), [0_u32; 0]);
    }
}
