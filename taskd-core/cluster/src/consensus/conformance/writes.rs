//! Clauses about the record: a write needs the epoch and the version, and everything written is read.

use super::session::{HOSTS, Session};
use super::{
    Clause, VERSION_RISES, WRITE_ATOMIC, WRITE_BOUND, WRITE_NEEDS_EPOCH, WRITE_NEEDS_VERSION, WRITTEN_IS_READ,
};
use crate::consensus::{ConsensusError, Epoch, RECORD_BYTES_MAX, Record, Version};
use bytes::Bytes;
use std::collections::BTreeMap;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Number of concurrent writers.
const WRITERS: u32 = 12;
/// Distance to an epoch that was never in force, and to a version that does not exist yet.
const NEVER: u64 = 1000;

pub(super) async fn check(s: &mut Session<'_>) {
    s.vacate().await;
    let before = s.read(1, WRITTEN_IS_READ).await;
    let Some(epoch) = s.elect(1).await else { return };
    rises(s, before, "the election of a manager").await;
    let before = written(s, epoch).await;
    versions(s, epoch).await;
    epochs(s, epoch).await;
    atomic(s, epoch).await;
    bound(s, epoch).await;
    let last = s.read(1, WRITTEN_IS_READ).await;
    s.resign(1, epoch).await;
    rises(s, last.or(before), "the resignation of a manager").await;
    refused_epoch(s, epoch).await;

    let Some(next) = s.elect(2).await else { return };
    refused_epoch(s, epoch).await;
    s.resign(2, next).await;
}

/// Checks that the version is greater than that of a record read before a change.
async fn rises(s: &mut Session<'_>, before: Option<Record>, what: &str) {
    let (Some(before), Some(after)) = (before, s.read(1, VERSION_RISES).await) else { return };
    if after.version <= before.version {
        let seen = format!("the record had version {} before {what}, and {} after", before.version, after.version);
        s.broken(VERSION_RISES, seen);
    }
}

/// Writes values on every host, and reads each on every host.
async fn written(s: &mut Session<'_>, epoch: Epoch) -> Option<Record> {
    for writer in 1..=HOSTS {
        let before = s.read(writer, WRITTEN_IS_READ).await?;
        let value = Bytes::from(format!("written by host {writer}"));
        let version = s.write(writer, epoch, &value, WRITTEN_IS_READ).await?;
        if version <= before.version {
            let seen = format!("`compare_and_set` at version {} returned {version}", before.version);
            s.broken(VERSION_RISES, seen);
        }
        for host in 1..=HOSTS {
            let record = s.read(host, WRITTEN_IS_READ).await?;
            if record.value != value {
                let (wrote, found) = (&value, &record.value);
                let seen = format!("host {writer} has written {wrote:?}, and host {host} reads {found:?} afterwards");
                s.broken(WRITTEN_IS_READ, seen);
            } else if record.version != version {
                let found = record.version;
                let seen = format!("`compare_and_set` returned version {version}, and the record has version {found}");
                s.broken(VERSION_RISES, seen);
            }
        }
    }
    s.read(1, WRITTEN_IS_READ).await
}

/// Writes at versions that the record does not have.
async fn versions(s: &mut Session<'_>, epoch: Epoch) {
    let Some(older) = s.read(1, WRITTEN_IS_READ).await else { return };
    for value in ["first", "second"] {
        if s.write(1, epoch, &Bytes::from(value), WRITTEN_IS_READ).await.is_none() {
            return;
        }
    }
    let Some(now) = s.read(1, WRITTEN_IS_READ).await else { return };
    let next = Version(now.version.0.saturating_add(1));
    for expected in [older.version, Version(0), next, Version(now.version.0.saturating_add(NEVER))] {
        let answer = timeout(s.limits.patience, s.handle(1).compare_and_set(epoch, expected, "wrong".into())).await;
        if !matches!(answer, Ok(Err(ConsensusError::Conflict { .. }))) {
            let seen = format!(
                "`compare_and_set` at version {expected} of a record with version {} returned {answer:?}",
                now.version
            );
            s.broken(WRITE_NEEDS_VERSION, seen);
        }
    }
    unchanged(s, 1, &now, WRITE_NEEDS_VERSION).await;
}

