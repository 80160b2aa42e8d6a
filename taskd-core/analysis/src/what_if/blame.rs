//! Stragglers: the workers with an excess that is large, lasting, and clear of the noise.

use super::excess::Excess;
use super::model::Model;
use super::operation::Worker;
use super::statistics::{NORMAL, count, mean, median, noise};

/// Smallest excess over the peers for which a worker is blamed. Equal devices differ by less.
pub const EXCESS_MIN: f64 = 0.05;

/// Smallest number of affected steps for which a worker is blamed.
pub const STEPS_MIN: usize = 3;

/// Smallest ratio of the excess to its standard error for which a worker is blamed. The affected steps are selected for
/// their excess, over all workers, which a normal threshold does not account for.
pub const SIGNIFICANCE_MIN: f64 = 6.0;

/// Smallest ratio of the excess to the spread of the other workers' excess for which a worker is blamed.
pub const SPREAD_MIN: f64 = 5.0;

/// Smallest slowdown of the job, as a fraction, for which a worker is blamed.
pub const EFFECT_MIN: f64 = 0.005;

/// Smallest excess of the other stages of a worker's replica, as a part of the worker's excess, for which the excess is
/// that of the replica.
pub const REPLICA_SHARE_MAX: f64 = 0.5;

/// Maximum number of workers with a scenario of their own, and of workers at fault.
pub const WORKERS_MAX: usize = 16;

/// Smallest standard deviation that is assumed, as a fraction of the expected time.
const NOISE_MIN: f64 = 0.001;

/// A worker that computes longer than its peers, over consecutive steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Straggler {
    /// The worker.
    pub worker: Worker,
    /// Index of the worker in [`Model::workers`].
    pub(super) index: u32,
    /// Index of the first affected step in [`Model::steps`].
    pub first: usize,
    /// Index of the step after the last affected one.
    pub end: usize,
    /// Mean excess in the affected steps, as a fraction of the expected time.
    pub excess: f64,
    /// Mean excess in the other steps; 0 if there is no other.
    pub usual: f64,
    /// Standard deviation of the excess between neighbouring steps.
    pub noise: f64,
    /// `excess` divided by its standard error.
    pub significance: f64,
    /// Mean time of a step without the excess, in seconds.
    pub without_s: f64,
    /// Mean time of a step divided by `without_s`: how much faster the job would run.
    pub speedup: f64,
}

/// Returns the steps with the largest sum of `value - reference`: the maximum of a cumulative sum (CUSUM).
fn largest_sum(series: &[f64], reference: f64) -> Option<(usize, usize)> {
    let (mut sum, mut start) = (0.0, 0);
    let (mut best, mut steps) = (0.0, None);
    for (index, value) in series.iter().enumerate() {
        // A step in which the worker has no peer changes nothing.
        sum += if value.is_nan() { 0.0 } else { value - reference };
        if sum <= 0.0 {
            (sum, start) = (0.0, index + 1);
        } else if sum > best {
            (best, steps) = (sum, Some((start, index + 1)));
        }
    }
    steps
}

fn level(series: &[f64]) -> f64 {
    mean(&finite(series))
}

/// Returns the affected steps of a series and their level. A shift of a known size is found fastest with half of it as
/// the reference of the cumulative sum (Page 1954, Moustakides 1986); the size is estimated first.
fn segment(series: &[f64]) -> Option<(usize, usize, f64)> {
    let (first, end) = largest_sum(series, EXCESS_MIN / 2.0)?;
    let size = level(&series[first..end]);
    let (first, end) = largest_sum(series, (size / 2.0).max(EXCESS_MIN / 2.0))?;
    Some((first, end, level(&series[first..end])))
}

/// Returns the candidate of each worker that has an excess at all, without the effect on the job, the largest excess in
/// sum first.
fn candidates(model: &Model, excess: &Excess) -> Vec<Straggler> {
    let mut noises: Vec<f64> = excess.series.iter().map(|series| noise(&finite(series))).collect();
    let own_noises = noises.clone();
    let common = median(&mut noises).unwrap_or(0.0).max(NOISE_MIN);
    let candidate = |(index, series): (usize, &Vec<f64>)| {
        let (first, end, excess) = segment(series)?;
        let noise = own_noises[index].max(common);
        let steps = finite(&series[first..end]).len();
        let others = [finite(&series[..first]), finite(&series[end..])].concat();
        Some(Straggler {
            worker: model.workers[index],
            index: u32::try_from(index).ok()?,
            first,
            end,
            excess,
            usual: mean(&others),
            noise,
            significance: excess * count(steps).sqrt() / noise,
            without_s: 0.0,
            speedup: 1.0,
        })
    };
    let mut candidates: Vec<Straggler> = excess.series.iter().enumerate().filter_map(candidate).collect();
    let sum = |straggler: &Straggler| straggler.excess * count(straggler.end - straggler.first);
    candidates.sort_by(|a, b| sum(b).total_cmp(&sum(a)));
    candidates
}

/// Result of the search for stragglers.
pub(super) struct Search {
    /// The workers at fault, the largest effect on the job first.
    pub(super) blamed: Vec<Straggler>,
    /// Other workers with an excess, the largest effect first.
    pub(super) others: Vec<Straggler>,
    /// Number of workers with an excess that are in neither list because of [`WORKERS_MAX`].
    pub(super) left_out: usize,
    /// Excess without the workers that were found.
    pub(super) excess: Excess,
    /// Times of the operations without the excess of the workers that were found.
    pub(super) work: Vec<f64>,
}

