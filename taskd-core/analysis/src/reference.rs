//! What other systems' rules find in the same trace, for comparison: MindCluster's slow-node rule and msprof-analyze's
//! slow-rank rule.
//!
//! The rules are those of [`taskd_kernel::detect::reference`]; here are the series that they read, as the systems
//! derive them from a trace:
//!
//! | series | rule |
//! |---|---|
//! | step time | length of the step |
//! | time of a tensor-parallel group | mean of the second to the fourth `reduce` of the kind that the step has most of |
//! | the same without a group | mean of the forward passes |
//! | time of a send | the first send in the step |
//! | data loader | mean of the waits for a batch in the step |
//!
//! A trace has one time for each operation, of the device or of the host: it counts as both.

use crate::index::Index;
use crate::matches::{Call, Matches};
use crate::model::{GroupRole, Kind, RankTrace, Trace};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use taskd_kernel::detect::reference::slow_node::{
    ClusterResult, CommRow, NodeInput, NodeResult, RankSeries, SlowNodeConfig, cluster_result, node_result,
};
use taskd_kernel::detect::reference::slow_rank_dixon::{CollectiveTimes, votes};

/// Collectives of a step that the slow-node rule leaves out, because they warm the step up.
const SKIPPED: usize = 1;
/// Collectives of a step that it reads after them.
const READ: usize = 3;

/// Results of both rules.
#[derive(Clone, Debug, Serialize)]
pub struct ReferenceRules {
    /// The slow-node rule's result for the job, in the fields of its JSON.
    pub slow_node: ClusterResult,
    /// Its results for the hosts.
    pub nodes: Vec<NodeResult>,
    /// The slow-rank rule: in how many collectives each rank was late. Ranks that were never late are absent.
    pub slow_rank_votes: BTreeMap<u32, u64>,
    /// Number of collectives on which the votes were taken.
    pub collectives: u64,
}

/// Applies both rules to a trace.
#[must_use]
pub fn reference_rules(trace: &Trace, config: &SlowNodeConfig) -> ReferenceRules {
    let index = Index::new(trace);
    let matches = Matches::new(&index);
    let mut nodes: BTreeMap<&str, NodeInput> = BTreeMap::new();
    let mut pp_groups = BTreeSet::new();
    for (row, (rank, events)) in trace.ranks.iter().enumerate() {
        let host = events.host.as_deref().unwrap_or("unknown host");
        let node = nodes.entry(host).or_insert_with(|| NodeInput {
            job_id: trace.title.clone(),
            node_ip: host.to_owned(),
            ..NodeInput::default()
        });
        node.ranks.push(series(*rank, row, &index, &matches.calls[row]));
        for group in events.groups.iter().filter(|group| group.members.len() > 1) {
            match group.role {
                GroupRole::Tensor if !node.tp_groups.contains(&group.members) => {
                    node.tp_groups.push(group.members.clone());
                }
                GroupRole::Pipeline => drop(pp_groups.insert(group.members.clone())),
                _ => {}
            }
        }
    }
    let results: Vec<NodeResult> = nodes.values().map(|node| node_result(node, config)).collect();
    let ranks_of = |node: &NodeInput| (node.node_ip.clone(), node.ranks.iter().map(|rank| rank.rank).collect());
    let ranks_of: BTreeMap<String, Vec<u32>> = nodes.values().map(ranks_of).collect();
    let pp_groups: Vec<Vec<u32>> = pp_groups.into_iter().collect();
    let votes = votes(&collectives(&index, &matches));
    ReferenceRules {
        slow_node: cluster_result(&trace.title, &results, &ranks_of, &pp_groups),
        nodes: results,
        slow_rank_votes: votes.late,
        collectives: votes.collectives,
    }
}

