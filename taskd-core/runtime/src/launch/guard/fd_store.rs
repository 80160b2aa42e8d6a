//! File-descriptor store: memory that a rank leaves to its replacement. The guard holds it and passes it to each
//! incarnation of the rank. One memory holds the state that only this rank has; the other holds copies of its whole
//! state, if the job enables them.
//!
//! The guard never reads the memory. The worker defines its size and content (`taskd/_handoff.py`,
//! `taskd/_in_memory_checkpoint.py`) and decides when it is obsolete: even when all ranks restart, a rank that has left
//! nothing else still takes its random number state from it. Behind their own data, ranks hold that of ranks on other
//! hosts there.

use crate::job::{Rank, Role};
use rustix::fs::MemfdFlags;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Purpose of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kept {
    /// Memory with the state that only this rank has.
    Own,
    /// Memory with copies of the rank's whole state.
    State,
}

impl Kept {
    /// Name of the memfd. Other ranks search for the memory of a lost rank by this name (`taskd/_handoff.py`).
    fn name(self, rank: Rank) -> String {
        match self {
            Kept::Own => format!("taskd-keep-{}", rank.0),
            Kept::State => format!("taskd-state-{}", rank.0),
        }
    }
}

/// The memory of each rank that has run.
#[derive(Debug, Default)]
pub(super) struct Keeps(BTreeMap<(Role, Kept), OwnedFd>);

impl Keeps {
    /// Drops each memory that was never written.
    pub(super) fn drop_unused(&mut self) {
        self.0.retain(|_, memory| rustix::fs::fstat(memory).is_ok_and(|stat| stat.st_size > 0));
    }

    /// Returns the path of a rank's memory, as a descriptor of this process; `None` for a service.
    pub(super) fn of(&mut self, role: &Role, what: Kept) -> io::Result<Option<String>> {
        let Some(rank) = role.rank() else { return Ok(None) };
        let key = (role.clone(), what);
        if !self.0.contains_key(&key) {
            let memory = rustix::fs::memfd_create(what.name(rank), MemfdFlags::CLOEXEC)?;
            self.0.insert(key.clone(), memory);
        }
        let path = |memory: &OwnedFd| format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
        Ok(self.0.get(&key).map(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Name;

    #[test]
    fn a_ranks_memory_outlives_it_and_is_no_other_ranks() {
        let mut keeps = Keeps::default();
        let rank = |rank| Role::Rank(Rank(rank));
        let first = keeps.of(&rank(0), Kept::Own).unwrap().unwrap();
        std::fs::write(&first, "left behind").unwrap();
        assert_eq!(keeps.of(&rank(0), Kept::Own).unwrap().as_ref(), Some(&first));
        assert_eq!(std::fs::read(&first).unwrap(), b"left behind");
        assert_eq!(std::fs::read_link(&first).unwrap().to_str(), Some("/memfd:taskd-keep-0 (deleted)"));
        assert_ne!(keeps.of(&rank(1), Kept::Own).unwrap().as_ref(), Some(&first));
        assert_ne!(keeps.of(&rank(0), Kept::State).unwrap(), Some(first));
        assert_eq!(keeps.of(&Role::Service(Name::new("store")), Kept::Own).unwrap(), None);
        keeps.drop_unused();
        assert_eq!(
            keeps.0.keys().collect::<Vec<_>>(),
            [&(rank(0), Kept::Own)],
            "no process has written into the others"
        );
    }
}
