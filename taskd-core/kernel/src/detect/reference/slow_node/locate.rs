//! Localisation on a host with a slow rank: which ranks compute slowly, which links, which host.

use super::result::NodeResult;
use super::series::{CommRow, RankSeries, degradation, float};
use super::{NodeInput, SlowNodeConfig};
use std::collections::{BTreeMap, BTreeSet};

/// Fills the causes into a result. Groups of which a member's series is missing are skipped.
pub(super) fn locate(input: &NodeInput, config: &SlowNodeConfig, result: &mut NodeResult) {
    let ranks: BTreeMap<u32, &RankSeries> = input.ranks.iter().map(|rank| (rank.rank, rank)).collect();
    let is_slow = |rank: &RankSeries, of: fn(&CommRow) -> u64| {
        degradation(&rank.series(of), config).is_some_and(|degradation| degradation.is_slow)
    };
    let grouped: BTreeSet<u32> = input.tp_groups.iter().flatten().copied().collect();
    let alone = ranks.keys().filter(|rank| !grouped.contains(rank)).map(|rank| vec![*rank]);
    let mut calculate = BTreeSet::new();
    for group in input.tp_groups.iter().cloned().chain(alone) {
        let members: Vec<&RankSeries> = group.iter().filter_map(|rank| ranks.get(rank).copied()).collect();
        if members.len() < group.len() || members.is_empty() {
            continue;
        }
        let all_slow = members.iter().all(|rank| is_slow(rank, |row| row.zp_device));
        if let [member] = members.as_slice() {
            calculate.extend(all_slow.then_some(member.rank));
            continue;
        }
        let late = slow_calculate(&members, config);
        if late.is_empty() && all_slow {
            result.slow_communication_domains.push(group);
        }
        calculate.extend(late);
    }
    result.slow_calculate_ranks = calculate.into_iter().collect();
    let slow_send = ranks.values().filter(|rank| is_slow(rank, |row| row.pp_device));
    result.slow_send_ranks = slow_send.map(|rank| rank.rank).collect();
    if !ranks.is_empty() && ranks.values().all(|rank| is_slow(rank, |row| row.zp_host)) {
        result.slow_host_nodes.push(input.node_ip.clone());
    }
    // `slowIORanks` stays empty: the reference evaluates it only if the whole host is slow, and then subtracts the
    // host.
}

/// Returns the ranks of a group that were late in the same way in each of the last steps that all of them have.
fn slow_calculate(members: &[&RankSeries], config: &SlowNodeConfig) -> BTreeSet<u32> {
    let Some((first, others)) = members.split_first() else { return BTreeSet::new() };
    let is_common = |step: &&u64| others.iter().all(|rank| rank.comm.contains_key(step));
    let steps: Vec<u64> = first.comm.keys().rev().filter(is_common).take(config.n_consec).copied().collect();
    if steps.len() < config.n_consec || steps.is_empty() {
        return BTreeSet::new();
    }
    let late_in = |step: &u64| {
        let of = |rank: &&RankSeries| (rank.rank, float(rank.comm.get(step).map_or(0, |row| row.zp_device)));
        late_in_collective(&members.iter().map(of).collect::<Vec<_>>(), config.cluster_mean_distance)
    };
    let mut sets = steps.iter().map(late_in);
    let first = sets.next().unwrap_or_default();
    if sets.all(|set| set == first) { first } else { BTreeSet::new() }
}

/// Returns the ranks that were late in one collective, from each rank's time in it: the sorted times are split at their
/// largest gap, if the gap is at least half of their range and the means of the two sides differ by more than the
/// factor `distance`. The side with the short times is split further. Empty without a split.
#[must_use]
pub fn late_in_collective(times: &[(u32, f64)], distance: f64) -> BTreeSet<u32> {
    let mut sorted = times.to_vec();
    sorted.sort_by(|one, other| one.1.total_cmp(&other.1));
    let mut small = sorted.as_slice();
    while let Some(at) = split(small, distance) {
        small = &small[..at];
    }
    if small.len() == sorted.len() { BTreeSet::new() } else { small.iter().map(|(rank, _)| *rank).collect() }
}

/// Returns the number of values on the small side of a split.
fn split(sorted: &[(u32, f64)], distance: f64) -> Option<usize> {
    let gaps = sorted.windows(2).map(|pair| pair[1].1 - pair[0].1);
    let mut largest: Option<(usize, f64)> = None;
    for (at, gap) in (1..).zip(gaps) {
        if largest.is_none_or(|(_, before)| gap > before) {
            largest = Some((at, gap));
        }
    }
    let (at, gap) = largest?;
    let range = sorted.last()?.1 - sorted.first()?.1;
    let (small, big) = sorted.split_at(at);
    (gap >= range / 2.0 && mean(big) / mean(small) > distance).then_some(at)
}

#[allow(clippy::cast_precision_loss, reason = "a number of ranks")]
fn mean(values: &[(u32, f64)]) -> f64 {
    values.iter().map(|(_, value)| value).sum::<f64>() / values.len() as f64
}
