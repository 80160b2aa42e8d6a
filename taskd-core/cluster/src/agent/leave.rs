//! The orderly end of a host's processes, before it leaves the job.

use std::time::Duration;
use taskd_runtime::job::ProcId;
use taskd_runtime::launch::{LaunchError, Launcher};
use tokio::time::{Instant, sleep};

/// Time within which killed processes end, on a loaded machine.
const ENDED_WITHIN: Duration = Duration::from_secs(20);
/// Time between two looks at the processes.
const POLL: Duration = Duration::from_millis(20);

/// Stops all processes, and waits for their ends.
pub(super) async fn stop_all(launcher: &dyn Launcher, grace: Duration) -> Result<(), LaunchError> {
    let deadline = Instant::now() + grace + ENDED_WITHIN;
    loop {
        let listing = launcher.list().await?;
        let running = listing.procs.into_iter().filter(|status| !status.phase.is_over()).map(|status| status.proc);
        let running: Vec<ProcId> = running.collect();
        if running.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let text = format!("{} processes do not end within {:?}", running.len(), grace + ENDED_WITHIN);
            return Err(LaunchError::Unreachable(text));
        }
        launcher.stop(&running, grace).await?; // repeated: the manager may have started one meanwhile
        sleep(POLL).await;
    }
}
