//! The slow-rank rule of msprof-analyze (26.2): in a collective the rank with an abnormally short time is the late one,
//! because the others have waited for it. Each such collective is a vote.
//!
//! Up to 100 ranks Dixon's one-sided test at 0.995 decides, above that three standard deviations. The rule needs at
//! least four distinct times, so it never finds anything in groups of three ranks.

use std::collections::BTreeMap;

/// Maximum number of times for Dixon's test. Above it, three standard deviations decide.
pub const DIXON_MAX: usize = 100;

/// Smallest number of times for which there is a critical value.
const DIXON_MIN: usize = 3;

/// Number of distinct times up to which there is no verdict.
const UNDECIDED_DISTINCT: usize = 3;

/// Standard deviations beyond which a time is an outlier, in groups of more than [`DIXON_MAX`] ranks.
const SIGMAS: f64 = 3.0;

/// Critical values of Dixon's one-sided test at 0.995 for 3 to 100 values, as in msprof-analyze's table
/// `DIXON_TABLE_995` (`cluster_analyse/recipes/slow_rank/dixon_table.py` of 26.2.0).
const CRITICAL: [f64; 98] = [
    0.994, 0.920, 0.823, 0.744, 0.680, 0.723, 0.676, 0.638, 0.707, 0.675, 0.649, 0.672, 0.649, 0.629, 0.611, 0.595,
    0.580, 0.568, 0.556, 0.545, 0.536, 0.526, 0.519, 0.510, 0.503, 0.496, 0.489, 0.484, 0.478, 0.473, 0.468, 0.463,
    0.458, 0.454, 0.450, 0.446, 0.442, 0.439, 0.435, 0.432, 0.429, 0.425, 0.423, 0.420, 0.417, 0.414, 0.412, 0.409,
    0.407, 0.405, 0.402, 0.400, 0.398, 0.396, 0.394, 0.392, 0.391, 0.388, 0.387, 0.385, 0.383, 0.382, 0.380, 0.379,
    0.377, 0.376, 0.374, 0.372, 0.371, 0.370, 0.368, 0.368, 0.366, 0.365, 0.364, 0.363, 0.361, 0.360, 0.359, 0.358,
    0.356, 0.356, 0.355, 0.353, 0.352, 0.352, 0.351, 0.350, 0.349, 0.348, 0.347, 0.346, 0.345, 0.344, 0.344, 0.343,
    0.341, 0.341,
];

/// Returns the critical value of Dixon's test for `n` values; `None` outside of 3 to [`DIXON_MAX`].
#[must_use]
pub fn critical_value(n: usize) -> Option<f64> {
    CRITICAL.get(n.checked_sub(DIXON_MIN)?).copied()
}

/// Returns the positions of the abnormally short times of one collective: those of the ranks that were late. At most
/// one up to [`DIXON_MAX`] times; of equal times the first. Times that are not finite give no verdict.
#[must_use]
pub fn late_positions(times: &[f64]) -> Vec<usize> {
    if times.iter().any(|time| !time.is_finite()) {
        return Vec::new();
    }
    if times.len() <= DIXON_MAX { dixon(times).into_iter().collect() } else { three_sigma(times) }
}

/// Dixon's test of the smallest value.
fn dixon(times: &[f64]) -> Option<usize> {
    let critical = critical_value(times.len())?;
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut distinct = sorted.clone();
    distinct.dedup();
    if distinct.len() <= UNDECIDED_DISTINCT {
        return None;
    }
    let n = sorted.len();
    // The ratios r10, r11, r21 and r22, by the number of values.
    let (next, last) = match n {
        0..=7 => (1, n - 1),
        8..=10 => (1, n - 2),
        11..=13 => (2, n - 2),
        _ => (2, n - 3),
    };
    let range = sorted[last] - sorted[0];
    let ratio = if range == 0.0 { 0.0 } else { (sorted[next] - sorted[0]) / range };
    (ratio > critical).then(|| position_of_least(times)).flatten()
}

/// Times below the mean less three standard deviations; also the shortest one, if a time is above the mean plus three.
fn three_sigma(times: &[f64]) -> Vec<usize> {
    #[allow(clippy::cast_precision_loss, reason = "a number of ranks")]
    let count = times.len() as f64;
    let mean = times.iter().sum::<f64>() / count;
    let deviation = (times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count).sqrt();
    let (low, high) = (mean - SIGMAS * deviation, mean + SIGMAS * deviation);
    let mut late: Vec<usize> = times.iter().enumerate().filter(|(_, time)| **time < low).map(|(at, _)| at).collect();
    if times.iter().any(|time| *time > high)
        && let Some(least) = position_of_least(times)
        && !late.contains(&least)
    {
        late.push(least);
    }
    late
}

fn position_of_least(times: &[f64]) -> Option<usize> {
    let least = times.iter().copied().min_by(f64::total_cmp)?;
    times.iter().position(|time| *time == least)
}

/// One collective operation, with its duration on each rank. The rule does not count point-to-point operations: it leaves
/// operations out that have `send` or `receive` in their name.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveTimes {
    /// Number of the process group.
    pub group: u32,
    /// Ranks that took part, and the duration on each of them in any unit.
    pub ranks: Vec<(u32, f64)>,
}

/// Result of the rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Votes {
    /// In how many collectives each rank was late. Ranks that were never late are absent.
    pub late: BTreeMap<u32, u64>,
    /// Number of collectives on which the votes were taken.
    pub collectives: u64,
}

/// Counts in how many collectives each rank was late. Groups of which the collectives do not all have the same number of
/// ranks are left out.
#[must_use]
pub fn votes(collectives: &[CollectiveTimes]) -> Votes {
    let mut sizes: BTreeMap<u32, Option<usize>> = BTreeMap::new();
    for one in collectives {
        let size = sizes.entry(one.group).or_insert(Some(one.ranks.len()));
        *size = size.filter(|size| *size == one.ranks.len());
    }
    let mut votes = Votes::default();
    for one in collectives.iter().filter(|one| sizes.get(&one.group).is_some_and(Option::is_some)) {
        votes.collectives += 1;
        let times: Vec<f64> = one.ranks.iter().map(|(_, time)| *time).collect();
        for at in late_positions(&times) {
            *votes.late.entry(one.ranks[at].0).or_default() += 1;
        }
    }
    votes
}

#[cfg(test)]
mod tests;
