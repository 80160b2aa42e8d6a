//! Process groups from `profiler_metadata.json`.

use super::{Reading, json};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use taskd_core::analysis::model::{Group, GroupRole};

/// Maximum number of process groups of one rank.
const GROUPS_MAX: usize = 65_536;

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    parallel_group_info: BTreeMap<String, GroupInfo>,
}

#[derive(Deserialize)]
struct GroupInfo {
    #[serde(default)]
    group_name: String,
    #[serde(default)]
    global_ranks: Vec<u32>,
}

/// Reads the groups into the rank's trace. A group's name is the hash of its communicator's name, by which the other
/// files refer to it.
pub(super) fn read(reading: &mut Reading, file: File) -> Result<(), String> {
    let metadata: Metadata = json(file)?;
    for (communicator, info) in metadata.parallel_group_info.into_iter().take(GROUPS_MAX) {
        let role = match GroupRole::of_name(&info.group_name) {
            GroupRole::Unknown => GroupRole::of_name(&communicator),
            role => role,
        };
        let name = group_hash(&communicator).to_string();
        reading.trace.groups.push(Group { name, role, members: info.global_ranks });
    }
    Ok(())
}

/// Returns the number by which operators name a communicator: two polynomial hashes of its characters with 32 bits each,
/// to the primes 29 and 131 (msprof-analyze, `double_hash`).
#[must_use]
pub fn group_hash(communicator: &str) -> u64 {
    let hash = |prime: u32| communicator.chars().fold(0_u32, |h, c| h.wrapping_mul(prime).wrapping_add(u32::from(c)));
    u64::from(hash(29)) << 32 | u64::from(hash(131))
}

impl Reading {
    /// Returns the index of the group with this name or communicator; it is added without members if it is not known.
    pub(super) fn group(&mut self, name: &str) -> Option<u32> {
        let hash = group_hash(name).to_string();
        let known = |group: &Group| group.name == name || group.name == hash;
        if let Some(at) = self.trace.groups.iter().position(known) {
            return u32::try_from(at).ok();
        }
        if self.trace.groups.len() >= GROUPS_MAX {
            return None;
        }
        self.trace.groups.push(Group { name: name.to_owned(), role: GroupRole::of_name(name), members: Vec::new() });
        u32::try_from(self.trace.groups.len() - 1).ok()
    }
}
