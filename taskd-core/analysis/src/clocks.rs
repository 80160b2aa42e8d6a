//! Aligns the clocks of the ranks: all members of a synchronous collective end it together.
//!
//! The lowest rank is the reference. A rank's offset is the median difference of its ends to those of an aligned member
//! of a common group; ranks without a common group are chained over other groups, the largest first, so that chains are
//! short. What collectives do not connect, a send and its receive do, which also end together. The alignment removes
//! a constant offset only; a rank with a drifting clock is reported, and its waits are taken from durations instead.

use crate::document::Clocks;
use crate::index::{Index, list};
use crate::matches::{Matches, Run};
use crate::pairing::Pairs;
use crate::tables::{float, median};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of collectives of one group that are compared; above it evenly spaced ones are.
const COMPARED_MAX: usize = 2048;
/// Number of aligned members of a group that are tried as the reference of the others.
const ANCHORS_MAX: u32 = 3;
/// A rank's end agrees with the others up to this difference, or up to [`AGREES_PERCENT`] of the collective.
const AGREES_NS: u64 = 200_000;
/// See [`AGREES_NS`].
const AGREES_PERCENT: u64 = 5;
/// Share of the collectives of a rank that disagree, in percent, above which its clock drifts.
const DRIFT_PERCENT: u64 = 10;

/// Offsets of all clocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Alignment {
    /// Nanoseconds by which each row's clock is ahead of the reference.
    pub(crate) offsets: Vec<i64>,
    /// True for each row with ends that disagree after the alignment.
    pub(crate) drifts: Vec<bool>,
    residuals: Vec<Option<u64>>,
    is_connected: Vec<bool>,
}

/// Members of one group with the ends of what they shared.
struct Links {
    /// Shared operations: the rows and ends of the members.
    runs: Vec<Vec<(u32, i64)>>,
    rows: Vec<u32>,
    tries: u32,
}

/// Aligns all clocks.
pub(crate) fn align(index: &Index<'_>, matches: &Matches<'_>, pairs: &Pairs) -> Alignment {
    let rows = index.rows.len();
    let mut search = Search { offsets: vec![None; rows], links: Vec::new(), of_row: vec![Vec::new(); rows] };
    for runs in matches.runs.chunk_by(|a, b| a.group == b.group) {
        search.add(spaced(runs.iter().filter(|run| run.is_synchronous), runs.len()).map(|run| ends(matches, run)));
    }
    search.links.sort_by_key(|links| std::cmp::Reverse(links.rows.len()));
    let collectives = search.links.len();
    for channel in pairs.pairs.chunk_by(|a, b| (a.send.0, a.receive.0) == (b.send.0, b.receive.0)) {
        let side = |side: (u32, u32)| (side.0, matches.event(side).end_ns());
        search.add(spaced(channel.iter(), channel.len()).map(|pair| vec![side(pair.send), side(pair.receive)]));
    }
    search.connect(collectives);
    let is_connected = search.offsets.iter().map(Option::is_some).collect();
    let offsets: Vec<i64> = search.offsets.into_iter().map(Option::unwrap_or_default).collect();
    let mut alignment = Alignment { offsets, drifts: vec![false; rows], residuals: vec![None; rows], is_connected };
    alignment.check(matches);
    alignment
}

/// Returns evenly spaced items, at most [`COMPARED_MAX`].
fn spaced<T>(items: impl Iterator<Item = T>, count: usize) -> impl Iterator<Item = T> {
    items.step_by(count.div_ceil(COMPARED_MAX).max(1))
}

fn ends(matches: &Matches<'_>, run: &Run) -> Vec<(u32, i64)> {
    matches.members(run).iter().map(|member| (member.0, matches.event(*member).end_ns())).collect()
}

struct Search {
    offsets: Vec<Option<i64>>,
    links: Vec<Links>,
    /// Links of each row by their index.
    of_row: Vec<Vec<usize>>,
}

impl Search {
    fn add(&mut self, runs: impl Iterator<Item = Vec<(u32, i64)>>) {
        let runs: Vec<Vec<(u32, i64)>> = runs.collect();
        let mut rows: Vec<u32> = runs.iter().flatten().map(|(row, _)| *row).collect();
        rows.sort_unstable();
        rows.dedup();
        if rows.len() > 1 {
            self.links.push(Links { runs, rows, tries: 0 });
        }
    }

