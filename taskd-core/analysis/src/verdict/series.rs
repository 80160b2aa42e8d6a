//! Robust statistics of one series: where it is persistently above zero.

use crate::tables::{float, median};

/// Excesses are limited to this multiple of the threshold, so that no single step decides.
const CLIP: f64 = 3.0;
/// Share of the affected steps that must exceed half of the threshold.
const SHARE_MIN: f64 = 0.8;
/// The median excess must be this multiple of its standard error.
const ERRORS_MIN: f64 = 5.0;
/// Standard deviation of normal noise divided by its median absolute deviation.
const DEVIATION_OF_MAD: f64 = 1.4826;
/// Standard error of a median divided by that of a mean, for normal noise.
const ERROR_OF_MEDIAN: f64 = 1.2533;

/// A range of a series that is above the threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Onset {
    /// First element.
    pub(super) first: usize,
    /// End of the range, exclusive.
    pub(super) end: usize,
    /// Median of the range.
    pub(super) level: f64,
    /// Share of its elements above half of the threshold.
    pub(super) share: f64,
}

/// Finds the range with the largest sum above half of the threshold (a CUSUM with both ends open) and returns it if it
/// is long, consistent, above the threshold, and beyond the noise.
pub(super) fn onset(series: &[f64], threshold: f64, noise: f64, steps_min: usize) -> Option<Onset> {
    let (mut best, mut range) = (0.0, 0..0);
    let (mut sum, mut first) = (0.0, 0);
    for (at, value) in series.iter().enumerate() {
        sum += value.clamp(-CLIP * threshold, CLIP * threshold) - threshold / 2.0;
        if sum <= 0.0 {
            (sum, first) = (0.0, at + 1);
        } else if sum > best {
            (best, range) = (sum, first..at + 1);
        }
    }
    let affected = series.get(range.clone()).filter(|affected| affected.len() >= steps_min.max(1))?;
    let level = median(affected.to_vec())?;
    let above = affected.iter().filter(|value| **value > threshold / 2.0).count();
    let (above, count) = (float(above as u64), float(affected.len() as u64));
    let error = ERROR_OF_MEDIAN * noise / count.sqrt();
    let share = above / count;
    let is_slow = level >= threshold && share >= SHARE_MIN && level >= ERRORS_MIN * error;
    is_slow.then_some(Onset { first: range.start, end: range.end, level, share })
}

/// Returns the standard deviation of the noise in several series, by the median absolute difference of successive values:
/// the level of a series, which may be that of a fault, does not count.
pub(super) fn noise<'a>(series: impl IntoIterator<Item = &'a [f64]>) -> f64 {
    let differences = series.into_iter().flat_map(|series| series.windows(2).map(|pair| (pair[1] - pair[0]).abs()));
    median(differences.collect()).unwrap_or_default() * DEVIATION_OF_MAD / std::f64::consts::SQRT_2
}

/// Returns the median of all other values for each value.
pub(super) fn others_median(values: &[Option<f64>]) -> Vec<Option<f64>> {
    let mut sorted: Vec<f64> = values.iter().flatten().copied().collect();
    sorted.sort_by(f64::total_cmp);
    let others = |value: &f64| {
        let own = sorted.partition_point(|other| other.total_cmp(value).is_lt());
        let without = |at: usize| sorted[if at < own { at } else { at + 1 }];
        let count = sorted.len() - 1;
        match count {
            0 => None,
            odd if odd % 2 == 1 => Some(without(odd / 2)),
            even => Some(f64::midpoint(without(even / 2 - 1), without(even / 2))),
        }
    };
    values.iter().map(|value| value.as_ref().and_then(others)).collect()
}

#[cfg(test)]
mod tests {
    use super::{noise, onset, others_median};
    use crate::tables::median;
    use proptest::prelude::*;

    #[test]
    fn step_up_is_found_at_its_first_element() {
        let mut series = vec![0.01, -0.02, 0.0, 0.02, -0.01, 0.01];
        series.extend([0.3; 8]);
        let found = onset(&series, 0.1, 0.02, 5).unwrap();
        assert_eq!((found.first, found.end), (6, 14));
        assert_eq!(onset(&series[..9], 0.1, 0.02, 5), None); // three steps are too few
    }

    #[test]
    fn single_spikes_are_no_onset() {
        let series: Vec<f64> = (0..40).map(|at| if at % 9 == 4 { 2.0 } else { 0.0 }).collect();
        assert_eq!(onset(&series, 0.1, 0.0, 5), None);
        let varying: Vec<f64> = (0..40).map(|at| if at % 2 == 0 { 0.4 } else { -0.3 }).collect();
        assert_eq!(onset(&varying, 0.1, noise([varying.as_slice()]), 5), None);
    }

    proptest! {
        #[test]
        fn others_median_equals_the_naive_one(values in prop::collection::vec(prop::option::of(0u8..9), 0..9)) {
            let values: Vec<Option<f64>> = values.into_iter().map(|value| value.map(f64::from)).collect();
            let naive = |at: usize| {
                values[at]?;
                median(values.iter().enumerate().filter(|other| other.0 != at).filter_map(|other| *other.1).collect())
            };
            prop_assert_eq!(others_median(&values), (0..values.len()).map(naive).collect::<Vec<_>>());
        }
    }
}