/// Checks that the record is the one read before.
async fn unchanged(s: &mut Session<'_>, host: u32, before: &Record, clause: Clause) {
    let Some(now) = s.read(host, clause).await else { return };
    if now.value != before.value || now.version != before.version {
        let (before, now) = (before.version, now.version);
        s.broken(clause, format!("the record had version {before}, and has version {now} after writes that failed"));
    }
}

/// Writes under epochs that were never in force.
async fn epochs(s: &mut Session<'_>, epoch: Epoch) {
    for other in [epoch.0.saturating_add(NEVER), epoch.0.saturating_sub(1), epoch.0.saturating_add(1)] {
        refused_epoch(s, Epoch(other)).await;
    }
}

/// Writes on every host under an epoch that is not in force, at the version of the record.
async fn refused_epoch(s: &mut Session<'_>, epoch: Epoch) {
    for host in 1..=HOSTS {
        let Some(before) = s.read(host, WRITTEN_IS_READ).await else { return };
        let call = s.handle(host);
        let call = call.compare_and_set(epoch, before.version, "wrong".into());
        let answer = timeout(s.limits.patience, call).await;
        if !matches!(answer, Ok(Err(ConsensusError::Superseded { .. }))) {
            let seen = format!("`compare_and_set` in epoch {epoch}, which is not in force, returned {answer:?}");
            s.broken(WRITE_NEEDS_EPOCH, seen);
        }
        unchanged(s, host, &before, WRITE_NEEDS_EPOCH).await;
    }
}

/// Lets many writers expect the same version.
async fn atomic(s: &mut Session<'_>, epoch: Epoch) {
    let Some(before) = s.read(1, WRITTEN_IS_READ).await else { return };
    let mut calls = JoinSet::new();
    for writer in 0..WRITERS {
        let (handle, expected) = (s.handle(1 + writer % HOSTS), before.version);
        let value = Bytes::from(format!("writer {writer}"));
        calls.spawn(async move { (writer, handle.compare_and_set(epoch, expected, value).await) });
    }
    let mut answers = BTreeMap::new();
    while let Ok(Some(done)) = timeout(s.limits.patience, calls.join_next()).await {
        answers.extend(done.ok());
    }
    let wrote: Vec<u32> = answers.iter().filter(|(_, answer)| answer.is_ok()).map(|(writer, _)| *writer).collect();
    let others = answers.values().filter(|answer| matches!(answer, Err(ConsensusError::Conflict { .. }))).count();
    if wrote.len() != 1 || wrote.len() + others != WRITERS as usize {
        let seen = format!("of {WRITERS} writers {} wrote and {others} returned `Conflict`: {answers:?}", wrote.len());
        return s.broken(WRITE_ATOMIC, seen);
    }
    let Some(record) = s.read(1, WRITE_ATOMIC).await else { return };
    if record.value != format!("writer {}", wrote[0]) {
        s.broken(WRITE_ATOMIC, format!("writer {} alone wrote, and the record has {:?}", wrote[0], record.value));
    }
}

/// Writes the longest value, and one that is longer.
async fn bound(s: &mut Session<'_>, epoch: Epoch) {
    let longest = Bytes::from(vec![b'x'; RECORD_BYTES_MAX]);
    if s.write(1, epoch, &longest, WRITE_BOUND).await.is_none() {
        return;
    }
    for host in 1..=HOSTS {
        let Some(record) = s.read(host, WRITE_BOUND).await else { return };
        if record.value.len() != longest.len() {
            let bytes = record.value.len();
            return s.broken(WRITE_BOUND, format!("{RECORD_BYTES_MAX} bytes were written, and {bytes} are read"));
        }
    }
    let Some(before) = s.read(1, WRITE_BOUND).await else { return };
    let longer = Bytes::from(vec![b'y'; RECORD_BYTES_MAX + 1]);
    let answer = timeout(s.limits.patience, s.handle(1).compare_and_set(epoch, before.version, longer)).await;
    if !matches!(answer, Ok(Err(ConsensusError::Refused(_)))) {
        let seen = format!("`compare_and_set` of {} bytes returned {answer:?}", RECORD_BYTES_MAX + 1);
        s.broken(WRITE_BOUND, seen);
    }
    unchanged(s, 1, &before, WRITE_BOUND).await;
    s.write(1, epoch, &Bytes::from_static(b"short again"), WRITE_BOUND).await;
}
