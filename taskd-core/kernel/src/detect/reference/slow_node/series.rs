//! One rank's series, read from the reference's two files, and the test of one series for a degradation.

use super::SlowNodeConfig;
use std::collections::BTreeMap;

/// Maximum number of rows that are read from one file. Further rows are ignored.
pub const ROWS_MAX: usize = 1 << 20;

/// Minimum number of values that are left out at each end of the baseline.
const TRIM_MIN: usize = 3;

/// A row of `comm.csv`: times of one step in nanoseconds, 0 without a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommRow {
    /// Mean duration of the tensor-parallel collective on the device.
    pub zp_device: u64,
    /// The same on the host.
    pub zp_host: u64,
    /// Duration of the first send of the pipeline group on the device.
    pub pp_device: u64,
    /// The same on the host.
    pub pp_host: u64,
    /// Mean time of the data loader.
    pub dataloader_host: u64,
}

/// Series of one rank, by step index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankSeries {
    /// Number of the rank.
    pub rank: u32,
    /// Durations of the steps in nanoseconds, by step index.
    pub steps: BTreeMap<u64, u64>,
    /// Communication of the steps, by step index.
    pub comm: BTreeMap<u64, CommRow>,
}

impl RankSeries {
    /// Reads the series of a rank from the texts of `comm.csv` (`step_index,ZP_device,ZP_host,PP_device,PP_host,
    /// dataloader_host`) and `steptime.csv` (`step time,durations`). Rows without numbers are skipped, because the
    /// reference repeats the header; so are rows beyond [`ROWS_MAX`]. A later row of a step replaces an earlier one.
    #[must_use]
    pub fn of_csv(rank: u32, comm: &str, step_time: &str) -> RankSeries {
        let comm = rows::<6>(comm).map(|[step, zp_device, zp_host, pp_device, pp_host, dataloader_host]| {
            (step, CommRow { zp_device, zp_host, pp_device, pp_host, dataloader_host })
        });
        let steps = rows::<2>(step_time).map(|[step, nanos]| (step, nanos));
        RankSeries { rank, steps: steps.collect(), comm: comm.collect() }
    }

    pub(super) fn step_times(&self) -> Vec<f64> {
        self.steps.values().copied().map(float).collect()
    }

    pub(super) fn series(&self, of: impl Fn(&CommRow) -> u64) -> Vec<f64> {
        self.comm.values().map(|row| float(of(row))).collect()
    }
}

/// Reads rows of exactly `N` whole numbers.
fn rows<const N: usize>(text: &str) -> impl Iterator<Item = [u64; N]> + '_ {
    let row = |line: &str| {
        let mut numbers = [0; N];
        let mut cells = line.split(',');
        for number in &mut numbers {
            *number = cells.next()?.trim().parse().ok()?;
        }
        cells.next().is_none().then_some(numbers)
    };
    text.lines().filter_map(row).take(ROWS_MAX)
}

#[allow(clippy::cast_precision_loss, reason = "of times in nanoseconds only the first digits matter")]
pub(super) fn float(nanos: u64) -> f64 {
    nanos as f64
}

/// Result of the test of one series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Degradation {
    /// True if the last values are all anomalies.
    pub is_slow: bool,
    /// Mean of the last values, divided by the mean of the usual ones, less 1; 0 if the series is not slow.
    pub ratio: f64,
}

/// Tests one series. `None` if it has fewer than `normal_number` + `n_consec` values, or if the baseline is empty after
/// its extremes are left out.
///
/// A value that is no anomaly updates mean and standard deviation. The reference's running variance is not exact and
/// not published; here it is exact (Welford), which matters only if `degradation_percentage` is 0. The weight of the
/// baseline is the number of values that are left in it.
#[must_use]
pub fn degradation(series: &[f64], config: &SlowNodeConfig) -> Option<Degradation> {
    let SlowNodeConfig { normal_number, n_sigma, degradation_percentage, n_consec, .. } = *config;
    if series.len() < normal_number.checked_add(n_consec)? || n_consec == 0 {
        return None;
    }
    let mut baseline = series[..normal_number].to_vec();
    baseline.sort_by(f64::total_cmp);
    let trim = if normal_number >= n_consec.saturating_mul(4) { n_consec } else { TRIM_MIN };
    let usual = baseline.get(trim..normal_number.checked_sub(trim)?).filter(|usual| !usual.is_empty())?;
    let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
    let mut add = |value: f64, mean: &mut f64, squares: &mut f64| {
        count += 1.0;
        let delta = value - *mean;
        *mean += delta / count;
        *squares += delta * (value - *mean);
        *squares / count
    };
    let mut variance = 0.0;
    for value in usual {
        variance = add(*value, &mut mean, &mut squares);
    }
    let mut in_row = 0;
    for value in &series[normal_number..] {
        let bound = if degradation_percentage == 0.0 {
            mean + n_sigma * variance.sqrt()
        } else {
            mean * (1.0 + degradation_percentage)
        };
        if *value > bound {
            in_row += 1;
        } else {
            in_row = 0;
            variance = add(*value, &mut mean, &mut squares);
        }
    }
    if in_row < n_consec {
        return Some(Degradation { is_slow: false, ratio: 0.0 });
    }
    let last = &series[series.len() - n_consec..];
    #[allow(clippy::cast_precision_loss, reason = "a small number of samples")]
    let of_last = last.iter().sum::<f64>() / n_consec as f64;
    Some(Degradation { is_slow: true, ratio: of_last / mean - 1.0 })
}
