//! Determines from the ranks' checksums which of them have proved to hold the same parameters and optimizer state.
//!
//! It answers queries only: it chooses no rank to copy from, and computes no checksum.
//!
//! Ranks report a checksum at the same steps (the first of a loop, and others from then on). The checksums of one step
//! are a *round*. Ranks with equal checksums in a round belong to one *class*, until a later round shows otherwise. A
//! rank that reports nothing in a round keeps its class, unless that class splits without it. Two ranks of a class are
//! proven replicas if
//!
//! - both name the same group of their framework (for example that of `DistributedDataParallel`), which keeps its
//!   members equal, or
//! - the state of the class has changed since its first round: pipeline stages that were initialized alike differ after
//!   one step.
//!
//! Two ranks that have both reported before and then differ are no replicas until all ranks restart, even if they
//! become equal again: an operation that makes them equal from time to time (local SGD averages parameters) proves
//! nothing about the steps between. After a step of a new kind ([`StateDigest::first_of_kind`]) nothing is proven for a
//! rank that is not in that round.

mod proof;

pub use proof::ReplicaProof;

use crate::job::{Member, Rank};
use crate::state::StateDigest;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Number of rounds that are kept individually. The checksum of a rank that is further behind is dropped, and counted.
const ROUNDS_MAX: usize = 4;

/// Identifies a round: loop number of the program, and step.
pub(crate) type At = (u64, u64);

/// The ranks of one process group that have reported in a round, by their checksum.
pub(crate) type ByDigest<'a> = BTreeMap<&'a str, Vec<Rank>>;

/// Result of comparing the checksums that ranks have reported: which ranks have proved that they hold the same state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Replicas {
    /// The newest rounds of checksums, each with its loop and step, oldest first.
    rounds: Vec<(At, Round)>,
    /// Classes of equal ranks that result from all older rounds.
    classes: Classes,
    /// Ranks that were absent at the first report, until they report: nothing is known of them, and they will get the state
    /// of others. `None` before the first report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    newcomers: Option<BTreeSet<Rank>>,
    /// Name of the group that the framework itself keeps equal, for each rank, as last reported.
    groups: BTreeMap<Rank, String>,
    /// Counters of the checksums, and their cost.
    figures: ReplicaFigures,
}

/// Number of the checksums that a job's ranks computed of their training state, and the time that this took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReplicaFigures {
    /// Number of checksums that ranks have reported.
    pub checks: u64,
    /// Total time that the ranks took to compute the checksums, in microseconds.
    pub took_us: u64,
    /// Number of reported checksums that were not compared, because they arrived too late: the checksums of newer steps
    /// had been evaluated already, or a newer step loop had begun.
    pub late: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Round {
    digests: BTreeMap<Rank, String>,
    /// True if a rank has reported this round as the first after a step whose collectives differ from those of earlier
    /// steps.
    is_first_of_kind: bool,
    /// Ranks that were absent from the world. They train nothing, and will get the state of the other ranks of their
    /// class.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    absent: BTreeSet<Rank>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Classes {
    of: BTreeMap<Rank, u64>,
    all: BTreeMap<u64, Class>,
    next: u64,
    /// Separation number of each rank. Ranks with different numbers have had different checksums after a step that both
    /// have trained. A rank that is not in the map has number 0.
    parted: BTreeMap<Rank, u64>,
    /// The highest separation number in use.
    parts: u64,
    /// Ranks that have reported a checksum since all ranks started.
    heard: BTreeSet<Rank>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Class {
    digest: String,
    at: At,
    /// True if the checksum of the class has changed since the class was first seen.
    moved: bool,
}

/// Key of a set of replicas: ranks with equal keys are replicas.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Class(u64),
    Group(u64, String),
    Alone(Rank),
}

