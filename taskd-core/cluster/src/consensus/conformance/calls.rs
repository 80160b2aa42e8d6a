//! Clauses about all calls: concurrent ones do their work, and dropped ones break nothing.

use super::session::{DROPS, HOSTS, Session, polled};
use super::{CALLS_AT_ONCE, DROP_BREAKS_NOTHING};
use crate::consensus::{ConsensusError, Epoch, Version};
use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Number of concurrent calls of each kind on each host.
const AT_ONCE: u32 = 4;

/// Makes calls on every host while it waits in a `watch` and, but for the manager's, in a `campaign`. Returns true if
/// none of them waited.
pub(super) async fn at_once(s: &mut Session<'_>) -> bool {
    s.vacate().await;
    let Some(epoch) = s.elect(1).await else { return true };
    let Some(record) = s.read(1, CALLS_AT_ONCE).await else { return false };
    let mut watches = JoinSet::new(); // dropping it drops the calls
    for host in 1..=HOSTS {
        let handle = s.handle(host);
        watches.spawn(async move { handle.watch(Version(u64::MAX)).await });
    }
    let campaigns: Vec<_> = (2..=HOSTS).map(|host| s.campaign(host)).collect();
    tokio::time::sleep(s.limits.settle).await; // until all of them wait

    let mut calls = JoinSet::new();
    for call in 0..HOSTS * AT_ONCE {
        let (handle, version) = (s.handle(1 + call % HOSTS), record.version);
        calls.spawn(async move {
            handle.read().await?;
            handle.confirm(epoch).await?;
            let _ = handle.resign(Epoch(0)).await; // its own clause checks the result
            match handle.compare_and_set(epoch, version, Bytes::from(format!("call {call}"))).await {
                Ok(_) | Err(ConsensusError::Conflict { .. }) => Ok(()),
                Err(error) => Err(error),
            }
        });
    }
    while let Ok(Some(done)) = timeout(s.limits.patience, calls.join_next()).await {
        match done {
            Ok(Ok(())) => {}
            Ok(Err(error)) => s.broken(CALLS_AT_ONCE, format!("one of many calls at once failed: {error}")),
            Err(panic) => s.broken(CALLS_AT_ONCE, format!("one of many calls at once ended: {panic}")),
        }
    }
    if !calls.is_empty() {
        let (left, patience) = (calls.len(), s.limits.patience);
        let seen = format!("{left} calls did not return within {patience:?} beside a `watch` and a `campaign`");
        s.broken(CALLS_AT_ONCE, seen);
    }
    drop((campaigns, watches));
    s.resign(1, epoch).await;
    tokio::time::sleep(s.limits.settle).await; // until one that was dropped in vain is the manager
    s.vacate().await;
    !s.verdict.is_broken(CALLS_AT_ONCE)
}

/// Drops each call at its first await, then at its second, and so on, and checks that later calls do their work.
pub(super) async fn drops(s: &mut Session<'_>) {
    s.vacate().await;
    let Some(epoch) = s.elect(1).await else { return };
    for awaits in 1..=DROPS {
        for host in 1..=HOSTS {
            let Some(record) = s.read(host, DROP_BREAKS_NOTHING).await else { return };
            let (handle, settle) = (s.handle(host), s.limits.settle);
            let dropped = Bytes::from_static(b"dropped");
            polled(handle.compare_and_set(epoch, record.version, dropped), awaits, settle).await;
            polled(handle.read(), awaits, settle).await;
            polled(handle.confirm(epoch), awaits, settle).await;
            polled(handle.resign(Epoch(0)), awaits, settle).await;
            polled(handle.watch(record.version), awaits, settle).await;

            let value = Bytes::from(format!("host {host} after drops at await {awaits}"));
            if s.write(host, epoch, &value, DROP_BREAKS_NOTHING).await.is_none() {
                return;
            }
            let Some(record) = s.read(host, DROP_BREAKS_NOTHING).await else { return };
            if record.value != value {
                let seen = format!("{value:?} was written after dropped calls, and {:?} is read", record.value);
                s.broken(DROP_BREAKS_NOTHING, seen);
            }
            s.call(DROP_BREAKS_NOTHING, "`confirm` after dropped calls", handle.confirm(epoch)).await;
        }
    }
    s.resign(1, epoch).await;
}
