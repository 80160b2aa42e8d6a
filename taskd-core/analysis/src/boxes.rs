//! Box plots by Tukey.

use crate::document::{BoxPlot, Outlier};
use crate::tables::rounded;

/// One value with the operation and the step for its outlier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value<'a> {
    pub(crate) value: f64,
    pub(crate) operation: &'a str,
    pub(crate) step: Option<u64>,
}

/// Returns the box plot of the values; `None` without values. Sorts them.
///
/// Quartiles are interpolated linearly between the sorted values (Hyndman and Fan, type 7, as numpy does).
pub(crate) fn of(values: &mut [Value<'_>]) -> Option<BoxPlot> {
    values.sort_by(|a, b| a.value.total_cmp(&b.value));
    let (first, last) = (values.first()?.value, values.last()?.value);
    let [q1, median, q3] = [1, 2, 3].map(|quarter| quantile(values, quarter));
    let reach = 1.5 * (q3 - q1);
    let (floor, ceiling) = (q1 - reach, q3 + reach);
    let below = values.partition_point(|value| value.value < floor);
    let above = values.partition_point(|value| value.value <= ceiling);
    let low = values.get(below).map_or(first, |value| value.value);
    let high = above.checked_sub(1).and_then(|at| values.get(at)).map_or(last, |value| value.value);
    let mut beyond: Vec<&Value<'_>> = values[..below].iter().chain(&values[above..]).collect();
    let outlier_count = beyond.len() as u64;
    beyond.sort_by(|a, b| (b.value - median).abs().total_cmp(&(a.value - median).abs()));
    beyond.truncate(BoxPlot::OUTLIERS_MAX);
    let outliers = beyond
        .into_iter()
        .map(|value| Outlier { value: rounded(value.value), operation: value.operation.to_owned(), step: value.step })
        .collect();
    let [low, q1, median, q3, high] = [low, q1, median, q3, high].map(rounded);
    Some(BoxPlot { low, q1, median, q3, high, outliers, outlier_count })
}

/// The quartile between sorted values.
fn quantile(sorted: &[Value<'_>], quarter: usize) -> f64 {
    let position = (sorted.len() - 1) * quarter;
    let (at, part) = (position / 4, position % 4);
    let value = sorted[at].value;
    let next = sorted.get(at + 1).map_or(value, |next| next.value);
    value + (next - value) * [0.0, 0.25, 0.5, 0.75][part]
}

#[cfg(test)]
mod tests {
    use super::{Value, of};
    use crate::document::BoxPlot;

    fn values(values: &[f64]) -> Vec<Value<'static>> {
        values.iter().map(|value| Value { value: *value, operation: "op", step: Some(2) }).collect()
    }

    #[test]
    fn box_of_eight_values_has_interpolated_quartiles() {
        let plot = of(&mut values(&[8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])).unwrap();
        assert_eq!((plot.q1, plot.median, plot.q3), (2.75, 4.5, 6.25));
        assert_eq!((plot.low, plot.high, plot.outlier_count), (1.0, 8.0, 0));
    }

    #[test]
    fn far_value_is_an_outlier_with_its_operation() {
        let plot = of(&mut values(&[1.0, 2.0, 3.0, 4.0, 5.0, 30.0])).unwrap();
        assert_eq!((plot.low, plot.high, plot.outlier_count), (1.0, 5.0, 1));
        assert_eq!((plot.outliers[0].value, plot.outliers[0].step), (30.0, Some(2)));
        assert_eq!(plot.outliers[0].operation, "op");
    }

    #[test]
    fn outliers_above_the_limit_are_counted() {
        let mut many = vec![1.0; 1000];
        many.extend((0..40).map(|at| 100.0 + f64::from(at)));
        let plot = of(&mut values(&many)).unwrap();
        assert_eq!((plot.outlier_count, plot.outliers.len()), (40, BoxPlot::OUTLIERS_MAX));
        assert_eq!(plot.outliers[0].value, 139.0);
        assert_eq!(of(&mut []), None);
    }

    #[test]
    fn box_of_one_value_is_that_value() {
        let plot = of(&mut values(&[3.0])).unwrap();
        assert_eq!((plot.low, plot.q1, plot.median, plot.q3, plot.high), (3.0, 3.0, 3.0, 3.0, 3.0));
    }
}