impl Replicas {
    /// Creates a result in which `ranks` are proven replicas: they have reported the same checksum and the same process
    /// group. For tests and simulations.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn proven(ranks: impl IntoIterator<Item = Rank>) -> Replicas {
        let mut replicas = Replicas::default();
        for rank in ranks {
            let group = Some("all".to_owned());
            replicas.hear(
                rank,
                &StateDigest {
                    loop_number: 1,
                    step: 0,
                    digest: "equal".into(),
                    group,
                    took_us: 0,
                    first_of_kind: false,
                },
                &BTreeMap::new(),
            );
        }
        replicas
    }

    /// Records the checksum that a rank reported, in a world from which the `absent` ranks are missing.
    pub fn hear(&mut self, rank: Rank, state: &StateDigest, absent: &BTreeMap<Rank, Member>) {
        let at = (state.loop_number, state.step);
        if self.rounds.iter().any(|(known, seen)| *known == at && seen.digests.get(&rank) == Some(&state.digest)) {
            return; // a reopened link reports it again
        }
        self.figures.checks = self.figures.checks.saturating_add(1);
        self.figures.took_us = self.figures.took_us.saturating_add(state.took_us);
        if self.rounds.last().is_some_and(|((newest, _), _)| *newest < at.0) {
            self.start_again(); // another loop may train other objects
        }
        let is_late = |(oldest, _): &(At, _)| at < *oldest && self.rounds.len() == ROUNDS_MAX;
        let is_of_old_loop = |((newest, _), _): &(At, _)| at.0 < *newest;
        if self.rounds.first().is_some_and(is_late)
            || self.rounds.last().is_some_and(is_of_old_loop)
            || at <= self.classes.newest()
        {
            self.figures.late = self.figures.late.saturating_add(1);
            return;
        }
        match &state.group {
            Some(group) => _ = self.groups.insert(rank, group.clone()),
            None => _ = self.groups.remove(&rank),
        }
        let classes = &self.classes;
        let unknown = || absent.keys().filter(|rank| !classes.of.contains_key(rank)).copied().collect();
        self.newcomers.get_or_insert_with(unknown).remove(&rank);
        let place = self.rounds.partition_point(|(known, _)| *known < at);
        if self.rounds.get(place).is_none_or(|(known, _)| *known != at) {
            let absent = absent.keys().copied().collect();
            self.rounds.insert(place, (at, Round { absent, ..Round::default() }));
        }
        let round = &mut self.rounds[place].1;
        round.digests.insert(rank, state.digest.clone());
        round.is_first_of_kind |= state.first_of_kind;
        if self.rounds.len() > ROUNDS_MAX {
            let (at, round) = self.rounds.remove(0);
            self.classes.fold(at, &round);
        }
    }

    /// Forgets all proofs, because all ranks restart: the proofs concern their predecessors.
    pub fn start_again(&mut self) {
        *self = Replicas { figures: self.figures, ..Replicas::default() };
    }

    /// Returns the cost so far, if any rank has reported a checksum.
    pub(crate) fn figures(&self) -> Option<ReplicaFigures> {
        (self.figures.checks > 0).then_some(self.figures)
    }

    /// Returns the step number of the newest round of checksums (those that ranks reported for one step), if all of
    /// `ranks` have reported a checksum in this round.
    #[doc(hidden)]
    pub fn complete_round(&self, mut ranks: impl Iterator<Item = Rank>) -> Option<u64> {
        let ((_, step), round) = self.rounds.last()?;
        ranks.all(|rank| round.digests.contains_key(&rank)).then_some(*step)
    }

    /// Returns the rounds in which all of `ranks` have reported a checksum, oldest first: the loop and step of the round,
    /// and for each process group that the framework keeps equal, the ranks by their checksum. Ranks of no single group
    /// are left out, because nothing requires that they are equal.
    pub(crate) fn compared<'a>(
        &'a self,
        ranks: &'a BTreeMap<Rank, Member>,
    ) -> impl Iterator<Item = (At, BTreeMap<&'a str, ByDigest<'a>>)> {
        let whole = |(_, round): &&(At, Round)| ranks.keys().all(|rank| round.digests.contains_key(rank));
        self.rounds.iter().filter(whole).map(|(at, round)| {
            let mut groups: BTreeMap<&str, ByDigest<'_>> = BTreeMap::new();
            for (rank, digest) in round.digests.iter().filter(|(rank, _)| ranks.contains_key(rank)) {
                if let Some(group) = self.groups.get(rank) {
                    groups.entry(group).or_default().entry(digest).or_default().push(*rank);
                }
            }
            (*at, groups)
        })
    }

    /// Splits a set of ranks into sets of proven replicas. A rank without a proof forms a set of its own. Ranks that
    /// were absent from the first report on belong to the others if these all are proven replicas: they get their state from them.
    #[must_use]
    pub fn split(&self, ranks: &BTreeSet<Rank>) -> Vec<BTreeSet<Rank>> {
        let classes = self.now();
        let mut sets: BTreeMap<Key, BTreeSet<Rank>> = BTreeMap::new();
        let is_new = |rank: &Rank| self.newcomers.as_ref().is_some_and(|new| new.contains(rank));
        let (new, trained): (Vec<Rank>, Vec<Rank>) = ranks.iter().copied().partition(is_new);
        for rank in trained {
            sets.entry(self.key(rank, &classes)).or_default().insert(rank);
        }
        let only = sets.keys().next().cloned().filter(|key| sets.len() == 1 && !matches!(key, Key::Alone(_)));
        for rank in new {
            sets.entry(only.clone().unwrap_or(Key::Alone(rank))).or_default().insert(rank);
        }
        sets.into_values().collect()
    }

    /// Returns the reason, in one sentence, why no other rank is proven to hold the same state as `rank`.
    #[must_use]
    pub fn why_alone(&self, rank: Rank) -> String {
        let classes = self.now();
        let Some((number, class)) = classes.class(rank) else {
            return match self.has_reported(rank) {
                false => format!("no replica of {rank} is proven: it has reported no checksum of its state"),
                true => format!(
                    "no replica of {rank} is proven: it has reported no checksum after a step whose collective \
                     operations differ from those of earlier steps"
                ),
            };
        };
        let step = class.at.1;
        let is_equal = |other: &Rank| classes.class(*other).is_some_and(|(_, theirs)| theirs.digest == class.digest);
        if let Some(peer) = classes.of.keys().find(|other| classes.have_parted(rank, **other) && is_equal(other)) {
            return format!(
                "no replica of {rank} is proven: its checksum and that of {peer} were equal at step {step}, but have differed after \
                 an earlier step"
            );
        }
        let peer = classes.of.iter().find(|(other, of)| **other != rank && **of == number).map(|(other, _)| other);
        match peer {
            None => {
                format!("no replica of {rank} is proven: no other rank has the checksum of its state at step {step}")
            }
            Some(peer) => format!(
                "no replica of {rank} is proven: {peer} has the same checksum at step {step}, but no training step has \
                 followed the first checksum, and no group of the framework (such as DistributedDataParallel's) covers \
                 all of their state"
            ),
        }
    }

    /// Returns true if nothing is proven for the rank only because it has not reported after a step of a new kind.
    pub(crate) fn lacks_report(&self, rank: Rank) -> bool {
        let is_missing = |round: &Round| !round.digests.contains_key(&rank) && !round.absent.contains(&rank);
        let lacks = self.rounds.iter().any(|(_, round)| round.is_first_of_kind && is_missing(round));
        lacks && self.has_reported(rank)
    }

    /// Returns true if the rank has reported a checksum since all ranks started.
    fn has_reported(&self, rank: Rank) -> bool {
        self.classes.heard.contains(&rank) || self.rounds.iter().any(|(_, round)| round.digests.contains_key(&rank))
    }

    /// Returns the classes of equal ranks after all rounds, the newest included.
    fn now(&self) -> Classes {
        let mut classes = self.classes.clone();
        self.rounds.iter().for_each(|(at, round)| classes.fold(*at, round));
        classes
    }

    fn key(&self, rank: Rank, classes: &Classes) -> Key {
        match (classes.class(rank), self.groups.get(&rank)) {
            (Some((number, class)), _) if class.moved => Key::Class(number),
            (Some((number, _)), Some(group)) => Key::Group(number, group.clone()),
            _ => Key::Alone(rank),
        }
    }
}

