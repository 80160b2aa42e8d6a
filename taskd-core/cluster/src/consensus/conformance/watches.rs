//! Clauses about `watch`: it waits for news, sees every kind of change, and can be dropped.

use super::session::{DROPS, HOSTS, Session, polled};
use super::{Clause, WATCH_CANCEL_SAFE, WATCH_MANAGER, WATCH_NEWS, WRITTEN_IS_READ};
use crate::consensus::{ConsensusError, Epoch, Record, Version};
use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A watch in the background.
struct Watching {
    host: u32,
    after: Version,
    task: JoinHandle<Result<Record, ConsensusError>>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(super) async fn check(s: &mut Session<'_>) {
    s.vacate().await;
    let Some(epoch) = s.elect(1).await else { return };
    news(s, epoch).await;
    for awaits in 1..=DROPS {
        dropped(s, epoch, awaits).await;
    }
    managers(s, epoch).await;
}

fn watch(s: &Session<'_>, host: u32, after: Version) -> Watching {
    let handle = s.handle(host);
    Watching { host, after, task: tokio::spawn(async move { handle.watch(after).await }) }
}

/// Waits for a watch. Returns its record, which is newer than the caller's.
async fn seen(s: &mut Session<'_>, mut watching: Watching, clause: Clause, what: &str) -> Option<Record> {
    let (host, after, patience) = (watching.host, watching.after, s.limits.patience);
    match timeout(patience, &mut watching.task).await {
        Ok(Ok(Ok(record))) if record.version > after => return Some(record),
        Ok(Ok(Ok(record))) => {
            let seen = format!("`watch` after version {after} returned version {}", record.version);
            s.broken(WATCH_NEWS, seen);
        }
        Ok(other) => s.broken(clause, format!("`watch` on host {host} did not return {what}: {other:?}")),
        Err(_) => s.broken(clause, format!("`watch` on host {host} did not return {what} within {patience:?}")),
    }
    None
}

/// Watches on every host for a value, and for one that is there already.
async fn news(s: &mut Session<'_>, epoch: Epoch) {
    let Some(before) = s.read(1, WRITTEN_IS_READ).await else { return };
    let mut watching: Vec<Watching> = (1..=HOSTS).map(|host| watch(s, host, before.version)).collect();
    for one in &mut watching {
        if let Ok(early) = timeout(s.limits.settle, &mut one.task).await {
            let seen = format!("`watch` returned without a change after version {}: {early:?}", before.version);
            return s.broken(WATCH_NEWS, seen);
        }
    }
    let value = Bytes::from_static(b"news");
    let Some(version) = s.write(1, epoch, &value, WRITTEN_IS_READ).await else { return };
    watching.extend((1..=HOSTS).map(|host| watch(s, host, before.version)));
    watching.extend((1..=HOSTS).map(|host| watch(s, host, Version(0))));
    for one in watching {
        let host = one.host;
        let Some(record) = seen(s, one, WATCH_NEWS, "a value that was written").await else { return };
        if record.value != value {
            let found = record.version;
            let seen = format!("`watch` on host {host} returned another value: version {found} and not {version}");
            s.broken(WATCH_NEWS, seen);
        }
    }
}

/// Drops a watch that has news, and one that waits, and watches again from the same version.
async fn dropped(s: &mut Session<'_>, epoch: Epoch, awaits: u32) {
    let Some(before) = s.read(2, WRITTEN_IS_READ).await else { return };
    let (handle, settle) = (s.handle(2), s.limits.settle);
    polled(handle.watch(before.version), awaits, settle).await;
    if s.write(1, epoch, &Bytes::from(format!("drop {awaits}")), WRITTEN_IS_READ).await.is_none() {
        return;
    }
    polled(handle.watch(before.version), awaits, settle).await;
    let again = watch(s, 2, before.version);
    seen(s, again, WATCH_CANCEL_SAFE, "a value that a dropped `watch` had before").await;
}

/// Watches for the end of a manager and for the next one.
async fn managers(s: &mut Session<'_>, epoch: Epoch) {
    let Some(before) = s.read(3, WRITTEN_IS_READ).await else { return };
    let ends = watch(s, 3, before.version);
    s.resign(1, epoch).await;
    if seen(s, ends, WATCH_MANAGER, "the end of a manager").await.is_none() {
        return;
    }
    let Some(before) = s.read(3, WRITTEN_IS_READ).await else { return };
    let begins = watch(s, 3, before.version);
    let Some(next) = s.elect(2).await else { return };
    if let Some(record) = seen(s, begins, WATCH_MANAGER, "the election of a manager").await
        && (record.epoch != next || record.manager.is_none())
    {
        let seen = format!("`watch` returned epoch {} after the election of epoch {next}", record.epoch);
        s.broken(WATCH_MANAGER, seen);
    }
    s.resign(2, next).await;
}
