//! Which ranks have proved that they hold the same parameters and optimizer state: from the checksums that they report.
//!
//! It is data with questions: it chooses no rank to copy from, and computes no checksum.
//!
//! Ranks report a checksum at the same steps (the first of a loop, and others from then on). Those of one step are a *round*. Ranks with
//! equal checksums in a round are of one *class*, until a later round shows otherwise; a rank that reports nothing in a round keeps its
//! class, unless that class falls apart without it. Two ranks of a class are proven replicas when
//!
//! - both name the same group of their framework (`DistributedDataParallel`'s, say), which keeps its members equal, or
//! - the state of the class has changed since its first round: stages of a pipeline that were initialized alike differ after one step.
//!
//! Ranks that have both reported before and differ then are no replicas until all start again, even where they come to the same once
//! more: what makes them equal from time to time (local SGD averages parameters) proves nothing of the steps between. Behind a step of a
//! new kind ([`StateDigest::first_of_kind`]) nothing is proven of a rank that is not in that round.

use crate::job::{Member, Rank};
use crate::launch::StateDigest;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Rounds that are kept one by one. A rank that is further behind than that has its checksum dropped, which is counted.
const ROUNDS_MAX: usize = 4;

/// A round: the loop of the program, and the step.
type At = (u64, u64);

/// What the checksums of all ranks have shown so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Replicas {
    /// The newest rounds, oldest first.
    rounds: Vec<(At, Round)>,
    /// What all older rounds come to.
    classes: Classes,
    /// The framework's own group of each rank, as it was named last.
    groups: BTreeMap<Rank, String>,
    /// What it has cost.
    figures: ReplicaFigures,
}

/// What the checksums of ranks' states have cost a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReplicaFigures {
    /// Checksums that ranks have reported.
    pub checks: u64,
    /// What all of them took the ranks to compute, in microseconds.
    pub took_us: u64,
    /// Checksums that came too late to be compared.
    pub late: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Round {
    digests: BTreeMap<Rank, String>,
    /// A rank has reported it behind a step of a new kind.
    is_first_of_kind: bool,
    /// Ranks that the world is without for a while: they train nothing, and are to be given what the others of their class have.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    absent: BTreeSet<Rank>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Classes {
    of: BTreeMap<Rank, u64>,
    all: BTreeMap<u64, Class>,
    next: u64,
    /// Ranks that differ here have differed behind a step that both have trained; 0 where a rank is not in it.
    parted: BTreeMap<Rank, u64>,
    /// How many parts there have been: the number of the newest one.
    parts: u64,
    /// Ranks that have reported since all have started.
    heard: BTreeSet<Rank>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Class {
    digest: String,
    at: At,
    /// The checksum has changed since the class was seen first.
    moved: bool,
}

/// What makes ranks replicas: equal keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Class(u64),
    Group(u64, String),
    Alone(Rank),
}

impl Replicas {
    /// Ranks that have named one group of their framework, and have all reported the same checksum. For tests and simulations.
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

    /// A rank reports its checksum, of a world that is without these for a while.
    pub(crate) fn hear(&mut self, rank: Rank, state: &StateDigest, absent: &BTreeMap<Rank, Member>) {
        let at = (state.loop_number, state.step);
        if self.rounds.iter().any(|(known, seen)| *known == at && seen.digests.get(&rank) == Some(&state.digest)) {
            return; // a link that came back reports it again
        }
        self.figures.checks = self.figures.checks.saturating_add(1);
        self.figures.took_us = self.figures.took_us.saturating_add(state.took_us);
        if self.rounds.last().is_some_and(|((newest, _), _)| *newest < at.0) {
            self.start_again(); // the state of another loop may be of other objects
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

    /// All ranks start again: what was proved was proved of their predecessors.
    pub(crate) fn start_again(&mut self) {
        *self = Replicas { figures: self.figures, ..Replicas::default() };
    }

    /// What it has cost so far, if any rank has reported a checksum.
    pub(crate) fn figures(&self) -> Option<ReplicaFigures> {
        (self.figures.checks > 0).then_some(self.figures)
    }

    /// The step of the newest round in which all of these ranks have reported, if that is the newest round.
    pub(crate) fn complete_round(&self, mut ranks: impl Iterator<Item = Rank>) -> Option<u64> {
        let ((_, step), round) = self.rounds.last()?;
        ranks.all(|rank| round.digests.contains_key(&rank)).then_some(*step)
    }

    /// Splits a set of ranks into sets of proven replicas. A rank without a proof is a set of its own.
    #[must_use]
    pub fn split(&self, ranks: &BTreeSet<Rank>) -> Vec<BTreeSet<Rank>> {
        let classes = self.now();
        let mut sets: BTreeMap<Key, BTreeSet<Rank>> = BTreeMap::new();
        for rank in ranks {
            sets.entry(self.key(*rank, &classes)).or_default().insert(*rank);
        }
        sets.into_values().collect()
    }

    /// Why no other rank is proven to hold what this one holds, in one sentence.
    #[must_use]
    pub fn why_alone(&self, rank: Rank) -> String {
        let classes = self.now();
        let Some((number, class)) = classes.class(rank) else {
            return match self.has_reported(rank) {
                false => format!("no replica of {rank} is proven: it has reported no checksum of its state"),
                true => format!(
                    "no replica of {rank} is proven: it has reported no checksum behind a step that called for other operations of all \
                     ranks than those before"
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
                "no replica of {rank} is proven: {peer} has the same checksum at step {step}, but nothing has been trained since the \
                 first one, and no group of the framework (as DistributedDataParallel's) holds all of their state"
            ),
        }
    }

    /// Whether nothing is proven of a rank only because it has not reported behind a step of a new kind.
    pub(crate) fn lacks_report(&self, rank: Rank) -> bool {
        let is_missing = |round: &Round| !round.digests.contains_key(&rank) && !round.absent.contains(&rank);
        let lacks = self.rounds.iter().any(|(_, round)| round.is_first_of_kind && is_missing(round));
        lacks && self.has_reported(rank)
    }

    /// Whether it has reported since all have started.
    fn has_reported(&self, rank: Rank) -> bool {
        self.classes.heard.contains(&rank) || self.rounds.iter().any(|(_, round)| round.digests.contains_key(&rank))
    }

    /// All rounds taken into account.
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

    /// The newest round that is in.
    fn newest(&self) -> At {
        self.all.values().map(|class| class.at).max().unwrap_or_default()
    }

    fn part(&self, rank: Rank) -> u64 {
        self.parted.get(&rank).copied().unwrap_or_default()
    }

    fn have_parted(&self, one: Rank, other: Rank) -> bool {
        self.part(one) != self.part(other)
    }

    /// Ranks that have reported before and differ now part for good.
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

    /// Takes a round into account, which is newer than all before.
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
            // What some members have come to proves nothing of one that has not reported: it may be another stage of a pipeline.
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
