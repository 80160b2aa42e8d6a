//! What observing costs a job: the pace of one job, with a supervisor and without, in turns.

use super::inject::monotonic;
use super::job::TorchrunJob;
use super::story::{Observer, Setting};
use crate::program::Failure;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// How long the pace is measured in each turn.
const WINDOW: Duration = Duration::from_secs(3);
/// How long a supervisor has to attach, and the job to forget it, before it counts.
const SETTLE: Duration = Duration::from_millis(500);

/// By how much a job is slower when it is observed.
#[derive(Clone, Debug, Serialize)]
pub struct Overhead {
    /// Pairs of turns.
    pub pairs: u32,
    /// Steps per second without a supervisor, on average.
    pub steps_per_s: f64,
    /// Mean over the pairs of how much slower the observed turn was, in percent; negative: it was faster.
    pub slower_percent: f64,
    /// The interval in which that mean lies with 95 % confidence.
    pub interval_percent: (f64, f64),
    /// Whether the interval has zero in it: nothing was measured.
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

/// Measures on a job of its own that takes steps as fast as it can.
///
/// # Errors
/// When the job does not run.
pub async fn measure(setting: &Setting, pairs: u32) -> Result<Overhead, Failure> {
    let dir = tempfile::Builder::new().prefix("taskd-observe-pace-").tempdir()?;
    let mut job = TorchrunJob::start(&setting.python, &dir.path().join("job"), setting.ranks, 0)?;
    job.reach(0, 200).await?;
    let (mut free, mut slower) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        // In turn first and second, so that a trend of the machine's own does not count.
        let mut paces = [0.0; 2];
        for observed in if pair % 2 == 0 { [false, true] } else { [true, false] } {
            let observer = match observed {
                true => Some(Observer::start(&job, 1.0, &dir.path().join(format!("seen-{pair}")))?),
                false => None,
            };
            tokio::time::sleep(SETTLE).await;
            paces[usize::from(observed)] = pace(&job).await;
            drop(observer); // killed: the measurement is all that it was for
        }
        println!("          {:.1} steps/s alone, {:.1} observed", paces[0], paces[1]);
        free.push(paces[0]);
        slower.push(100.0 * (paces[0] / paces[1] - 1.0));
    }
    job.finish().await?;
    Ok(overhead(&free, &slower))
}

/// Steps per second in a window.
async fn pace(job: &TorchrunJob) -> f64 {
    let (begun, first) = (monotonic(), job.progress().1);
    tokio::time::sleep(WINDOW).await;
    let (ended, last) = (monotonic(), job.progress().1);
    last.saturating_sub(first) as f64 / (ended - begun).as_secs_f64()
}

fn overhead(free: &[f64], slower: &[f64]) -> Overhead {
    let n = slower.len().max(1) as f64;
    let mean = slower.iter().sum::<f64>() / n;
    let variance = slower.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    let half = if slower.len() < 2 { f64::INFINITY } else { student_95(slower.len() - 1) * (variance / n).sqrt() };
    Overhead {
        pairs: u32::try_from(slower.len()).unwrap_or(u32::MAX),
        steps_per_s: free.iter().sum::<f64>() / n,
        slower_percent: mean,
        interval_percent: (mean - half, mean + half),
        not_measurable: (mean - half..=mean + half).contains(&0.0),
    }
}

/// Student's t for a 95 % interval with so many degrees of freedom, at least 1; above ten rounded up a little.
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
    fn what_scatters_around_nothing_is_not_measurable_and_a_real_cost_is() {
        let free = [100.0; 6];
        let nothing = overhead(&free, &[1.0, -1.0, 0.5, -0.5, 0.2, -0.3]);
        assert!(nothing.not_measurable && nothing.slower_percent.abs() < 0.1, "{nothing}");
        let real = overhead(&free, &[5.0, 5.5, 4.5, 5.2, 4.9, 5.1]);
        assert!(!real.not_measurable && real.interval_percent.0 > 4.0, "{real}");
        assert!(overhead(&free[..1], &[1.0]).not_measurable, "one pair shows nothing");
    }
}
