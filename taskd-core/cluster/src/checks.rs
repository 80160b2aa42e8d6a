//! The checks that keep a job safe, by name. A simulation removes one at a time, to show that it notices the loss of each.
//!
//! No program removes one: only tests can build another value than the default.

/// A check of agents, managers and voters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Check {
    /// Agents and managers refuse what an older epoch orders.
    Epoch,
    /// A host stops its ranks at the end of its lease.
    LeaseEnd,
    /// The ranks of a silent host are replaced only after its lease is over.
    ReplaceAfter,
    /// A world is stored by a majority before any host gets an order for it.
    WorldStored,
    /// An agent takes a repeated frame once.
    FrameOnce,
    /// A voter that has lost its store does not vote until it is admitted again.
    Admission,
    /// A voter answers a write after its store has it.
    StoredFirst,
    /// A manager is confirmed by a majority of the voters.
    Majority,
}

impl Check {
    /// All checks.
    pub const ALL: [Check; 8] = [
        Check::Epoch,
        Check::LeaseEnd,
        Check::ReplaceAfter,
        Check::WorldStored,
        Check::FrameOnce,
        Check::Admission,
        Check::StoredFirst,
        Check::Majority,
    ];
}

/// The checks in force: all of them, except in a simulation that removes one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    removed: Option<Check>,
}

impl Checks {
    /// Returns all checks but one.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub const fn without(check: Check) -> Checks {
        Checks { removed: Some(check) }
    }

    /// Returns true if the check is in force.
    pub(crate) fn has(self, check: Check) -> bool {
        self.removed != Some(check)
    }
}
