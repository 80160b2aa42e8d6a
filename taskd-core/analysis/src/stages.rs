//! Pipeline stages: which ranks form them, their times and bubbles.
//!
//! The trace's own stages count if all ranks have one. Otherwise ranks that share a collective group are in one stage,
//! and groups of the world and of the pipeline do not count, as msprof-analyze derives stages. The stages are in the
//! order in which data is first sent through them, or by their lowest rank.

use crate::document::{Overlap, Stage};
use crate::index::Index;
use crate::matches::Matches;
use crate::model::{GroupRole, Kind};
use crate::pairing::Pairs;
use crate::tables::row_mean;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the stage of each row, numbered from 0.
pub(crate) fn stages(index: &Index<'_>, matches: &Matches<'_>, pairs: &Pairs) -> Vec<u32> {
    let named: Option<Vec<u32>> = index.rows.iter().map(|row| row.stage).collect();
    if let Some(named) = named {
        return named;
    }
    let mut components = Components::new(index.rows.len());
    for (row, rank) in index.rows.iter().enumerate() {
        for group in used_groups(index, matches, row) {
            let group = &rank.groups[group as usize];
            let members: Vec<usize> = group.members.iter().filter_map(|member| index.row_of(*member)).collect();
            let is_world = group.role == GroupRole::World || members.len() >= index.rows.len();
            if !is_world && group.role != GroupRole::Pipeline {
                members.into_iter().for_each(|member| components.join(row, member));
            }
        }
    }
    if pairs.pairs.is_empty() {
        // Without sends no pipeline shows: data-parallel ranks without a common group are one stage.
        return vec![0; index.rows.len()];
    }
    number(&mut components, pairs, index.rows.len())
}

/// Groups in which a row ran collectives.
fn used_groups(index: &Index<'_>, matches: &Matches<'_>, row: usize) -> BTreeSet<u32> {
    let collectives = matches.calls[row].iter().filter(|call| call.event.kind == Kind::Collective);
    let groups = collectives.filter_map(|call| call.details?.group);
    groups.filter(|group| (*group as usize) < index.rows[row].groups.len()).collect()
}

/// Numbers the components: a stage follows those from which it received before it sent to them.
fn number(components: &mut Components, pairs: &Pairs, rows: usize) -> Vec<u32> {
    let roots: Vec<usize> = (0..rows).map(|row| components.root(row)).collect();
    // The first send between two components shows the direction of the forward pass.
    let mut forward: BTreeMap<(usize, usize), u32> = BTreeMap::new();
    for pair in &pairs.pairs {
        let ends = (roots[pair.send.0 as usize], roots[pair.receive.0 as usize]);
        let first = forward.entry(ends).or_insert(u32::MAX);
        *first = (*first).min(pair.send.1);
    }
    let is_forward = |from: usize, to: usize, at: u32| {
        forward.get(&(to, from)).is_none_or(|back| at < *back || (at == *back && from < to))
    };
    let mut before: BTreeMap<usize, BTreeSet<usize>> = roots.iter().map(|root| (*root, BTreeSet::new())).collect();
    for (&(from, to), &at) in &forward {
        if from != to && is_forward(from, to, at) {
            before.entry(to).or_default().insert(from);
        }
    }
    let mut order: BTreeMap<usize, u32> = BTreeMap::new();
    while order.len() < before.len() {
        let placed = |set: &BTreeSet<usize>| set.iter().all(|root| order.contains_key(root));
        let open = || before.iter().filter(|(root, _)| !order.contains_key(root));
        // A cycle, which no pipeline has, is broken at its lowest rank.
        let next = open().find(|(_, set)| placed(set)).or_else(|| open().next()).map(|(root, _)| *root);
        let Some(next) = next else { break };
        order.insert(next, u32::try_from(order.len()).unwrap_or(u32::MAX));
    }
    roots.iter().map(|root| order.get(root).copied().unwrap_or_default()).collect()
}

/// Sets of rows that belong together; the root of a set is its lowest row.
struct Components(Vec<usize>);

impl Components {
    fn new(rows: usize) -> Components {
        Components((0..rows).collect())
    }

