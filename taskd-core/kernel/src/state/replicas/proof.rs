//! The part of a result that another supervisor needs: which ranks were proven replicas, without the checksums.
//!
//! Ranks that are lost cannot prove again what they had proved.

use super::{At, Class, Classes, Replicas};
use crate::job::{Member, Rank};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Ranks that have proved to hold the same state, as of one round of checksums in which all ranks of a world reported.
///
/// It stays valid in later rounds, as long as no step of a new kind follows ([`first_of_kind`](Self::first_of_kind)) and
/// not all ranks restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ReplicaProof {
    /// Index, from 1, of the step loop of the round.
    pub loop_number: u64,
    /// Step of the round.
    pub step: u64,
    /// True if the round was the first after a step with other collectives than earlier steps.
    pub first_of_kind: bool,
    /// The sets of proven replicas, each of two or more ranks.
    pub sets: Vec<BTreeSet<Rank>>,
}

impl ReplicaProof {
    /// Returns true if this proof states more than `known`: other sets, or the same sets after a step of a new kind.
    #[must_use]
    pub fn adds_to(&self, known: &ReplicaProof) -> bool {
        self.sets != known.sets || self.first_of_kind && self.at() > known.at()
    }

    const fn at(&self) -> At {
        (self.loop_number, self.step)
    }
}

impl Replicas {
    /// Returns what the newest round proves; `None` if one of these ranks has not reported in it.
    #[must_use]
    pub fn proof(&self, ranks: &BTreeMap<Rank, Member>) -> Option<ReplicaProof> {
        let ((loop_number, step), round) = self.rounds.last()?;
        if !ranks.keys().all(|rank| round.digests.contains_key(rank)) {
            return None;
        }
        let mut sets = self.split(&ranks.keys().copied().collect());
        sets.retain(|set| set.len() > 1);
        let (loop_number, step, first_of_kind) = (*loop_number, *step, round.is_first_of_kind);
        Some(ReplicaProof { loop_number, step, first_of_kind, sets })
    }

    /// Creates the result that a proof states. Ranks of different sets stay apart until all ranks restart.
    #[must_use]
    pub fn of_proof(proof: &ReplicaProof) -> Replicas {
        let mut classes = Classes::default();
        for (number, set) in (1..).zip(&proof.sets) {
            classes.of.extend(set.iter().map(|rank| (*rank, number)));
            classes.parted.extend(set.iter().map(|rank| (*rank, number)));
            classes.heard.extend(set);
            classes.all.insert(number, Class { digest: String::new(), at: proof.at(), moved: true });
            (classes.next, classes.parts) = (number, number);
        }
        Replicas { classes, ..Replicas::default() }
    }
}
