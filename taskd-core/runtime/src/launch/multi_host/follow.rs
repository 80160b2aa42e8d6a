//! Follows one launcher of several: its changes become those of the combined history.

use super::parts::PartId;
use super::{AWAITED, Shared};
use crate::job::{Exit, ProcId, Termination};
use crate::launch::{Change, LaunchError, Listing, NodeState, Phase, ProcStatus, Revision};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Time to wait before an unreachable launcher is contacted again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// Copies the changes of one launcher into the history, for as long as the combined launcher exists.
pub(super) async fn follow(shared: Arc<Shared>, part: PartId, listing: Listing) {
    let (mut nodes, mut at) = (listing.nodes, listing.revision);
    loop {
        let is_stale = watch(&shared, part, &mut at).await == LaunchError::Stale;
        if !is_stale {
            for node in &nodes {
                shared.push_node(node.clone().with_state(NodeState::OutOfSight));
            }
        }
        let known = loop {
            match shared.part(part) {
                Ok(launcher) => match launcher.list().await {
                    Ok(listing) => break listing,
                    Err(_) => tokio::time::sleep(RETRY_AFTER).await, // meanwhile its hosts are out of sight
                },
                Err(_) => return, // its hosts have left
            }
        };
        if is_stale {
            shared.take_listing(part, &known);
            missing(&shared, &known);
            at = known.revision;
        } else {
            // The history continues where it was cut: a listing has states, but not the replies of the ranks meanwhile.
            shared.take(part, known.nodes.iter().cloned().map(Change::Node));
            missing_of(&shared, &known, is_awaited);
        }
        nodes = known.nodes;
    }
}

/// Passes the changes of one launcher after `at` on until that launcher fails.
async fn watch(shared: &Shared, part: PartId, at: &mut Revision) -> LaunchError {
    let launcher = match shared.part(part) {
        Ok(launcher) => launcher,
        Err(error) => return error,
    };
    loop {
        match launcher.watch(*at).await {
            Ok((changes, next)) => {
                shared.take(part, changes);
                *at = next;
            }
            Err(error) => return error,
        }
    }
}

/// Reports the exit of processes that ran on a launcher's hosts and are no longer listed: they ended unobserved.
pub(super) fn missing(shared: &Shared, now: &Listing) {
    missing_of(shared, now, |_| true);
}

/// Returns true for a process of which was not known whether it has started.
fn is_awaited(status: &ProcStatus) -> bool {
    matches!(&status.phase, Phase::Pending(why) if why == AWAITED)
}

/// Reports the exit of those of these processes that ran on a launcher's hosts and are no longer listed.
fn missing_of(shared: &Shared, now: &Listing, is_meant: impl Fn(&ProcStatus) -> bool) {
    let listed: BTreeSet<&ProcId> = now.procs.iter().map(|p| &p.proc).collect();
    for status in now.nodes.iter().flat_map(|status| shared.log.procs_on(&status.node)) {
        if !listed.contains(&status.proc) && is_meant(&status) {
            let phase = Phase::Exited(Box::new(Exit::new(Termination::Unknown)));
            shared.log.push(Change::Proc(status.with_phase(phase)));
        }
    }
}
