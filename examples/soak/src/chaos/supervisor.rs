//! The supervisor process of the soak run.
//!
//! It has no information about the faults to come.

use crate::outside::notes::{Note, Writer};
use crate::outside::supervised::{ORDER, listen, soak_is_gone};
use std::path::Path;
use std::time::Duration;
use taskd_core::launch::OnOwnerLoss;
use taskd_examples::digits::{DigitsJob, Supervised};
use taskd_examples::program::Failure;

/// How long the guard keeps a job without a supervisor.
const KEEP: Duration = Duration::from_secs(60);

/// Runs or continues the job of `dir` to its end.
pub(crate) async fn supervise(dir: &Path, keep: bool) -> Result<(), Failure> {
    let job: DigitsJob = serde_json::from_slice(&std::fs::read(dir.join(ORDER))?)?;
    let on_loss = if keep { OnOwnerLoss::Keep { at_most: KEEP } } else { OnOwnerLoss::default() };
    let mut notes = Writer::open(dir)?;
    let Supervised { local, torch, runtime } = job.supervise(dir, on_loss).await?;
    notes.add(Note::Up)?;
    let listener = listen(&runtime.handle(), notes);
    let report = runtime.run_until(soak_is_gone()).await;
    drop(torch);
    local.shutdown(Duration::ZERO).await?;
    listener.await?.add(Note::Over { ok: report.ok, reason: report.reason })?;
    Ok(())
}
