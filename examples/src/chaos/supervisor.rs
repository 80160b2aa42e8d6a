//! The supervisor: this same program, started again with `--supervise`, so that it can be killed like any other process.
//!
//! It knows nothing of the faults to come.

use super::notes::{Note, Writer};
use crate::digits::{DigitsJob, Supervised};
use crate::program::Failure;
use std::io::Read;
use std::path::Path;
use std::time::Duration;
use taskd_core::launch::OnOwnerLoss;
use taskd_core::runtime::{Announcement, RuntimeHandle};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The file in a job's directory that says what to run.
pub(crate) const ORDER: &str = "order.json";

/// How long a job without a supervisor is kept.
const KEEP: Duration = Duration::from_secs(60);

/// Runs the job of `dir`, or goes on with it, to its end.
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

/// Writes down what happens until the runtime is gone.
fn listen(handle: &RuntimeHandle, mut notes: Writer) -> JoinHandle<Writer> {
    let mut events = handle.events();
    tokio::spawn(async move {
        loop {
            let note = match events.recv().await.as_deref() {
                Ok(Announcement { event, .. }) => Note::of(event),
                Err(RecvError::Lagged(missed)) => Note::Told(format!("{missed} events were missed")),
                Err(RecvError::Closed) => return notes,
            };
            if let Err(error) = notes.add(note) {
                tracing::error!(%error, "a note cannot be written");
            }
        }
    })
}

/// Nothing is to outlive the soak run: it holds the other end of our stdin.
async fn soak_is_gone() -> &'static str {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]); // end of file or an error: either way nobody is there
        let _ = tell.send(());
    });
    let _ = told.await;
    "the soak run is gone"
}