/// Returns the series of one rank, by the number of the step.
fn series(rank: u32, row: usize, index: &Index<'_>, calls: &[Call<'_>]) -> RankSeries {
    let events = index.rows[row];
    let mut spans: BTreeMap<(usize, Kind), Vec<u64>> = BTreeMap::new();
    for event in events.events.iter().filter(|event| matches!(event.kind, Kind::Forward | Kind::DataLoader)) {
        if let Some(column) = index.column_of(row, event.start_ns) {
            spans.entry((column, event.kind)).or_default().push(event.duration_ns);
        }
    }
    let mut by_step: BTreeMap<usize, Vec<&Call<'_>>> = BTreeMap::new();
    for call in calls {
        if let Some(column) = call.column {
            by_step.entry(column).or_default().push(call);
        }
    }
    let mut series = RankSeries { rank, ..RankSeries::default() };
    for window in &index.windows[row] {
        let spans = |kind: Kind| mean(spans.get(&(window.column, kind)).into_iter().flatten().copied());
        let calls = by_step.get(&window.column).map_or(&[][..], Vec::as_slice);
        let zp = tensor(events, calls).unwrap_or_else(|| spans(Kind::Forward));
        let send = calls.iter().find(|call| call.event.kind == Kind::Send).map_or(0, |call| call.event.duration_ns);
        let dataloader_host = spans(Kind::DataLoader);
        let comm = CommRow { zp_device: zp, zp_host: zp, pp_device: send, pp_host: send, dataloader_host };
        let step = index.steps[window.column];
        series.steps.insert(step, window.end.abs_diff(window.start));
        series.comm.insert(step, comm);
    }
    series
}

/// Returns the mean time of the step's collectives in the rank's tensor-parallel group; `None` if it is in none.
fn tensor(events: &RankTrace, calls: &[&Call<'_>]) -> Option<u64> {
    let is_tensor = |group: u32| {
        events
            .groups
            .get(group as usize)
            .is_some_and(|group| group.role == GroupRole::Tensor && group.members.len() > 1)
    };
    if !(0..events.groups.len()).any(|group| u32::try_from(group).is_ok_and(is_tensor)) {
        return None;
    }
    let mut kinds: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for call in calls.iter().filter(|call| call.event.kind == Kind::Collective) {
        let Some(details) = call.details.filter(|details| details.group.is_some_and(is_tensor)) else { continue };
        let name = events.names.get(details.operation);
        if name.contains("reduce") {
            kinds.entry(name).or_default().push(call.event.duration_ns);
        }
    }
    let times = kinds.into_values().max_by_key(Vec::len).unwrap_or_default();
    Some(mean(times.into_iter().skip(SKIPPED).take(READ)))
}

/// Returns the mean, rounded down; 0 without values.
fn mean(values: impl Iterator<Item = u64>) -> u64 {
    let (sum, count) = values.fold((0u64, 0u64), |(sum, count), value| (sum.saturating_add(value), count + 1));
    sum.checked_div(count).unwrap_or(0)
}

/// Returns each rank's time in each matched collective. Sends and receives that the trace records as collectives do not
/// count.
fn collectives(index: &Index<'_>, matches: &Matches<'_>) -> Vec<CollectiveTimes> {
    let is_counted = |(row, at): (u32, u32)| {
        let name = matches.calls[row as usize][at as usize]
            .details
            .map_or("", |details| index.rows[row as usize].names.get(details.operation));
        !["send", "recv", "receive"].iter().any(|word| name.contains(word))
    };
    #[allow(clippy::cast_precision_loss, reason = "of a time in nanoseconds only the first digits matter")]
    let time = |member: &(u32, u32)| (index.ranks[member.0 as usize], matches.event(*member).duration_ns as f64);
    let runs = matches.runs.iter().filter(|run| matches.members(run).first().is_some_and(|first| is_counted(*first)));
    runs.map(|run| CollectiveTimes { group: run.group, ranks: matches.members(run).iter().map(time).collect() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{Fault, Job, trace};

    fn rules(job: &Job) -> ReferenceRules {
        reference_rules(&trace(job, 1), &SlowNodeConfig::default())
    }

    #[test]
    fn both_rules_name_a_slow_rank_in_tensor_groups_of_eight() {
        let job = Job { dp: 2, tp: 8, steps: 40, ..Job::default() };
        let slow = Fault::SlowRank { rank: 5, from_step: 25, percent: 60 };
        let found = rules(&job.clone().with_fault(slow));
        assert_eq!((found.slow_node.is_slow, found.slow_node.slow_calculate_ranks.as_slice()), (1, [5].as_slice()));
        let most = found.slow_rank_votes.iter().max_by_key(|(_, votes)| **votes);
        assert_eq!(most.map(|(rank, _)| *rank), Some(5), "{:?}", found.slow_rank_votes);
        assert!(found.collectives > 0);
        assert_eq!(rules(&job).slow_node.is_slow, 0);
    }

    #[test]
    fn a_short_trace_gives_no_verdict() {
        let found = rules(&Job { steps: 10, ..Job::default() });
        assert_eq!((found.slow_node.is_slow, found.slow_node.degradation_level.as_str()), (0, "0.00%"));
    }
}