    fn root(&mut self, row: usize) -> usize {
        let mut root = row;
        while self.0[root] != root {
            self.0[root] = self.0[self.0[root]];
            root = self.0[root];
        }
        root
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a.max(b)] = a.min(b);
    }
}

/// Returns the stages with their times: the largest stage time and the mean bubble of their ranks.
pub(crate) fn figures(index: &Index<'_>, stage_of: &[u32], overlap: &Overlap) -> Vec<Stage> {
    let mut members: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (row, stage) in stage_of.iter().enumerate() {
        members.entry(*stage).or_default().push(row);
    }
    let figures = |(stage, rows): (u32, Vec<usize>)| {
        let means = |table: &crate::document::Table| -> Vec<u64> {
            rows.iter().filter_map(|row| row_mean(table.get(*row)?)).collect()
        };
        let bubbles = means(&overlap.receive_alone_us);
        let bubble_us = bubbles.iter().fold(0u64, |sum, us| sum.saturating_add(*us)).checked_div(bubbles.len() as u64);
        Stage {
            stage,
            ranks: rows.iter().map(|row| index.ranks[*row]).collect(),
            stage_us: means(&overlap.stage_us).into_iter().max().unwrap_or_default(),
            bubble_us: bubble_us.unwrap_or_default(),
        }
    };
    members.into_iter().map(figures).collect()
}

#[cfg(test)]
mod tests {
    use crate::analyze;
    use crate::model::Trace;
    use crate::synthetic::{Job, trace};

    fn without_stages(job: &Job) -> Trace {
        let mut trace = trace(job, 1);
        for rank in trace.ranks.values_mut() {
            rank.stage = None;
        }
        trace
    }

    fn stages(trace: &Trace) -> Vec<Vec<u32>> {
        analyze(trace, &Default::default()).pipeline.stages.into_iter().map(|stage| stage.ranks).collect()
    }

    #[test]
    fn stages_from_groups_equal_the_layout() {
        let job = Job { pp: 4, steps: 3, ..Job::default() };
        assert_eq!(stages(&without_stages(&job)), stages(&trace(&job, 1)));
        assert_eq!(stages(&without_stages(&job))[3], [12, 13, 14, 15]);
    }

    #[test]
    fn job_without_sends_is_one_stage() {
        let job = Job { pp: 1, steps: 3, reduces_over_world: false, ..Job::default() };
        assert_eq!(stages(&without_stages(&job)), [[0, 1, 2, 3]]);
    }

    #[test]
    fn stages_without_groups_are_in_the_order_of_the_forward_pass() {
        // The numbers of the ranks are reversed: rank 3 is the first stage.
        let job = Job { dp: 1, tp: 1, pp: 4, steps: 3, ..Job::default() };
        let mut trace = without_stages(&job);
        for rank in trace.ranks.values_mut() {
            for details in &mut rank.communications {
                details.peer = details.peer.map(|peer| 3 - peer);
            }
            for group in &mut rank.groups {
                group.members.reverse();
            }
        }
        trace.ranks = trace.ranks.into_iter().map(|(rank, events)| (3 - rank, events)).collect();
        assert_eq!(stages(&trace), [[3], [2], [1], [0]]);
    }

    #[test]
    fn stage_has_its_longest_time_and_mean_bubble() {
        let job = Job { dp: 1, tp: 1, pp: 2, steps: 3, ..Job::default() };
        let analysis = analyze(&trace(&job, 1), &Default::default());
        for (row, stage) in analysis.pipeline.stages.iter().enumerate() {
            let mean = |row: &[Option<u64>]| (row[1].unwrap() + row[2].unwrap()) / 2;
            assert_eq!(stage.stage_us, mean(&analysis.overlap.stage_us[row]));
            assert_eq!(stage.bubble_us, mean(&analysis.overlap.receive_alone_us[row]));
        }
        assert_eq!(analysis.pipeline.micro_batches, Some(4));
        assert_eq!(analysis.pipeline.unpaired, 0);
        assert_eq!(analysis.pipeline.pairs.len(), 3 * 4 * 2);
    }
}
