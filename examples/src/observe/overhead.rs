//! The cost of observing for a job: the pace of one job with a supervisor and without, in turns.

use super::job::TorchrunJob;
use super::story::{Observer, Setting};
use crate::clock::monotonic;
use crate::overhead::Overhead;
use crate::program::Failure;
use std::time::Duration;

/// How long the pace is measured in each turn.
const WINDOW: Duration = Duration::from_secs(3);
/// Time that a supervisor has to attach, and the job to settle after that, before the measurement.
const SETTLE: Duration = Duration::from_millis(500);

/// Measures on a job of its own that runs steps as fast as it can.
///
/// # Errors
/// The job does not run.
pub async fn measure(setting: &Setting, pairs: u32) -> Result<Overhead, Failure> {
    let dir = tempfile::Builder::new().prefix("taskd-observe-pace-").tempdir()?;
    let mut job = TorchrunJob::start(&setting.python, &dir.path().join("job"), setting.ranks, 0)?;
    job.reach(0, 200).await?;
    let mut all = Vec::new();
    for pair in 0..pairs {
        // The order alternates, so that a trend of the machine does not count.
        let mut paces = [0.0; 2];
        for observed in if pair % 2 == 0 { [false, true] } else { [true, false] } {
            let observer = match observed {
                true => Some(Observer::start(&job, 1.0, &dir.path().join(format!("seen-{pair}")))?),
                false => None,
            };
            tokio::time::sleep(SETTLE).await;
            paces[usize::from(observed)] = pace(&job).await;
            drop(observer); // a kill: only the measurement counts
        }
        println!("          {:.1} steps/s alone, {:.1} observed", paces[0], paces[1]);
        all.push(paces);
    }
    job.finish().await?;
    Ok(Overhead::of(&all))
}

/// Returns the steps per second in a window.
async fn pace(job: &TorchrunJob) -> f64 {
    let (begun, first) = (monotonic(), job.progress().1);
    tokio::time::sleep(WINDOW).await;
    let (ended, last) = (monotonic(), job.progress().1);
    last.saturating_sub(first) as f64 / (ended - begun).as_secs_f64()
}
