//! Memory that a rank leaves to whoever takes its place: held here, and handed to each incarnation of the rank.
//!
//! It is never read here, and its size and what stands in it is the worker's to say (`taskd/_keep.py`); so is when it is of no use
//! any more: when all start again, the rank that has left nothing else behind still takes its own random numbers from it.

use crate::job::Role;
use rustix::fs::MemfdFlags;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The memory of each rank that has run.
#[derive(Debug, Default)]
pub(super) struct Keeps(BTreeMap<Role, OwnedFd>);

impl Keeps {
    /// Forgets the memory into which nothing was written.
    pub(super) fn drop_unused(&mut self) {
        self.0.retain(|_, memory| rustix::fs::fstat(memory).is_ok_and(|stat| stat.st_size > 0));
    }

    /// Where a rank finds its memory, by a descriptor of this process; services have none.
    pub(super) fn of(&mut self, role: &Role) -> io::Result<Option<String>> {
        if role.rank().is_none() {
            return Ok(None);
        }
        if !self.0.contains_key(role) {
            let memory = rustix::fs::memfd_create("taskd-keep", MemfdFlags::CLOEXEC)?;
            self.0.insert(role.clone(), memory);
        }
        let path = |memory: &OwnedFd| format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
        Ok(self.0.get(role).map(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Name, Rank};

    #[test]
    fn a_ranks_memory_outlives_it_and_is_no_other_ranks() {
        let mut keeps = Keeps::default();
        let first = keeps.of(&Role::Rank(Rank(0))).unwrap().unwrap();
        std::fs::write(&first, "left behind").unwrap();
        assert_eq!(keeps.of(&Role::Rank(Rank(0))).unwrap().as_ref(), Some(&first));
        assert_eq!(std::fs::read(&first).unwrap(), b"left behind");
        assert_ne!(keeps.of(&Role::Rank(Rank(1))).unwrap(), Some(first));
        assert_eq!(keeps.of(&Role::Service(Name::new("store"))).unwrap(), None);
        keeps.drop_unused();
        assert_eq!(keeps.0.keys().collect::<Vec<_>>(), [&Role::Rank(Rank(0))], "nobody has written into the other");
    }
}
