//! Mean, median, and the spread of a series.

pub(super) use crate::tables::median_in_place as median;

/// Median of the absolute deviations of a normal distribution, times this, is its standard deviation.
pub(super) const NORMAL: f64 = 1.482_602_218_505_602;

/// Returns the mean; 0 of no value.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / count(values.len()).max(1.0)
}

/// Returns the mean if it is at least as many standard errors from 0 as `errors`; otherwise 0.
pub(super) fn significant_mean(values: &[f64], errors: f64) -> f64 {
    let mean = mean(values);
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count(values.len()).max(1.0);
    if mean.abs() < errors * (variance / count(values.len()).max(1.0)).sqrt() { 0.0 } else { mean }
}

/// Returns a number of things as a factor.
#[allow(clippy::cast_precision_loss, reason = "counts are below 2^52")]
pub(super) const fn count(count: usize) -> f64 {
    count as f64
}

/// Returns the median of sorted values without the one at `index`, of two in the middle the lower; `None` if there is no
/// other.
pub(super) fn low_median_without(sorted: &[f64], index: usize) -> Option<f64> {
    let middle = (sorted.len().checked_sub(1).filter(|count| *count > 0)? - 1) / 2;
    Some(sorted[if middle < index { middle } else { middle + 1 }])
}

/// Returns the standard deviation by the median of the absolute deviations from the median, which single outliers do
/// not change.
pub(super) fn spread(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    let Some(middle) = median(&mut values) else { return 0.0 };
    values.iter_mut().for_each(|value| *value = (*value - middle).abs());
    median(&mut values).unwrap_or(0.0) * NORMAL
}

/// Returns the standard deviation of a series by the differences of its neighbours, which a shift of the level does not
/// change.
pub(super) fn noise(series: &[f64]) -> f64 {
    let differences: Vec<f64> = series.windows(2).map(|pair| pair[1] - pair[0]).collect();
    spread(&differences) / std::f64::consts::SQRT_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_an_even_number_is_between_the_middle_ones() {
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&mut [5.0, 1.0, 3.0]), Some(3.0));
        assert_eq!(median(&mut []), None);
    }

    #[test]
    fn median_without_a_value_is_the_lower_of_the_others() {
        let sorted = [1.0, 2.0, 4.0, 8.0];
        assert_eq!([0, 1, 2, 3].map(|index| low_median_without(&sorted, index).unwrap()), [4.0, 4.0, 2.0, 2.0]);
        assert_eq!([0, 1, 2].map(|index| low_median_without(&sorted[..3], index).unwrap()), [2.0, 1.0, 1.0]);
        assert_eq!(low_median_without(&[1.0], 0), None);
    }

    #[test]
    fn noise_of_a_shifted_series_ignores_the_shift() {
        let series: Vec<f64> = (0..40).map(|step| f64::from(step % 2) + if step < 20 { 0.0 } else { 50.0 }).collect();
        let unshifted: Vec<f64> = (0..40).map(|step| f64::from(step % 2)).collect();
        assert!((noise(&series) - noise(&unshifted)).abs() < 0.2, "{} {}", noise(&series), noise(&unshifted));
    }
}
