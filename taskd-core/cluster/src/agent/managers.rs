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

    /// Returns all addresses, those that the agent was started with first.
    pub(super) fn all(&self) -> Vec<String> {
        self.configured.iter().chain(&*self.lock()).cloned().collect()
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
    fn reported_addresses_come_after_the_configured_ones_until_others_are_reported() {
        let managers = Managers::new(vec!["a:1".into(), "b:1".into()]);
        managers.learn(vec!["b:1".into(), "c:1".into()]);
        assert_eq!(managers.all(), ["a:1", "b:1", "c:1"]);
        managers.learn(Vec::new());
        assert_eq!((managers.all().len(), managers.len()), (2, 2));
    }
}
