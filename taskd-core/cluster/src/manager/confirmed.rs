//! The confirmation of a manager by a majority, before it decides.

use super::Inner;
use crate::consensus::ConsensusError;
use taskd_runtime::launch::LaunchError;
use tokio::time::{Instant, sleep};

/// How a majority has confirmed the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Confirmed {
    AtOnce,
    /// After a time in which hosts may have looked for another manager.
    Late,
}

impl Inner {
    /// Waits until a majority confirms this manager. A manager without a majority may have a successor: what it sees may
    /// be its own isolation, and it must not decide anything from that. Agents look for another manager meanwhile: they get
    /// time to come back.
    ///
    /// # Errors
    /// Returns [`LaunchError::Superseded`] if the epoch is over.
    pub(super) async fn confirmed(&self) -> Result<Confirmed, LaunchError> {
        let begun = Instant::now();
        loop {
            match self.consensus.confirm(self.epoch).await {
                Ok(()) if begun.elapsed() < self.settings.lease / 2 => return Ok(Confirmed::AtOnce),
                Ok(()) => {
                    sleep(self.settings.silent_after + self.settings.connect_within).await;
                    return Ok(Confirmed::Late);
                }
                Err(error @ ConsensusError::Superseded { .. }) => return Err(self.failed(error)),
                Err(_) => sleep(self.settings.lease_interval).await, // logged where the anchor is kept
            }
        }
    }
}
