//! Who waits for what: one wait for each client, and under each key the waits for it.
//!
//! It knows nothing of values. Who gives up leaves a number behind in long lists, which means nothing any more; such
//! numbers are swept when they are half of a list, so that thousands may give up at once.

use super::ClientId;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// One wait; never used again.
pub(super) type WaitId = u64;

/// Up to so many, a list is searched for the one who gives up.
const SHORT: usize = 32;

/// The waits for one key, in the order in which they began. One that named the key twice stands here twice.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    ids: VecDeque<WaitId>,
    /// How many have given up since it was swept, at most.
    gave_up: usize,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub(super) fn push(&mut self, id: WaitId) {
        self.ids.push_back(id);
    }

    pub(super) fn pop(&mut self) -> Option<WaitId> {
        self.ids.pop_front()
    }

    pub(super) fn into_ids(self) -> impl Iterator<Item = WaitId> {
        self.ids.into_iter()
    }

    /// This one is over; `waits` knows it no more.
    pub(super) fn gave_up(&mut self, id: WaitId, waits: &Waits) {
        if self.ids.len() <= SHORT {
            self.ids.retain(|other| *other != id);
            return;
        }
        self.gave_up += 1;
        if self.gave_up * 2 > self.ids.len() {
            self.ids.retain(|id| waits.by_id.contains_key(id));
            self.gave_up = 0;
        }
    }
}

/// What one client waits for.
#[derive(Debug)]
pub(super) struct Wait {
    client: ClientId,
    /// What was missing when it began.
    pub(super) keys: Vec<Rc<[u8]>>,
    /// How many of these still are.
    missing: usize,
}

/// All waits.
#[derive(Debug)]
pub(super) struct Waits {
    by_id: BTreeMap<WaitId, Wait>,
    of_client: BTreeMap<ClientId, WaitId>,
    next: WaitId,
    /// Clients whose wait is over, until they are taken.
    pub(super) woken: Vec<ClientId>,
}

impl Waits {
    pub(super) const fn new() -> Waits {
        Waits { by_id: BTreeMap::new(), of_client: BTreeMap::new(), next: 0, woken: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// How many keys all of them wait for.
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

    /// The client's wait, which is over.
    pub(super) fn end_of(&mut self, client: ClientId) -> Option<(WaitId, Wait)> {
        let id = self.of_client.remove(&client)?;
        Some((id, self.by_id.remove(&id)?))
    }

    /// One of its keys is there. If it was the last, the wait is over: then how many keys it was for.
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
