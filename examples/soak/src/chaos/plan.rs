//! The injections and their order, which a seed chooses before anything runs.
//!
//! It touches nothing.

use crate::outside::decks::decks;
use clap::ValueEnum;
use rand::SeedableRng;
use rand::rngs::StdRng;

/// The victim of a kill, and its moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kind {
    /// Any rank, during training.
    MidStep,
    /// Rank 0, which hosts the store and writes the checkpoints.
    RankZero,
    /// A rank whose process has just appeared.
    StartSpawn,
    /// A rank that is importing torch.
    StartImport,
    /// A rank while rank 0 hosts the store and no step is completed yet.
    StartRendezvous,
    /// Rank 0, with an incomplete checkpoint.
    Checkpoint,
    /// Two ranks at once.
    TwoAtOnce,
    /// A rank, and its successor within one second of its start.
    TwiceInASecond,
    /// The supervisor, whose guard keeps the job: another supervisor attaches.
    SupervisorKeep,
    /// The same during a recovery, which the next supervisor continues.
    SupervisorMidRecovery,
    /// The supervisor, whose guard ends the job: another supervisor restarts it from its checkpoint.
    SupervisorKillTree,
    /// The guard.
    Guard,
    /// The same during a recovery.
    GuardMidRecovery,
    /// Supervisor and guard at once: only the next supervisor can restart the job.
    SupervisorAndGuard,
}

impl Kind {
    pub(crate) const ALL: [Kind; 14] = [
        Kind::MidStep,
        Kind::RankZero,
        Kind::StartSpawn,
        Kind::StartImport,
        Kind::StartRendezvous,
        Kind::Checkpoint,
        Kind::TwoAtOnce,
        Kind::TwiceInASecond,
        Kind::SupervisorKeep,
        Kind::SupervisorMidRecovery,
        Kind::SupervisorKillTree,
        Kind::Guard,
        Kind::GuardMidRecovery,
        Kind::SupervisorAndGuard,
    ];

    pub(crate) const fn label(self) -> &'static str {
        match self {
            Kind::MidStep => "a rank, mid-step",
            Kind::RankZero => "rank 0",
            Kind::StartSpawn => "start-up: just started",
            Kind::StartImport => "start-up: import torch",
            Kind::StartRendezvous => "start-up: rendezvous",
            Kind::Checkpoint => "checkpoint write",
            Kind::TwoAtOnce => "two ranks at once",
            Kind::TwiceInASecond => "same rank twice",
            Kind::SupervisorKeep => "supervisor, Keep",
            Kind::SupervisorMidRecovery => "supervisor, mid-recovery",
            Kind::SupervisorKillTree => "supervisor, KillTree",
            Kind::Guard => "guard",
            Kind::GuardMidRecovery => "guard, mid-recovery",
            Kind::SupervisorAndGuard => "supervisor and guard",
        }
    }

    pub(crate) const fn is_of_supervisor(self) -> bool {
        use Kind::{SupervisorAndGuard, SupervisorKeep, SupervisorKillTree, SupervisorMidRecovery};
        matches!(self, SupervisorKeep | SupervisorMidRecovery | SupervisorKillTree | SupervisorAndGuard)
    }

    pub(crate) const fn is_of_guard(self) -> bool {
        matches!(self, Kind::Guard | Kind::GuardMidRecovery | Kind::SupervisorAndGuard)
    }

    pub(crate) const fn is_at_start_up(self) -> bool {
        matches!(self, Kind::StartSpawn | Kind::StartImport | Kind::StartRendezvous)
    }
}

/// One injection, and the dice for its victims and moments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Injection {
    pub(crate) kind: Kind,
    seed: u64,
}

impl Injection {
    pub(crate) fn dice(&self) -> StdRng {
        StdRng::seed_from_u64(self.seed)
    }
}

/// Returns `count` injections.
pub(crate) fn plan(kinds: &[Kind], count: usize, seed: u64) -> Vec<Injection> {
    decks(kinds, count, seed).into_iter().map(|(kind, seed)| Injection { kind, seed }).collect()
}

/// Returns true if the next supervisor's guard must keep the job, as the next kill of a supervisor requires.
pub(crate) fn is_to_keep(rest: &[Injection]) -> bool {
    let wants = |injection: &Injection| match injection.kind {
        Kind::SupervisorKeep | Kind::SupervisorMidRecovery => Some(true),
        Kind::SupervisorKillTree => Some(false),
        _ => None,
    };
    rest.iter().find_map(wants).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_deck_has_every_kind_in_an_order_that_the_seed_determines() {
        let kinds = |seed| plan(&Kind::ALL, 2 * Kind::ALL.len(), seed).iter().map(|i| i.kind).collect::<Vec<_>>();
        assert_eq!(kinds(7), kinds(7));
        assert_ne!(kinds(7), kinds(8));
        for deck in kinds(7).chunks(Kind::ALL.len()) {
            let mut deck = deck.to_vec();
            deck.sort_unstable();
            deck.dedup();
            assert_eq!(deck.len(), Kind::ALL.len());
        }
    }

    #[test]
    fn a_supervisor_is_configured_for_the_next_supervisor_kill() {
        let rest = |kinds: &[Kind]| kinds.iter().map(|kind| Injection { kind: *kind, seed: 0 }).collect::<Vec<_>>();
        assert!(is_to_keep(&rest(&[Kind::Guard, Kind::SupervisorKeep, Kind::SupervisorKillTree])));
        assert!(!is_to_keep(&rest(&[Kind::Guard, Kind::SupervisorKillTree, Kind::SupervisorKeep])));
        assert!(!is_to_keep(&[]));
    }
}