impl Classes {
    fn class(&self, rank: Rank) -> Option<(u64, &Class)> {
        let number = *self.of.get(&rank)?;
        Some((number, self.all.get(&number)?))
    }

    /// Returns the newest round that these classes include.
    fn newest(&self) -> At {
        self.all.values().map(|class| class.at).max().unwrap_or_default()
    }

    fn part(&self, rank: Rank) -> u64 {
        self.parted.get(&rank).copied().unwrap_or_default()
    }

    fn have_parted(&self, one: Rank, other: Rank) -> bool {
        self.part(one) != self.part(other)
    }

    /// Separates ranks permanently that have reported checksums before, and whose checksums differ in this round.
    fn part_what_differs(&mut self, round: &Round) {
        let mut digests: BTreeMap<u64, BTreeMap<&str, Vec<Rank>>> = BTreeMap::new();
        for (rank, digest) in round.digests.iter().filter(|(rank, _)| self.heard.contains(rank)) {
            digests.entry(self.part(*rank)).or_default().entry(digest).or_default().push(*rank);
        }
        for ranks in digests.into_values().filter(|parts| parts.len() > 1).flat_map(BTreeMap::into_values) {
            self.parts += 1;
            self.parted.extend(ranks.into_iter().map(|rank| (rank, self.parts)));
        }
    }

