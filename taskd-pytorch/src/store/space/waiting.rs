//! Waits for keys: one wait per client, and the list of waits for each key.
//!
//! This module knows no values. A cancelled wait leaves a stale number in long lists; stale numbers are removed when
//! they are half of a list, so that thousands of clients can cancel at once.

use super::ClientId;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Identifies a wait; never reused.
pub(super) type WaitId = u64;

/// Maximum length of a list that is searched for a cancelled wait.
const SHORT: usize = 32;

/// The waits for one key, in the order in which they began. A wait that names the key twice is in the list twice.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    ids: VecDeque<WaitId>,
    /// Upper bound of the number of ids in `ids` whose wait was cancelled and that were not removed yet.
    gave_up: usize,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.ids.capacity()
    }

    pub(super) fn push(&mut self, id: WaitId) {
        self.ids.push_back(id);
    }

    pub(super) fn pop(&mut self) -> Option<WaitId> {
        let id = self.ids.pop_front();
        shrink(&mut self.ids);
        id
    }

    pub(super) fn into_ids(self) -> impl Iterator<Item = WaitId> {
        self.ids.into_iter()
    }

    /// Removes a wait that was cancelled; `waits` no longer contains it.
    pub(super) fn gave_up(&mut self, id: WaitId, waits: &Waits) {
        if self.ids.len() <= SHORT {
            self.ids.retain(|other| *other != id);
        } else {
            self.gave_up += 1;
            if self.gave_up * 2 <= self.ids.len() {
                return;
            }
            self.ids.retain(|id| waits.by_id.contains_key(id));
            self.gave_up = 0;
        }
        shrink(&mut self.ids);
    }
}

/// Releases memory if the capacity is over four times the use: limits count entries, and a client must not hold memory
/// that no limit counts.
pub(super) fn shrink<T>(entries: &mut VecDeque<T>) {
    if entries.capacity() > SHORT && entries.capacity() / 4 > entries.len() {
        entries.shrink_to(entries.len() * 2);
    }
}

/// The wait of one client.
#[derive(Debug)]
pub(super) struct Wait {
    client: ClientId,
    /// The keys that were missing when it began.
    pub(super) keys: Vec<Rc<[u8]>>,
    /// Number of the wait's keys that are still missing.
    missing: usize,
}

/// All waits.
#[derive(Debug)]
pub(super) struct Waits {
    by_id: BTreeMap<WaitId, Wait>,
    of_client: BTreeMap<ClientId, WaitId>,
    next: WaitId,
    /// Clients whose wait has ended, until they are taken.
    pub(super) woken: Vec<ClientId>,
}

impl Waits {
    pub(super) const fn new() -> Waits {
        Waits { by_id: BTreeMap::new(), of_client: BTreeMap::new(), next: 0, woken: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns the number of keys in all waits.
    pub(super) fn keys(&self) -> usize {
        self.by_id.values().map(|wait| wait.keys.len()).sum()
    }

    pub(super) fn begin(&mut self, client: ClientId) -> WaitId {
        let id = self.next;
        self.next += 1;
        self.by_id.insert(id, Wait { client, keys: Vec::new(), missing: 0 });
        self.of_client.insert(client, id);
        id
    }

    pub(super) fn add(&mut self, id: WaitId, key: Rc<[u8]>) {
        if let Some(wait) = self.by_id.get_mut(&id) {
            wait.keys.push(key);
            wait.missing += 1;
        }
    }

    /// Ends the client's wait and returns it.
    pub(super) fn end_of(&mut self, client: ClientId) -> Option<(WaitId, Wait)> {
        let id = self.of_client.remove(&client)?;
        Some((id, self.by_id.remove(&id)?))
    }

    /// Records that one of a wait's keys is present. If it was the last missing one, the wait ends, and the number of
    /// its keys is returned.
    pub(super) fn met(&mut self, id: WaitId) -> Option<usize> {
        let wait = self.by_id.get_mut(&id)?;
        wait.missing -= 1;
        if wait.missing > 0 {
            return None;
        }
        let (_, wait) = self.end_of(self.by_id.get(&id)?.client)?;
        self.woken.push(wait.client);
        Some(wait.keys.len())
    }
}
