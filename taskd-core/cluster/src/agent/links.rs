//! Checks which other hosts this one reaches, when the manager asks: over the network between the agents.

use crate::dial::Access;
use crate::wire::{LinksAnswer, LinksArguments};
use futures::future::join_all;
use std::time::Duration;
use taskd_runtime::launch::LaunchError;

/// Maximum number of hosts of one check. A manager asks for at most as many: see
/// [`partners`](taskd_runtime::check::partners).
const PEERS_MAX: usize = 64;
/// Greatest time of one check, whatever the manager asks for.
const WITHIN_MAX: Duration = Duration::from_secs(10);
/// Number of attempts per host: a single packet that is lost must not look like a link that is broken.
const ATTEMPTS: u32 = 2;

/// Tries to reach each of these hosts, all at the same time.
///
/// # Errors
/// These are more hosts than one check may have.
pub(super) async fn check(access: &Access, check: LinksArguments) -> Result<LinksAnswer, LaunchError> {
    let LinksArguments { peers, within } = check;
    if peers.len() > PEERS_MAX {
        let text = format!("a check of {} links: {PEERS_MAX} are the limit", peers.len());
        return Err(LaunchError::Refused(text));
    }
    let each = within.min(WITHIN_MAX) / ATTEMPTS;
    let checks = peers.into_iter().map(|(host, address)| async move {
        let mut found = Ok(());
        for _ in 0..ATTEMPTS {
            found = access.reach(&address, each).await;
            if found.is_ok() {
                break;
            }
        }
        (host, found.err())
    });
    Ok(join_all(checks).await.into_iter().collect())
}
