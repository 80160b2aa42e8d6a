//! Memory that a rank leaves to whoever takes its place: held here, and handed to each incarnation of the rank. One is for what only
//! the rank has, the other for copies of all of its state, where the job wants them.
//!
//! It is never read here, and its size and what stands in it is the worker's to say (`taskd/_keep.py`, `taskd/_memory.py`); so is when it is of no use
//! any more: when all start again, the rank that has left nothing else behind still takes its own random numbers from it.

use crate::job::{Rank, Role};
use rustix::fs::MemfdFlags;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// For what a memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kept {
    /// What only the rank has.
    Own,
    /// Copies of its state.
    State,
}

impl Kept {
    /// What the kernel calls it: by this name other ranks find here what a lost one has left (`taskd/_keep.py`).
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
    /// Forgets the memory into which nothing was written.
    pub(super) fn drop_unused(&mut self) {
        self.0.retain(|_, memory| rustix::fs::fstat(memory).is_ok_and(|stat| stat.st_size > 0));
    }

    /// Where a rank finds its memory, by a descriptor of this process; services have none.
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
        assert_eq!(keeps.0.keys().collect::<Vec<_>>(), [&(rank(0), Kept::Own)], "nobody has written into the others");
    }
}