    /// Adds a round of checksums to these classes. It must be newer than all rounds before.
    fn fold(&mut self, at: At, round: &Round) {
        self.part_what_differs(round);
        let mut equal: BTreeMap<(u64, &str), BTreeSet<Rank>> = BTreeMap::new();
        for (rank, digest) in &round.digests {
            equal.entry((self.part(*rank), digest)).or_default().insert(*rank);
        }
        let classes_of = |ranks: &BTreeSet<Rank>| ranks.iter().filter_map(|rank| self.of.get(rank).copied()).collect();
        let before: Vec<BTreeSet<u64>> = equal.values().map(classes_of).collect();
        for (((_, digest), ranks), was) in equal.iter().zip(&before) {
            let only = was.first().copied().filter(|_| was.len() == 1);
            let kept = only.filter(|number| before.iter().filter(|others| others.contains(number)).count() == 1);
            let number = kept.unwrap_or_else(|| {
                self.next += 1;
                self.next
            });
            let class = kept.and_then(|number| self.all.remove(&number));
            let class = class.unwrap_or_else(|| Class { digest: (*digest).to_owned(), at, moved: false });
            // The new state of some members proves nothing for one that has not reported: it may be another stage of a
            // pipeline.
            let are_all_there = self.of.iter().all(|(rank, of)| *of != number || ranks.contains(rank));
            let moved = class.moved || are_all_there && class.digest != **digest;
            let digest = if moved { (*digest).to_owned() } else { class.digest };
            self.all.insert(number, Class { digest, at, moved });
            let is_in = |rank: &Rank| ranks.contains(rank) || round.absent.contains(rank);
            self.of.retain(|rank, of| *of != number || !round.is_first_of_kind || is_in(rank));
            self.of.extend(ranks.iter().map(|rank| (*rank, number)));
        }
        self.heard.extend(round.digests.keys());
        let used: BTreeSet<u64> = self.of.values().copied().collect();
        self.all.retain(|number, _| used.contains(number));
    }
}

#[cfg(test)]
mod tests;
