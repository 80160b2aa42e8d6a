//! Checksums of the parameters of replicas, one part of them at a time: which ranks of a process group differ from the
//! majority, and since which step.
//!
//! The name of the metric states the group. It judges no group that has not been equal before, and computes no checksum.

use super::divergence::{CORRUPTED, DIVERGED, MINORITY_PERMILLE, Split, listed, split};
use super::{ADVICE, NAME, NumericalDetector};
use crate::detect::{Evidence, Fault, Findings, Suspect};
use crate::job::{Domain, Name, Rank, Role};
use crate::state::View;
use crate::trace::{ReplicaChecksum, split_group_name};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of groups. Checksums of further groups are dropped, and counted.
const GROUPS_MAX: usize = 4096;

/// Maximum number of rounds of a group that wait for ranks. Above it the oldest is dropped, and its checksums are counted.
const ROUNDS_MAX: usize = 16;

/// Checksums of all groups.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Checksums {
    /// By the name of the metric, which contains the members.
    groups: BTreeMap<String, Group>,
    /// Number of checksums that were not compared.
    pub(super) dropped: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Group {
    members: BTreeSet<u32>,
    /// Values of the ranks, by step.
    rounds: BTreeMap<u64, BTreeMap<u32, f64>>,
    /// Newest step that was compared.
    compared: Option<u64>,
    /// True if the ranks have been equal, in any part, in this generation.
    has_been_equal: bool,
    parts: BTreeMap<u16, Part>,
}

/// What is known of one part of a group's parameters. There is one for each part number, so at most 4096.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Part {
    /// Last step at which all ranks were equal, in this generation.
    equal_at: Option<u64>,
    /// Ranks that were blamed; `None` if the part is not known to differ.
    reported: Option<BTreeSet<u32>>,
}

/// One comparison.
struct Compared<'a> {
    step: u64,
    part: u16,
    by_sum: BTreeMap<u64, Vec<Rank>>,
    equal_at: Option<u64>,
    view: &'a View,
}

impl Checksums {
    /// Begins again in a new world: its ranks have to prove again that they are equal. Reported differences are kept.
    pub(super) fn start_again(&mut self) {
        for group in self.groups.values_mut() {
            (group.compared, group.has_been_equal) = (None, false);
            group.rounds.clear();
            group.parts.values_mut().for_each(|part| part.equal_at = None);
            group.parts.retain(|_, part| part.reported.is_some());
        }
        self.groups.retain(|_, group| !group.parts.is_empty());
    }

    /// Adds a rank's checksum of the state after a step, and compares it once all members of the group have one.
    pub(super) fn add(
        &mut self,
        name: &Name,
        rank: Rank,
        step: Option<u64>,
        value: f64,
        view: &View,
        out: &mut Findings,
    ) {
        if !self.groups.contains_key(name.as_str()) {
            let (_, members) = split_group_name(name.as_str());
            if members.is_empty() || self.groups.len() >= GROUPS_MAX {
                self.dropped = self.dropped.saturating_add(1);
                return;
            }
            let members = members.into_iter().collect();
            self.groups.insert(name.as_str().to_owned(), Group { members, ..Group::default() });
        }
        let Some(group) = self.groups.get_mut(name.as_str()) else { return };
        let step = step.filter(|step| group.members.contains(&rank.0) && Some(*step) > group.compared);
        let Some(step) = step.filter(|_| ReplicaChecksum::from_value(value).is_some()) else {
            self.dropped = self.dropped.saturating_add(1);
            return;
        };
        group.rounds.entry(step).or_default().insert(rank.0, value);
        if group.rounds.len() > ROUNDS_MAX {
            let (_, dropped) = group.rounds.pop_first().unwrap_or_default();
            self.dropped = self.dropped.saturating_add(dropped.len() as u64);
        }
        let present = |rank: &&u32| view.world.members().contains_key(&Rank(**rank));
        let is_whole = |of: &BTreeMap<u32, f64>| group.members.iter().filter(present).all(|rank| of.contains_key(rank));
        if !group.rounds.get(&step).is_some_and(is_whole) {
            return;
        }
        let newer = group.rounds.split_off(&step.saturating_add(1));
        let mut complete = std::mem::replace(&mut group.rounds, newer);
        let values = complete.remove(&step).unwrap_or_default();
        let dropped: usize = complete.values().map(BTreeMap::len).sum();
        self.dropped = self.dropped.saturating_add(dropped as u64);
        group.compared = Some(step);
        if !group.compare(step, &values, view, out) {
            self.dropped = self.dropped.saturating_add(values.len() as u64);
        }
    }
}

