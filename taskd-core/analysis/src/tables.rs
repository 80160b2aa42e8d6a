//! Cells of tables of ranks and steps.

use crate::document::Table;

/// Returns a table without figures.
pub(crate) fn empty(rows: usize, columns: usize) -> Table {
    vec![vec![None; columns]; rows]
}

/// Returns the table, or an empty one if it has no figure.
pub(crate) fn or_none(table: Table) -> Table {
    if table.iter().flatten().all(Option::is_none) { Table::new() } else { table }
}

/// Returns the figures of one step on all ranks.
pub(crate) fn column(table: &Table, column: usize) -> impl Iterator<Item = u64> + '_ {
    table.iter().filter_map(move |row| row.get(column).copied().flatten())
}

/// Returns one figure; `None` also if the table is empty.
pub(crate) fn cell(table: &Table, row: usize, column: usize) -> Option<u64> {
    table.get(row)?.get(column).copied().flatten()
}

/// Returns a figure as a floating-point number.
#[allow(clippy::cast_precision_loss, reason = "times below 2^53 us, 285 years, are exact")]
pub(crate) const fn float(value: u64) -> f64 {
    value as f64
}

/// Returns a value for the document: with three decimals, without any from 10^9 on. Such a value has a short decimal form,
/// which readers of JSON return exactly.
pub(crate) fn rounded(value: f64) -> f64 {
    if value.abs() < 1e9 { (value * 1000.0).round() / 1000.0 } else { value.round() }
}

/// Returns the mean; `None` without values.
pub(crate) fn mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.into_iter().fold((0.0, 0u64), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / float(count))
}

/// Returns the median, the mean of the two middle values for an even number; `None` without values.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    median_in_place(&mut values)
}

/// Returns the median as [`median`] does. The values change their order.
pub(crate) fn median_in_place(values: &mut [f64]) -> Option<f64> {
    let middle = values.len() / 2;
    if values.is_empty() {
        return None;
    }
    let is_even = values.len().is_multiple_of(2);
    let (below, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let upper = *upper;
    if !is_even {
        return Some(upper);
    }
    let lower = below.iter().copied().fold(f64::MIN, f64::max);
    Some(f64::midpoint(lower, upper))
}

/// Returns the text with its first letter in upper case.
pub(crate) fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Returns the mean of a row in microseconds, rounded down; `None` without figures. The first step is left out if there
/// are others, because it includes the warm-up.
pub(crate) fn row_mean(row: &[Option<u64>]) -> Option<u64> {
    let figures = |row: &[Option<u64>]| {
        let (sum, count) =
            row.iter().flatten().fold((0u64, 0u64), |(sum, count), us| (sum.saturating_add(*us), count + 1));
        sum.checked_div(count)
    };
    row.get(1..).and_then(figures).or_else(|| figures(row))
}

#[cfg(test)]
mod tests {
    use super::{mean, median, or_none, row_mean};

    #[test]
    fn statistics_of_few_values_are_exact() {
        assert_eq!(mean([1.0, 2.0, 6.0]), Some(3.0));
        assert_eq!(mean([]), None);
        assert_eq!(median(vec![9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }

    #[test]
    fn row_mean_leaves_the_first_step_out() {
        assert_eq!(row_mean(&[Some(100), Some(4), None, Some(6)]), Some(5));
        assert_eq!(row_mean(&[Some(100)]), Some(100));
        assert_eq!(row_mean(&[None, None]), None);
    }

    #[test]
    fn table_without_figures_is_empty() {
        assert!(or_none(vec![vec![None], vec![None]]).is_empty());
        assert_eq!(or_none(vec![vec![None], vec![Some(0)]]).len(), 2);
    }
}
