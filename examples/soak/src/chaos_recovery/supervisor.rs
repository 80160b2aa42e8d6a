//! What the supervisor of the soak run does.
//!
//! It knows nothing of the faults to come.

use crate::outside::notes::{Note, Writer};
use crate::outside::supervised::{ORDER, listen, soak_is_gone};
use std::path::Path;
use std::time::Duration;
use taskd_core::launch::OnOwnerLoss;
use taskd_examples::program::Failure;
use taskd_examples::recover::{Job, Supervised};

/// How long a job without a supervisor is kept.
const KEEP: Duration = Duration::from_secs(60);
/// Longer than the soak run waits for a step: it is to see every stall.
const STALL: Duration = Duration::from_secs(300);
/// Restarts are what the soak run is for.
const RESTARTS_MAX: u32 = 1_000_000;

/// Runs the job of `dir`, or goes on with it, to its end.
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