/// Searches for stragglers one by one, the largest excess in sum first. The excess of each is taken away before the next
/// is searched, because a slow worker is among those with which the others are compared. Nothing is found if
/// `hides_waits`: a worker that waits would be blamed for the worker for which it waits.
pub(super) fn search(model: &Model, modelled_s: f64, hides_waits: bool) -> Search {
    let mut work = model.work.clone();
    let mut excess = Excess::new(model, &work);
    if hides_waits {
        return Search { blamed: Vec::new(), others: Vec::new(), left_out: 0, excess, work };
    }
    let mut found: Vec<Straggler> = Vec::new();
    while found.len() < WORKERS_MAX {
        let own: Vec<Option<f64>> = excess.series.iter().map(|series| median(&mut finite(series))).collect();
        let levels = [own, excess.raw_levels(model)];
        let is_new = |candidate: &Straggler| found.iter().all(|known| known.index != candidate.index);
        let next = candidates(model, &excess)
            .into_iter()
            .take(WORKERS_MAX)
            .find(|candidate| is_new(candidate) && is_straggler(model, &excess, candidate, &levels));
        let Some(mut next) = next else { break };
        measure(model, &excess, &mut next, modelled_s);
        excess.remove(model, next.index, (next.first, next.end), &mut work);
        found.push(next);
        excess = Excess::new(model, &work);
    }
    found.sort_by(|a, b| b.speedup.total_cmp(&a.speedup));
    let mut others = candidates(model, &excess);
    others.retain(|candidate| found.iter().all(|known| known.index != candidate.index));
    let left_out = others.len().saturating_sub(WORKERS_MAX);
    others.truncate(WORKERS_MAX);
    others.iter_mut().for_each(|other| measure(model, &excess, other, modelled_s));
    let (blamed, harmless): (Vec<Straggler>, Vec<Straggler>) =
        found.into_iter().partition(|straggler| straggler.speedup >= 1.0 + EFFECT_MIN);
    others.extend(harmless);
    others.sort_by(|a, b| b.speedup.total_cmp(&a.speedup));
    Search { blamed, others, left_out, excess, work }
}

/// Computes how much faster the job would run without the worker's excess.
fn measure(model: &Model, excess: &Excess, straggler: &mut Straggler, modelled_s: f64) {
    let mut work = model.work.clone();
    excess.remove(model, straggler.index, (straggler.first, straggler.end), &mut work);
    straggler.without_s = model.mean_step(&work);
    straggler.speedup = super::published::ratio(modelled_s, straggler.without_s);
}

/// Returns true if the worker's excess is large, lasting, clear of the noise, and its own.
fn is_straggler(model: &Model, excess: &Excess, candidate: &Straggler, levels: &[Vec<Option<f64>>]) -> bool {
    // A slow worker that was not found yet raises the levels of its replica by one measure, long data by the other. What
    // devices differ by is in both.
    let spreads = levels.iter().map(|levels| spread_of_others(levels, candidate.index as usize));
    let spread = spreads.fold(f64::MAX, f64::min);
    let is_clear = candidate.end - candidate.first >= STEPS_MIN
        && candidate.excess >= EXCESS_MIN.max(SPREAD_MIN * spread)
        && candidate.significance >= SIGNIFICANCE_MIN;
    // All stages of a replica that compute longer have longer data, or a host that they share.
    is_clear
        && excess
            .of_other_stages(model, candidate.index, (candidate.first, candidate.end))
            .is_none_or(|others| others < candidate.excess * REPLICA_SHARE_MAX)
}

fn finite(series: &[f64]) -> Vec<f64> {
    series.iter().copied().filter(|value| value.is_finite()).collect()
}

/// Returns the standard deviation of the other workers' levels around 0, by those above 0: a slow worker lowers the
/// levels of the workers that are compared with it only. With fewer than three of them, the spread is unknown: 0.
fn spread_of_others(levels: &[Option<f64>], own: usize) -> f64 {
    let others = levels.iter().enumerate().filter(|(index, _)| *index != own);
    let mut above: Vec<f64> = others.filter_map(|(_, level)| level.filter(|level| *level > 0.0)).collect();
    if above.len() < 3 { 0.0 } else { median(&mut above).unwrap_or(0.0) * NORMAL }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_of_a_shift_begins_at_the_shift() {
        let series: Vec<f64> = (0..40).map(|step| if step < 17 { 0.01 } else { 0.30 }).collect();
        let (first, end, level) = segment(&series).unwrap();
        assert_eq!((first, end), (17, 40));
        assert!((level - 0.30).abs() < 1e-9);
    }

    #[test]
    fn segment_of_a_recovered_worker_ends_at_the_recovery() {
        let series: Vec<f64> = (0..40).map(|step| if (10..20).contains(&step) { 0.2 } else { -0.01 }).collect();
        assert_eq!(segment(&series).map(|(first, end, _)| (first, end)), Some((10, 20)));
    }

    #[test]
    fn segment_of_a_worker_like_its_peers_is_none() {
        assert_eq!(segment(&[0.01, -0.02, 0.0, 0.02, f64::NAN]), None);
    }
}