    /// Sets the offset of every row that is connected to row 0. The first `collectives` links are groups, the others
    /// are channels, which are used only for rows that no group connects. Further components have references of their
    /// own: their offsets to each other are unknown.
    fn connect(&mut self, collectives: usize) {
        for (at, links) in self.links.iter().enumerate() {
            for row in &links.rows {
                self.of_row[*row as usize].push(at);
            }
        }
        let mut channels: VecDeque<usize> = VecDeque::new();
        let mut queue = VecDeque::new();
        if let Some(reference) = self.offsets.first_mut() {
            *reference = Some(0);
            queue.push_back(0);
        }
        loop {
            while let Some(row) = queue.pop_front() {
                for at in self.of_row[row].clone() {
                    if at >= collectives {
                        channels.push_back(at);
                    } else {
                        self.reach(row, at, &mut queue);
                    }
                }
            }
            let Some(channel) = channels.pop_front() else { return };
            let aligned = self.links[channel].rows.iter().find(|row| self.offsets[**row as usize].is_some());
            if let Some(row) = aligned.copied() {
                self.reach(row as usize, channel, &mut queue);
            }
        }
    }

    /// Aligns the members of a link to an aligned one.
    fn reach(&mut self, anchor: usize, at: usize, queue: &mut VecDeque<usize>) {
        let links = &mut self.links[at];
        let Some(offset) = self.offsets[anchor] else { return };
        if links.tries >= ANCHORS_MAX || links.rows.iter().all(|row| self.offsets[*row as usize].is_some()) {
            return;
        }
        links.tries += 1;
        let mut differences: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
        for run in &links.runs {
            let Some((_, end)) = run.iter().find(|(row, _)| *row as usize == anchor) else { continue };
            for (row, other) in run {
                if self.offsets[*row as usize].is_none() {
                    differences.entry(*row as usize).or_default().push(other.saturating_sub(*end));
                }
            }
        }
        for (row, mut differences) in differences {
            let middle = differences.len() / 2;
            let (_, median, _) = differences.select_nth_unstable(middle);
            self.offsets[row] = Some(offset.saturating_add(*median));
            queue.push_back(row);
        }
    }
}

impl Alignment {
    /// Computes the residuals, and finds clocks that drift.
    fn check(&mut self, matches: &Matches<'_>) {
        let rows = self.offsets.len();
        let mut residuals: Vec<Vec<u64>> = vec![Vec::new(); rows];
        // Comparisons and disagreements, in collectives of two members, and of more. Of two members either may be wrong.
        let mut counts = vec![[(0u64, 0u64); 2]; rows];
        for runs in matches.runs.chunk_by(|a, b| a.group == b.group) {
            for run in spaced(runs.iter().filter(|run| run.is_synchronous), runs.len()) {
                let members = matches.members(run);
                let end = |member: &(u32, u32)| {
                    matches.event(*member).end_ns().saturating_sub(self.offsets[member.0 as usize])
                };
                let mut ends: Vec<i64> = members.iter().map(end).collect();
                let (first, last) = (ends[0], ends[ends.len() - 1]);
                let middle = ends.len() / 2;
                let (_, middle, _) = ends.select_nth_unstable(middle);
                for member in members {
                    let is_pair = members.len() == 2;
                    let difference = if is_pair { first.abs_diff(last) } else { end(member).abs_diff(*middle) };
                    residuals[member.0 as usize].push(difference);
                    let share = matches.event(*member).duration_ns / 100 * AGREES_PERCENT;
                    let count = &mut counts[member.0 as usize][usize::from(!is_pair)];
                    count.0 += 1;
                    count.1 += u64::from(difference > share.max(AGREES_NS));
                }
            }
        }
        for (row, mut residuals) in residuals.into_iter().enumerate() {
            let [of_two, of_more] = counts[row];
            let (count, disagreements) = if of_more.0 > 0 { of_more } else { of_two };
            self.drifts[row] = disagreements.saturating_mul(100) > count.saturating_mul(DRIFT_PERCENT);
            if !residuals.is_empty() {
                let middle = residuals.len() / 2;
                self.residuals[row] = Some(*residuals.select_nth_unstable(middle).1);
            }
        }
    }

