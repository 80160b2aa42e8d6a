//! Order statistics by selection, without sorting.

/// Factor from the median absolute deviation to one standard deviation of a normal distribution.
const SIGMA_PER_MAD: f32 = 1.4826;

/// Returns the value of which `eighths` eighths of the values are smaller; NaN if there are none. Changes the order of
/// the values, which must not contain NaN.
pub(super) fn quantile(values: &mut [f32], eighths: usize) -> f32 {
    let at = values.len().saturating_sub(1) * eighths / 8;
    if values.is_empty() { f32::NAN } else { *values.select_nth_unstable_by(at, f32::total_cmp).1 }
}

/// Returns the median, the lower one of two; NaN if there are no values.
pub(super) fn median(values: &mut [f32]) -> f32 {
    quantile(values, 4)
}

/// Returns the standard deviation, estimated from the median absolute deviation (MAD) around `center`. Changes the
/// values.
pub(super) fn deviation(values: &mut [f32], center: f32) -> f32 {
    values.iter_mut().for_each(|value| *value = (*value - center).abs());
    median(values) * SIGMA_PER_MAD
}
