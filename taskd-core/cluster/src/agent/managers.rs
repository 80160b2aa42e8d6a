//! The addresses at which an agent looks for a manager.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of addresses that managers have reported. Further ones are left out, and logged.
const LEARNED_MAX: usize = 64;

/// The addresses that the agent was started with, and those that the last manager has reported.
#[derive(Debug)]
pub(super) struct Managers {
    configured: Vec<String>,
    learned: Mutex<Vec<String>>,
}

impl Managers {
    pub(super) fn new(configured: Vec<String>) -> Managers {
        Managers { configured, learned: Mutex::default() }
    }

    /// Replaces the reported addresses.
    pub(super) fn learn(&self, mut addresses: Vec<String>) {
        if addresses.len() > LEARNED_MAX {
            tracing::warn!("a manager reports {} candidates: only {LEARNED_MAX} are dialled", addresses.len());
            addresses.truncate(LEARNED_MAX);
        }
        addresses.retain(|address| !self.configured.contains(address));
        *self.lock() = addresses;
    }

    /// Returns the address for a turn: all of them take turns.
    pub(super) fn at(&self, turn: usize) -> String {
        let learned = self.lock();
        let at = turn % (self.configured.len() + learned.len()).max(1);
        let address = self.configured.get(at).or_else(|| learned.get(at - self.configured.len().min(at)));
        address.cloned().unwrap_or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.configured.len() + self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_and_reported_addresses_take_turns() {
        let managers = Managers::new(vec!["a:1".into(), "b:1".into()]);
        managers.learn(vec!["b:1".into(), "c:1".into()]);
        let dialled: Vec<String> = (0..4).map(|turn| managers.at(turn)).collect();
        assert_eq!(dialled, ["a:1", "b:1", "c:1", "a:1"]);
        managers.learn(Vec::new());
        assert_eq!((managers.at(2), managers.len()), ("a:1".to_owned(), 2));
    }
}