    /// Returns the offsets, residuals and their sentence for the document.
    pub(crate) fn document(&self, index: &Index<'_>) -> Clocks {
        #[allow(clippy::cast_precision_loss, reason = "offsets are shown in microseconds")]
        let offset_us = self.offsets.iter().map(|offset| *offset as f64 / 1000.0).collect();
        let residual_us = self.residuals.iter().map(|ns| ns.map(|ns| float(ns) / 1000.0)).collect::<Vec<_>>();
        Clocks { offset_us, sentence: self.sentence(index, &residual_us), residual_us }
    }

    fn sentence(&self, index: &Index<'_>, residual_us: &[Option<f64>]) -> String {
        let of = |flags: &[bool], wanted: bool| -> Vec<u32> {
            flags.iter().zip(&index.ranks).filter(|(flag, _)| **flag == wanted).map(|(_, rank)| *rank).collect()
        };
        let (drifting, alone) = (of(&self.drifts, true), of(&self.is_connected, false));
        let known: Vec<f64> = residual_us.iter().flatten().copied().collect();
        if index.ranks.len() < 2 {
            return "The trace has one clock.".to_owned();
        }
        let Some(middle) = median(known.clone()) else {
            return "The ranks share no collective: their clocks are compared as recorded.".to_owned();
        };
        let worst = known.iter().copied().fold(0.0, f64::max);
        let mut sentence = format!(
            "The clocks are aligned by the ends of shared collectives; after that the ends differ by {middle:.1} us in \
             the median rank and by {worst:.1} us in the worst."
        );
        if !drifting.is_empty() {
            sentence += &format!(
                " Clock drift: {} ended more than {DRIFT_PERCENT} % of the shared collectives over {} us from the other \
                 members; these waits are computed from durations.",
                list(&drifting),
                AGREES_NS / 1000
            );
        }
        if !alone.is_empty() {
            sentence += &format!(
                " {} shared no communication with rank {}: the time is as recorded.",
                list(&alone),
                index.ranks[0]
            );
        }
        sentence
    }
}

#[cfg(test)]
mod tests {
    use super::{Alignment, align};
    use crate::index::Index;
    use crate::matches::Matches;
    use crate::model::{Kind, Trace};
    use crate::pairing::Pairs;
    use crate::synthetic::{Job, clock_offsets, trace};

    fn aligned(trace: &Trace) -> (Alignment, String) {
        let index = Index::new(trace);
        let matches = Matches::new(&index);
        let alignment = align(&index, &matches, &Pairs::new(&index, &matches));
        let sentence = alignment.document(&index).sentence;
        (alignment, sentence)
    }

    fn expected(job: &Job, seed: u64) -> Vec<i64> {
        let offsets = clock_offsets(job, seed);
        offsets.iter().map(|offset| offset - offsets[0]).collect()
    }

    #[test]
    fn offsets_of_a_common_group_are_exact() {
        let job = Job::default();
        let (alignment, sentence) = aligned(&trace(&job, 5));
        assert_eq!(alignment.offsets, expected(&job, 5));
        assert!(sentence.contains("0.0 us in the worst"), "{sentence}");
    }

    #[test]
    fn offsets_are_chained_over_groups_and_sends() {
        let job = Job { reduces_over_world: false, tp: 2, dp: 2, pp: 4, ..Job::default() };
        assert_eq!(aligned(&trace(&job, 6)).0.offsets, expected(&job, 6));
        let job = Job { tp: 1, dp: 1, ..job };
        assert_eq!(aligned(&trace(&job, 6)).0.offsets, expected(&job, 6));
    }

    #[test]
    fn rank_with_a_drifting_clock_is_named() {
        let job = Job::default();
        let mut trace = trace(&job, 7);
        for event in &mut trace.ranks.get_mut(&3).unwrap().events {
            event.start_ns += event.start_ns / 100; // 1 %
        }
        let (alignment, sentence) = aligned(&trace);
        assert!(alignment.drifts[3]);
        assert!(sentence.contains("Clock drift: Rank 3 "), "{sentence}");
    }

    #[test]
    fn rank_without_communication_keeps_its_time() {
        let job = Job::default();
        let mut trace = trace(&job, 8);
        trace.ranks.get_mut(&2).unwrap().events.retain(|event| event.kind == Kind::Compute);
        let (alignment, sentence) = aligned(&trace);
        assert_eq!(alignment.offsets[2], 0);
        assert_eq!(alignment.offsets[5], expected(&job, 8)[5]);
        assert!(sentence.contains("Rank 2 shared no communication with rank 0"), "{sentence}");
    }
}
