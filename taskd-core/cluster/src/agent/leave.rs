//! The orderly end of a host's processes, before it leaves the job.

use std::time::Duration;
use taskd_runtime::job::ProcId;
use taskd_runtime::launch::{LaunchError, Launcher, Listing};
use tokio::time::{Instant, timeout_at};

/// Time within which killed processes end, on a loaded machine.
const ENDED_WITHIN: Duration = Duration::from_secs(20);

/// Stops all processes, and waits for their ends.
pub(super) async fn stop_all(launcher: &dyn Launcher, grace: Duration) -> Result<(), LaunchError> {
    let deadline = Instant::now() + grace + ENDED_WITHIN;
    loop {
        let Listing { procs, revision, .. } = launcher.list().await?;
        let running = procs.into_iter().filter(|status| !status.phase.is_over()).map(|status| status.proc);
        let running: Vec<ProcId> = running.collect();
        if running.is_empty() {
            return Ok(());
        }
        launcher.stop(&running, grace).await?; // again after each change: the manager may have started one meanwhile
        match timeout_at(deadline, launcher.watch(revision)).await {
            Ok(Ok(_) | Err(LaunchError::Stale)) => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                let text = format!("{} processes do not end within {:?}", running.len(), grace + ENDED_WITHIN);
                return Err(LaunchError::Unreachable(text));
            }
        }
    }
}
