//! Clauses about lost managers: killed ones, and ones that are cut off from the majority.

use super::session::{Act, Session, Waiting};
use super::{
    CONFIRM_IN_FORCE, Cut, FAILOVER, MAJORITY_ONLY, READ_NEVER_OLD, READ_UNAVAILABLE, WRITE_NEEDS_EPOCH,
    WRITTEN_IS_READ, WRITTEN_SURVIVES, office,
};
use crate::consensus::{ConsensusError, Epoch, Version};
use bytes::Bytes;
use tokio::time::timeout;

/// The reason why a clause about another manager is not checked.
const NO_FAILOVER: &str = "the engine states that no other process takes over";

/// Skips the clause that both a kill and a cut check, if neither was made.
pub(super) fn unchecked(s: &mut Session<'_>, any: bool) {
    if s.failover().is_none() {
        s.verdict.skip(FAILOVER, NO_FAILOVER);
    } else if !any {
        s.verdict.skip(FAILOVER, "no function that kills or cuts off a host was given");
    }
}

/// Elects a manager on host 1 that has written, and lets host 2 campaign.
async fn manager(s: &mut Session<'_>, value: &Bytes) -> Option<(Epoch, Version, Waiting)> {
    s.vacate().await;
    let epoch = s.elect(1).await?;
    s.write(1, epoch, value, WRITTEN_IS_READ).await?;
    let version = s.read(1, WRITTEN_IS_READ).await?.version;
    let (mut next, settle) = (s.campaign(2), s.limits.settle);
    if !s.still_waits(&mut next, 1, epoch, settle).await {
        s.resign(1, epoch).await;
        return None;
    }
    Some((epoch, version, next))
}

/// Kills the manager, and checks that the next one takes over and finds what was written.
pub(super) async fn kill(s: &mut Session<'_>, kill: Option<&dyn Act>) {
    let Some(kill) = kill else {
        return s.verdict.skip(WRITTEN_SURVIVES, "no function that kills a host was given");
    };
    if s.failover().is_none() {
        return s.verdict.skip(WRITTEN_SURVIVES, NO_FAILOVER);
    }
    let value = Bytes::from_static(b"of a manager that was killed");
    let Some((_, _, mut next)) = manager(s, &value).await else { return };
    kill.act(1).await;
    let within = s.takeover();
    let elected = s.elected(&mut next, within, FAILOVER).await;
    for host in 2..=3 {
        let Some(record) = s.read(host, WRITTEN_SURVIVES).await else { continue };
        if record.value != value {
            let seen = format!("the manager wrote {value:?} and was killed: host {host} reads {:?}", record.value);
            s.broken(WRITTEN_SURVIVES, seen);
        }
    }
    s.start(1).await;
    if let Some(epoch) = elected {
        s.resign(2, epoch).await;
    }
}

/// Cuts the manager off from the majority, lets another one take over, and connects the old one again.
pub(super) async fn cut(s: &mut Session<'_>, cut: Option<&Cut<'_>>) {
    let Some(cut) = cut else {
        for clause in [READ_UNAVAILABLE, READ_NEVER_OLD, MAJORITY_ONLY] {
            s.verdict.skip(clause, "no functions that cut off and reconnect a host were given");
        }
        return;
    };
    let value = Bytes::from_static(b"of a manager that is cut off");
    let Some((old, version, mut next)) = manager(s, &value).await else { return };
    cut.cut.act(1).await;
    let mut newest = version;
    let mut new = None;
    if s.failover().is_some() {
        let within = s.takeover();
        new = s.elected(&mut next, within, FAILOVER).await;
        if let Some(epoch) = new {
            let value = Bytes::from_static(b"of the next manager");
            newest = s.write(2, epoch, &value, WRITTEN_IS_READ).await.unwrap_or(newest).max(version);
        }
    }
    without_majority(s, old, version, newest).await;
    cut.reconnect.act(1).await;

    let within = s.limits.patience;
    if let Err(last) = s.read_until(1, within, |record| record.version >= newest).await {
        let seen = format!("host 1 is connected again, and its last read after {within:?} returned {last}");
        s.broken(READ_UNAVAILABLE, seen);
    } else if let Some(new) = new {
        fenced(s, old, new).await;
    }
    if let Some(new) = new {
        s.resign(2, new).await;
    }
}

/// Makes calls on host 1, which is cut off.
async fn without_majority(s: &mut Session<'_>, epoch: Epoch, version: Version, newest: Version) {
    let within = s.limits.limit + s.limits.slack;
    let handle = s.handle(1);
    let write = handle.compare_and_set(epoch, version, Bytes::from_static(b"wrong"));
    let (read, confirmed, written) =
        tokio::join!(timeout(within, handle.read()), timeout(within, handle.confirm(epoch)), timeout(within, write));
    match read {
        Ok(Err(ConsensusError::Unavailable(_))) => {}
        Ok(Ok(record)) if record.version < newest => {
            let found = record.version;
            let seen = format!("`read` without a majority returned version {found}, and {newest} was in force");
            s.broken(READ_NEVER_OLD, seen);
        }
        Ok(other) => s.broken(READ_UNAVAILABLE, format!("`read` without a majority returned {other:?}")),
        Err(_) => s.broken(READ_UNAVAILABLE, format!("`read` without a majority did not return within {within:?}")),
    }
    if let Ok(Ok(())) = confirmed {
        s.broken(MAJORITY_ONLY, format!("`confirm` of epoch {epoch} returned `Ok` without a majority"));
    }
    if let Ok(Ok(version)) = written {
        s.broken(MAJORITY_ONLY, format!("`compare_and_set` returned version {version} without a majority"));
    }
}

/// Checks that a manager that comes back decides nothing more.
async fn fenced(s: &mut Session<'_>, old: Epoch, new: Epoch) {
    office::superseded(s, CONFIRM_IN_FORCE, 1, old).await;
    let Some(record) = s.read(1, READ_UNAVAILABLE).await else { return };
    let handle = s.handle(1);
    let write = handle.compare_and_set(old, record.version, Bytes::from_static(b"wrong"));
    let answer = timeout(s.limits.patience, write).await;
    if !matches!(answer, Ok(Err(ConsensusError::Superseded { .. }))) {
        let seen = format!("`compare_and_set` in epoch {old} after epoch {new} returned {answer:?}");
        s.broken(WRITE_NEEDS_EPOCH, seen);
    }
}
