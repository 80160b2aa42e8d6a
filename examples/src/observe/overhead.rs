//! What observing costs a job: the pace of one job, with a supervisor and without, in turns.

use super::job::TorchrunJob;
use super::story::{Observer, Setting};
use crate::clock::monotonic;
use crate::overhead::Overhead;
use crate::program::Failure;
use std::time::Duration;

/// How long the pace is measured in each turn.
const WINDOW: Duration = Duration::from_secs(3);
/// How long a supervisor has to attach, and the job to forget it, before it counts.
const SETTLE: Duration = Duration::from_millis(500);

/// Measures on a job of its own that takes steps as fast as it can.
///
/// # Errors
/// When the job does not run.
pub async fn measure(setting: &Setting, pairs: u32) -> Result<Overhead, Failure> {
    let dir = tempfile::Builder::new().prefix("taskd-observe-pace-").tempdir()?;
    let mut job = TorchrunJob::start(&setting.python, &dir.path().join("job"), setting.ranks, 0)?;
    job.reach(0, 200).await?;
    let mut all = Vec::new();
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
        all.push(paces);
    }
    job.finish().await?;
    Ok(Overhead::of(&all))
}

/// Steps per second in a window.
async fn pace(job: &TorchrunJob) -> f64 {
    let (begun, first) = (monotonic(), job.progress().1);
    tokio::time::sleep(WINDOW).await;
    let (ended, last) = (monotonic(), job.progress().1);
    last.saturating_sub(first) as f64 / (ended - begun).as_secs_f64()
}