impl Group {
    /// Compares the ranks' checksums of one step. Returns false if they are of different parts.
    fn compare(&mut self, step: u64, values: &BTreeMap<u32, f64>, view: &View, out: &mut Findings) -> bool {
        let mut by_sum: BTreeMap<u64, Vec<Rank>> = BTreeMap::new();
        let mut parts = BTreeSet::new();
        for (rank, checksum) in values.iter().filter_map(|(rank, v)| Some((rank, ReplicaChecksum::from_value(*v)?))) {
            parts.insert(checksum.part);
            by_sum.entry(checksum.sum).or_default().push(Rank(*rank));
        }
        let (Some(number), 1) = (parts.first().copied(), parts.len()) else { return false };
        let part = self.parts.entry(number).or_default();
        let minority = match split(&by_sum) {
            Split::None => {
                (part.equal_at, self.has_been_equal) = (Some(step), true);
                let reported = part.reported.take();
                for rank in reported.into_iter().flatten().filter(|rank| !self.is_blamed(*rank)) {
                    out.clear(Domain::Process(Role::Rank(Rank(rank))), NumericalDetector::SDC);
                }
                return true;
            }
            Split::Minority(ranks) => ranks,
            Split::Undecided => Vec::new(),
        };
        if part.reported.is_some() || !self.has_been_equal {
            return true; // never equal, for example because the program changes the parameters of each rank by itself
        }
        part.reported = Some(minority.iter().map(|rank| rank.0).collect());
        let equal_at = part.equal_at;
        let known: BTreeSet<u32> = self.blamed_in_others(number);
        let is_new: Vec<Rank> = minority.iter().copied().filter(|rank| !known.contains(&rank.0)).collect();
        let compared = Compared { step, part: number, by_sum, equal_at, view };
        if minority.is_empty() {
            compared.note(out);
        }
        is_new.into_iter().for_each(|rank| compared.blame(rank, out));
        true
    }

    /// Returns true if a rank is blamed for another part.
    fn is_blamed(&self, rank: u32) -> bool {
        self.parts.values().flat_map(|part| &part.reported).any(|ranks| ranks.contains(&rank))
    }

    /// Returns the ranks that are blamed for other parts than this one.
    fn blamed_in_others(&self, number: u16) -> BTreeSet<u32> {
        let others = self.parts.iter().filter(|(part, _)| **part != number);
        others.filter_map(|(_, part)| part.reported.as_ref()).flatten().copied().collect()
    }
}

impl Compared<'_> {
    fn since(&self) -> String {
        match self.equal_at {
            Some(step) => format!("at step {step} this part was equal on all of them, so it has changed after it"),
            None => "this part was not compared before".to_owned(),
        }
    }

    fn note(&self, out: &mut Findings) {
        let (step, part, all) = (self.step, self.part, self.all());
        let text = format!(
            "at step {step} the parameters of {} replicas differ in part {part} ({}); {}. No rank stands out, so none is \
             blamed",
            all.len(),
            listed(&self.by_sum),
            self.since()
        );
        out.note(Domain::Job, Evidence::figure(DIVERGED, to_figure(self.step), None, text).with_peers(all));
    }

    fn blame(&self, rank: Rank, out: &mut Findings) {
        let Some((own, _)) = self.by_sum.iter().find(|(_, ranks)| ranks.contains(&rank)) else { return };
        let Some((usual, peers)) = self.by_sum.iter().max_by_key(|(_, ranks)| ranks.len()) else { return };
        let (step, part, replicas, since) = (self.step, self.part, peers.len(), self.since());
        let text = format!(
            "at step {step} part {part} of the parameters of {rank} (checksum {own:010x}) differs from that of {replicas} \
             replicas ({usual:010x}), which are equal; {since}"
        );
        let before = self.equal_at.map_or_else(|| "that step".to_owned(), |equal| format!("step {}", equal + 1));
        let advice = format!(
            "test the memory and the device of {rank}, and continue from a checkpoint before {before}: its gradients have \
             reached all ranks since then"
        );
        let domain = Domain::Process(Role::Rank(rank));
        let of = self.view.proc_of(&domain).map(|proc| proc.incarnation);
        let suspect = Suspect::new(domain, NumericalDetector::SDC, CORRUPTED, MINORITY_PERMILLE);
        let usual = self.equal_at.map(to_figure);
        let evidence = Evidence::figure(DIVERGED, to_figure(step), usual, text).with_peers(peers.clone());
        let fault = Fault::new(NAME, self.view.now, suspect).with_incarnation(of).with_evidence(evidence);
        out.blame(fault.with_evidence(Evidence::text(ADVICE, advice)));
    }

    fn all(&self) -> Vec<Rank> {
        self.by_sum.values().flatten().copied().collect()
    }
}

/// Returns a step's number as a figure of the evidence.
#[allow(clippy::cast_precision_loss, reason = "steps are far below 2^53")]
fn to_figure(step: u64) -> f64 {
    step as f64
}
