//! The supervisor process of the soak run.
//!
//! It has no information about the faults to come.

use crate::outside::notes::{Note, Writer};
use crate::outside::supervised::{ORDER, listen, soak_is_gone};
use std::path::Path;
use std::time::Duration;
use taskd_core::launch::OnOwnerLoss;
use taskd_examples::program::Failure;
use taskd_examples::recover::{Job, Supervised};

/// How long the guard keeps a job without a supervisor.
const KEEP: Duration = Duration::from_secs(60);
/// Bound of the stall detector: longer than the soak run waits for a step, so that the soak run sees every stall.
const STALL: Duration = Duration::from_secs(300);
/// Restart limit, which the soak run must not reach.
const RESTARTS_MAX: u32 = 1_000_000;

/// Runs or continues the job of `dir` to its end.
pub(crate) async fn supervise(dir: &Path) -> Result<(), Failure> {
    let job: Job = serde_json::from_slice(&std::fs::read(dir.join(ORDER))?)?;
    let mut notes = Writer::open(dir)?;
    let keep = OnOwnerLoss::Keep { at_most: KEEP };
    let Supervised { hosts, runtime, .. } = job.supervise(keep, Some((STALL, RESTARTS_MAX))).await?;
    let runtime = runtime.journal(dir.join("journal")).build()?;
    notes.add(Note::Up)?;
    let listener = listen(&runtime.handle(), notes);
    let report = runtime.run_until(soak_is_gone()).await;
    hosts.shutdown().await?;
    listener.await?.add(Note::Over { ok: report.ok, reason: report.reason })?;
    Ok(())
}
