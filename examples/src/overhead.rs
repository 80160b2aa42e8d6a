//! How much slower a job is with taskd than without, as far as pairs of turns can show.

use serde::Serialize;
use std::fmt;

/// How much slower a job is with taskd than without.
#[derive(Clone, Debug, Serialize)]
pub struct Overhead {
    /// Pairs of turns.
    pub pairs: u32,
    /// Steps per second without, on average.
    pub steps_per_s: f64,
    /// Mean slowdown of the turn with taskd over the pairs, in percent; negative: it was faster.
    pub slower_percent: f64,
    /// The 95 % confidence interval of that mean.
    pub interval_percent: (f64, f64),
    /// True if the interval contains zero: no slowdown was measurable.
    pub not_measurable: bool,
}

impl fmt::Display for Overhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = self.interval_percent;
        write!(
            f,
            "{:+.2} % ({low:+.2} to {high:+.2}) over {} pairs at {:.0} steps/s",
            self.slower_percent, self.pairs, self.steps_per_s
        )
    }
}

impl Overhead {
    /// Returns the overhead of pairs of turns: the pace without taskd and with it, in steps per second.
    #[must_use]
    pub fn of(paces: &[[f64; 2]]) -> Overhead {
        let slower: Vec<f64> = paces.iter().map(|[without, with]| 100.0 * (without / with - 1.0)).collect();
        let n = slower.len().max(1) as f64;
        let mean = slower.iter().sum::<f64>() / n;
        let variance = slower.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        let half = if slower.len() < 2 { f64::INFINITY } else { student_95(slower.len() - 1) * (variance / n).sqrt() };
        Overhead {
            pairs: u32::try_from(slower.len()).unwrap_or(u32::MAX),
            steps_per_s: paces.iter().map(|[without, _]| without).sum::<f64>() / n,
            slower_percent: mean,
            interval_percent: (mean - half, mean + half),
            not_measurable: (mean - half..=mean + half).contains(&0.0),
        }
    }
}

/// Returns Student's t for a 95 % interval and `freedom` degrees of freedom, at least 1; above ten slightly rounded up.
fn student_95(freedom: usize) -> f64 {
    const T: [f64; 10] = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23];
    match freedom {
        0..=10 => T[freedom.max(1) - 1],
        11..=20 => 2.20,
        _ => 2.09,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overhead_is_not_measurable_within_scatter_and_is_beyond_it() {
        let overhead = |percent: &[f64]| {
            let pair = |percent: &f64| [100.0, 100.0 / (1.0 + percent / 100.0)];
            Overhead::of(&percent.iter().map(pair).collect::<Vec<_>>())
        };
        let nothing = overhead(&[1.0, -1.0, 0.5, -0.5, 0.2, -0.3]);
        assert!(nothing.not_measurable && nothing.slower_percent.abs() < 0.1, "{nothing}");
        let real = overhead(&[5.0, 5.5, 4.5, 5.2, 4.9, 5.1]);
        assert!(!real.not_measurable && real.interval_percent.0 > 4.0, "{real}");
        assert!(overhead(&[1.0]).not_measurable, "one pair shows nothing");
    }
}
