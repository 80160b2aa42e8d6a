//! Which computations and exchanges take longer than usual.

use super::{CheckSettings, Outcome, Report};
use std::collections::BTreeSet;

/// Times of all probes that passed.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    /// Shortest computation of each host in nanoseconds, and the number of its computations.
    compute: Vec<Option<(u64, u32)>>,
    /// A computation above this is slow; `None` if there is no usual one.
    compute_limit: Option<u64>,
    /// An exchange above this is slow.
    exchange_limit: Option<u64>,
}

/// A host with a slow computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlowCompute {
    pub(super) host: usize,
    /// Its shortest computation as a share of the usual one, in thousandths.
    pub(super) permille: u64,
}

impl Times {
    pub(super) fn of(hosts: usize, reports: &[Report], settings: &CheckSettings) -> Times {
        let mut compute: Vec<Option<(u64, u32)>> = vec![None; hosts];
        let mut exchanges = Vec::new();
        for report in reports {
            let Outcome::Passed { compute_ns, exchange_ns } = &report.outcome else { continue };
            if report.group.len() > 1 {
                exchanges.push(*exchange_ns);
            }
            for (host, time) in report.group.iter().zip(compute_ns) {
                let Some(entry) = compute.get_mut(*host) else { continue };
                *entry = Some(entry.map_or((*time, 1), |(least, count)| (least.min(*time), count + 1)));
            }
        }
        let usual = usual(compute.iter().flatten().map(|(least, _)| *least).collect());
        Times {
            compute,
            compute_limit: usual.map(|usual| share(usual, settings.compute_permille)),
            exchange_limit: self::usual(exchanges).map(|usual| share(usual, settings.exchange_permille)),
        }
    }

    /// Returns the groups of probes that passed, and whether their exchange was fast.
    pub(super) fn exchanges<'a>(
        &self,
        reports: &'a [Report],
    ) -> impl Iterator<Item = (&'a [usize], bool)> + Clone + use<'a> {
        let limit = self.exchange_limit;
        reports.iter().filter(|report| report.group.len() > 1).filter_map(move |report| match &report.outcome {
            Outcome::Passed { exchange_ns, .. } => {
                Some((&*report.group, limit.is_none_or(|limit| *exchange_ns <= limit)))
            }
            Outcome::Failed | Outcome::TimedOut => None,
        })
    }

    /// Returns the hosts with a slow computation in at least two probes, slower than all their peers.
    pub(super) fn slow(&self) -> Vec<SlowCompute> {
        self.above_limit(|count| count >= 2)
    }

    /// Returns the hosts with a single computation, which was slow: a second one confirms it or not.
    pub(super) fn unconfirmed(&self) -> BTreeSet<usize> {
        self.above_limit(|count| count == 1).into_iter().map(|slow| slow.host).collect()
    }

    fn above_limit(&self, has_count: impl Fn(u32) -> bool) -> Vec<SlowCompute> {
        let Some(limit) = self.compute_limit else { return Vec::new() };
        let usual = usual(self.compute.iter().flatten().map(|(least, _)| *least).collect()).unwrap_or(1).max(1);
        let slow = self.compute.iter().enumerate().filter_map(|(host, time)| {
            let (least, count) = (*time)?;
            let permille = u64::try_from(u128::from(least) * 1000 / u128::from(usual)).unwrap_or(u64::MAX);
            (least > limit && has_count(count)).then_some(SlowCompute { host, permille })
        });
        slow.collect()
    }
}

/// Returns the lower median: of two times the shorter one, so that one slow pair of two is found. `None` for less than two
/// times, of which none is usual.
fn usual(mut times: Vec<u64>) -> Option<u64> {
    if times.len() < 2 {
        return None;
    }
    let middle = (times.len() - 1) / 2;
    Some(*times.select_nth_unstable(middle).1)
}

fn share(time: u64, permille: u64) -> u64 {
    u64::try_from(u128::from(time) * u128::from(permille) / 1000).unwrap_or(u64::MAX)
}
