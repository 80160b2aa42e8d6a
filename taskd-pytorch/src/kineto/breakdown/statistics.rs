//! Statistics of values that are kept.

use serde::Serialize;
use taskd_core::analysis::kernels::Durations;

/// Statistics of values, as `describe` of pandas yields them. The unit is that of the values. All are 0 without values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Statistics {
    /// Number of values.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation of a sample; 0 for one value.
    pub deviation: f64,
    /// Smallest value.
    pub min: f64,
    /// Quantile of 25 %. Quantiles between two values are interpolated.
    pub lower_quartile: f64,
    /// Quantile of 50 %.
    pub median: f64,
    /// Quantile of 75 %.
    pub upper_quartile: f64,
    /// Largest value.
    pub max: f64,
}

impl Statistics {
    /// Returns the statistics of integers, and changes their order. Sums are exact.
    #[allow(clippy::cast_precision_loss, reason = "values below 2^53 are exact")]
    pub(super) fn of(values: &mut [i64]) -> Self {
        let mut sums = Durations::default();
        for value in values.iter() {
            sums.add(*value, 1);
        }
        let [lower_quartile, median, upper_quartile] = [1, 2, 3].map(|quarter| {
            let (at, rest) = position(values.len(), quarter);
            if values.is_empty() {
                return 0.0;
            }
            let (_, below, above) = values.select_nth_unstable(at);
            let below = *below as f64;
            let next = above.iter().min().map_or(below, |next| *next as f64);
            below + (next - below) * rest
        });
        let (min, max) = (sums.min as f64, sums.max as f64);
        let (mean, deviation) = (sums.mean(), sums.deviation());
        Self { count: sums.count, mean, deviation, min, lower_quartile, median, upper_quartile, max }
    }

    /// Returns the statistics of finite floats, and sorts them.
    #[allow(clippy::cast_precision_loss, reason = "a count of values")]
    pub(super) fn of_floats(values: &mut [f64]) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let (Some(min), Some(max)) = (values.first().copied(), values.last().copied()) else { return Self::default() };
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        let deviation = if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        let [lower_quartile, median, upper_quartile] = [1, 2, 3].map(|quarter| {
            let (at, rest) = position(values.len(), quarter);
            let below = values.get(at).copied().unwrap_or(max);
            below + (values.get(at + 1).copied().unwrap_or(below) - below) * rest
        });
        Self { count: values.len() as u64, mean, deviation, min, lower_quartile, median, upper_quartile, max }
    }
}

/// Returns the index of the last of `length` sorted values that is not above this quartile, and the share of the way to
/// the next value.
#[allow(clippy::cast_precision_loss, reason = "a rest below four")]
const fn position(length: usize, quarter: usize) -> (usize, f64) {
    let quarters = length.saturating_sub(1) * quarter;
    (quarters / 4, (quarters % 4) as f64 / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_those_of_pandas() {
        // pandas.Series([9, 1, 4, 2, 7, 7]).describe()
        let mut values = [9, 1, 4, 2, 7, 7];
        let of_integers = Statistics::of(&mut values);
        let mut floats = values.map(|value| value as f64);
        let of_floats = Statistics::of_floats(&mut floats);
        for found in [of_integers, of_floats] {
            assert_eq!((found.count, found.min, found.max, found.mean), (6, 1.0, 9.0, 5.0));
            assert_eq!((found.lower_quartile, found.median, found.upper_quartile), (2.5, 5.5, 7.0));
            assert!((found.deviation - 10.0_f64.sqrt()).abs() < 1e-12, "{found:?}");
        }
    }

    #[test]
    fn no_value_and_one_value_have_no_deviation() {
        assert_eq!(Statistics::of(&mut []), Statistics::default());
        assert_eq!(Statistics::of_floats(&mut []), Statistics::default());
        let one = Statistics::of(&mut [-3]);
        assert_eq!((one.count, one.median, one.upper_quartile, one.deviation), (1, -3.0, -3.0, 0.0));
        assert_eq!(Statistics::of_floats(&mut [-3.0]), one);
    }
}
