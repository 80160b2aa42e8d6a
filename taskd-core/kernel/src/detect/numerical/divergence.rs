//! Replicas with checksums that differ: which ranks of a process group differ from the majority at equal step.
//!
//! It computes no checksum, and judges no rank of a group that has not been equal before.

use super::{NAME, NumericalDetector};
use crate::detect::{Damage, Evidence, Fault, Findings, Health, Suspect};
use crate::job::{Domain, Generation, Name, Rank, Role};
use crate::state::View;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Name of the evidence that replicas have different state.
pub(super) const DIVERGED: Name = Name::new("replica_checksums");

/// Confidence for a rank with another state than that of a strict majority of its replicas.
pub(super) const MINORITY_PERMILLE: u16 = 900;

/// Damage of a rank with wrong parameters or optimizer state. Its device or its memory may be the reason.
pub(super) const CORRUPTED: Damage =
    Damage { process: Health::Healthy, state: Health::Faulty, device: Health::Unknown, program: Health::Unknown };

/// What is known of the groups that the framework keeps equal.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Divergence {
    generation: Generation,
    /// Number of checksums that had been reported when the rounds were compared last.
    seen: u64,
    /// Loop and step of the newest round that was judged.
    judged: Option<(u64, u64)>,
    /// By group: step of the last round in which all its ranks had equal checksums. At most one entry for each rank.
    equal_at: BTreeMap<String, u64>,
    /// Groups that were reported and have not been equal since, with the ranks that were blamed.
    reported: BTreeMap<String, BTreeSet<Rank>>,
}

/// Result of the comparison of one group in one round.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Split {
    /// All ranks are equal.
    None,
    /// A strict majority is equal, and each of these ranks differs from it and from each other.
    Minority(Vec<Rank>),
    /// No rank stands out: there are two ranks only, no strict majority, or several ranks with one other checksum.
    Undecided,
}

impl Divergence {
    /// Compares the rounds that have become complete since the last call.
    pub(super) fn observe(&mut self, view: &View, out: &mut Findings) {
        let checks = view.replicas.figures().map_or(0, |figures| figures.checks);
        if checks == self.seen {
            return; // true of most observations: they cost one comparison
        }
        self.seen = checks;
        if self.generation != view.world.generation() {
            // Other processes, or copied state: the replicas have to prove again that they are equal.
            self.generation = view.world.generation();
            self.equal_at.clear();
        }
        let rounds: Vec<_> = view.replicas.compared(view.world.members()).collect();
        if rounds.last().is_some_and(|(at, _)| Some(*at) < self.judged) {
            self.judged = None; // all ranks have restarted from an earlier step
        }
        for (at, groups) in rounds {
            if Some(at) <= self.judged {
                continue;
            }
            self.judged = Some(at);
            for (group, by_digest) in groups {
                self.judge(at.1, group, &by_digest, view, out);
            }
        }
    }

    fn judge(
        &mut self,
        step: u64,
        group: &str,
        by_digest: &BTreeMap<&str, Vec<Rank>>,
        view: &View,
        out: &mut Findings,
    ) {
        let minority = match split(by_digest) {
            Split::None => {
                self.equal_at.insert(group.to_owned(), step);
                for rank in self.reported.remove(group).into_iter().flatten() {
                    out.clear(Domain::Process(Role::Rank(rank)), NumericalDetector::SDC);
                }
                return;
            }
            Split::Minority(ranks) => ranks,
            Split::Undecided => Vec::new(),
        };
        let Some(equal_at) = self.equal_at.get(group).copied().filter(|_| !self.reported.contains_key(group)) else {
            return; // it has never been equal, for example because each rank trains a part of its own
        };
        self.reported.insert(group.to_owned(), minority.iter().copied().collect());
        let all: Vec<Rank> = by_digest.values().flatten().copied().collect();
        if minority.is_empty() {
            let text = format!(
                "at step {step} the checksums of parameters and optimizer state of {} replicas differ ({}); at step \
                 {equal_at} all were equal. No rank stands out, so none is blamed",
                all.len(),
                listed(by_digest)
            );
            out.note(Domain::Job, Evidence::text(DIVERGED, text).with_peers(all));
            return;
        }
        for rank in &minority {
            let peers: Vec<Rank> = all.iter().copied().filter(|peer| !minority.contains(peer)).collect();
            let text = format!(
                "at step {step} the checksum of {rank}'s parameters and optimizer state differs from that of {} \
                 replicas, which are equal; at step {equal_at} all were equal",
                peers.len()
            );
            let domain = Domain::Process(Role::Rank(*rank));
            let of = view.proc_of(&domain).map(|proc| proc.incarnation);
            let suspect = Suspect::new(domain, NumericalDetector::SDC, CORRUPTED, MINORITY_PERMILLE);
            let evidence = Evidence::text(DIVERGED, text).with_peers(peers);
            out.blame(Fault::new(NAME, view.now, suspect).with_incarnation(of).with_evidence(evidence));
        }
    }
}

/// Compares the ranks by their checksums.
pub(super) fn split<K>(by_digest: &BTreeMap<K, Vec<Rank>>) -> Split {
    if by_digest.len() < 2 {
        return Split::None;
    }
    let all: usize = by_digest.values().map(Vec::len).sum();
    let is_majority = |ranks: &&Vec<Rank>| ranks.len() * 2 > all;
    let others = || by_digest.values().filter(|ranks| !is_majority(ranks));
    let has_majority = by_digest.values().any(|ranks| is_majority(&ranks));
    // Corrupted memory gives every rank a checksum of its own; equal wrong checksums have a common reason.
    if has_majority && others().all(|ranks| ranks.len() == 1) {
        return Split::Minority(others().flatten().copied().collect());
    }
    Split::Undecided
}

/// Lists the sets of equal ranks, as far as they fit in a sentence.
pub(super) fn listed<K>(by_digest: &BTreeMap<K, Vec<Rank>>) -> String {
    const SETS_MAX: usize = 4;
    const RANKS_MAX: usize = 8;
    let set = |ranks: &Vec<Rank>| {
        let named: Vec<String> = ranks.iter().take(RANKS_MAX).map(|rank| rank.0.to_string()).collect();
        let more = if ranks.len() > RANKS_MAX { ", …" } else { "" };
        format!("ranks {}{more}", named.join(", "))
    };
    let sets: Vec<String> = by_digest.values().take(SETS_MAX).map(set).collect();
    let more = if by_digest.len() > SETS_MAX { " | …" } else { "" };
    format!("{}{more}", sets.join(" | "))
}
