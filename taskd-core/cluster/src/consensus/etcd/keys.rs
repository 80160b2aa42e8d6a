//! The keys of a job, their meaning, and the transactions that change them.
//!
//! ```text
//! /taskd/JOB/manager   the candidate in office, attached to its lease: the epoch is the key's create revision
//! /taskd/JOB/epoch     the same candidate, written with it and without a lease: its mod revision is the last epoch
//! /taskd/JOB/record    the record's value
//! ```
//!
//! # Version
//! etcd's revisions rise with every change of any key, so the greatest revision of these keys rises with every change
//! of the record but one: etcd deletes the manager's key when its lease ends, and a key that is gone has no revision.
//! The version is therefore twice the greatest revision, plus 1 if there is no manager: the end of a manager makes it
//! odd, and the next change, which has a greater revision, raises it again.

use super::proto::etcdserverpb as pb;
use super::proto::mvccpb::KeyValue;
use crate::consensus::{Candidate, ConsensusError, Epoch, Record, Version};
use bytes::Bytes;
use pb::compare::{CompareResult, CompareTarget, TargetUnion};

/// Keys of one job.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    pub(super) manager: Bytes,
    pub(super) epoch: Bytes,
    pub(super) record: Bytes,
    /// All keys of the job: from the first of the pair to before the second.
    pub(super) range: (Bytes, Bytes),
}

impl Keys {
    pub(super) fn new(job: &str) -> Keys {
        let key = |name: &str| Bytes::from(format!("/taskd/{job}/{name}"));
        // '0' is the byte after '/'.
        let range = (key(""), Bytes::from(format!("/taskd/{job}0")));
        Keys { manager: key("manager"), epoch: key("epoch"), record: key("record"), range }
    }

    /// Returns the requests that read all keys; without the record's value, which can be long, if only its version
    /// counts.
    fn all(&self, with_value: bool) -> Vec<pb::RequestOp> {
        let get = |key: &Bytes, keys_only| pb::RangeRequest { key: key.clone(), keys_only, ..Default::default() };
        let ranges = [get(&self.manager, false), get(&self.epoch, false), get(&self.record, !with_value)];
        ranges.into_iter().map(|range| op(pb::request_op::Request::RequestRange(range))).collect()
    }

    /// Reads all keys at one revision. etcd answers a transaction that only reads after a majority has confirmed that
    /// nothing newer exists.
    pub(super) fn read(&self, with_value: bool) -> pb::TxnRequest {
        pb::TxnRequest { success: self.all(with_value), ..Default::default() }
    }

    /// Makes a candidate the manager, if there is none.
    pub(super) fn elect(&self, candidate: Bytes, lease: i64) -> pb::TxnRequest {
        let no_manager = revision(&self.manager, CompareResult::Equal, TargetUnion::CreateRevision(0));
        let puts = [put(&self.manager, candidate.clone(), lease), put(&self.epoch, candidate, 0)];
        pb::TxnRequest { compare: vec![no_manager], success: puts.into(), failure: self.all(false) }
    }

    /// Writes a value, if `epoch` is in force and the record has the version `expected`.
    pub(super) fn write(&self, epoch: Epoch, expected: Version, value: Bytes) -> pb::TxnRequest {
        let mut compare = vec![self.in_force(epoch)];
        let at = i64::try_from(expected.0 / 2).ok().filter(|_| expected.0.is_multiple_of(2));
        compare.push(match at {
            // Nothing was written in this epoch: the record is older than its manager.
            Some(at) if u64::try_from(at) == Ok(epoch.0) => {
                revision(&self.record, CompareResult::Less, TargetUnion::ModRevision(at))
            }
            Some(at) if u64::try_from(at).is_ok_and(|at| at > epoch.0) => {
                revision(&self.record, CompareResult::Equal, TargetUnion::ModRevision(at))
            }
            // No record has this version while the epoch is in force.
            _ => revision(&self.record, CompareResult::Less, TargetUnion::ModRevision(0)),
        });
        pb::TxnRequest { compare, success: vec![put(&self.record, value, 0)], failure: self.all(false) }
    }

    /// Ends an epoch, if it is in force.
    pub(super) fn resign(&self, epoch: Epoch) -> pb::TxnRequest {
        let delete = pb::DeleteRangeRequest { key: self.manager.clone(), ..Default::default() };
        let success = vec![op(pb::request_op::Request::RequestDeleteRange(delete))];
        pb::TxnRequest { compare: vec![self.in_force(epoch)], success, failure: Vec::new() }
    }

    fn in_force(&self, epoch: Epoch) -> pb::Compare {
        // A revision is never negative, and 0 is that of a key that does not exist.
        let created = i64::try_from(epoch.0).ok().filter(|created| *created > 0).unwrap_or(-1);
        revision(&self.manager, CompareResult::Equal, TargetUnion::CreateRevision(created))
    }

    /// Returns true if a key is one of the job's.
    pub(super) fn has(&self, found: Option<&KeyValue>) -> bool {
        found.is_some_and(|found| [&self.manager, &self.epoch, &self.record].contains(&&found.key))
    }

    /// Reads the answer to a transaction that read all keys.
    pub(super) fn state(&self, answer: pb::TxnResponse) -> State {
        let mut state = State { revision: revision_of(&answer), ..State::default() };
        for response in answer.responses {
            let Some(pb::response_op::Response::ResponseRange(range)) = response.response else { continue };
            for found in range.kvs {
                let place = match &found.key {
                    key if *key == self.manager => &mut state.manager,
                    key if *key == self.epoch => &mut state.epoch,
                    key if *key == self.record => &mut state.record,
                    _ => continue,
                };
                *place = Some(found);
            }
        }
        state
    }
}

fn op(request: pb::request_op::Request) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

fn put(key: &Bytes, value: Bytes, lease: i64) -> pb::RequestOp {
    op(pb::request_op::Request::RequestPut(pb::PutRequest { key: key.clone(), value, lease }))
}

fn revision(key: &Bytes, result: CompareResult, with: TargetUnion) -> pb::Compare {
    let target = match with {
        TargetUnion::CreateRevision(_) => CompareTarget::Create,
        _ => CompareTarget::Mod,
    };
    pb::Compare { result: result.into(), target: target.into(), key: key.clone(), target_union: Some(with) }
}

/// Returns the revision of the store at a transaction: that of the keys it has written.
pub(super) fn revision_of(answer: &pb::TxnResponse) -> i64 {
    answer.header.as_ref().map_or(0, |header| header.revision)
}

/// Converts a revision of etcd, which is not negative.
pub(super) fn number(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

/// A job's keys at one revision of the store.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) revision: i64,
    pub(super) manager: Option<KeyValue>,
    epoch: Option<KeyValue>,
    record: Option<KeyValue>,
}

impl State {
    /// Returns the epoch in force.
    pub(super) fn in_force(&self) -> Option<Epoch> {
        self.manager.as_ref().map(|manager| Epoch(number(manager.create_revision)))
    }

    pub(super) fn version(&self) -> Version {
        let written = self.record.as_ref().map_or(0, |record| number(record.mod_revision));
        let last = self.epoch.as_ref().map_or(0, |epoch| number(epoch.mod_revision));
        Version(match self.in_force() {
            Some(epoch) => 2 * written.max(epoch.0),
            None if last.max(written) == 0 => 0,
            None => 2 * last.max(written) + 1,
        })
    }

    /// Returns the candidate in office.
    ///
    /// # Errors
    /// Returns an error if another program has written the keys.
    pub(super) fn candidate(&self) -> Result<Option<Candidate>, ConsensusError> {
        let Some(manager) = &self.manager else { return Ok(None) };
        let elected = self.epoch.as_ref().filter(|epoch| epoch.mod_revision == manager.create_revision);
        let candidate = elected.and_then(|epoch| serde_json::from_slice(&epoch.value).ok());
        candidate.map(Some).ok_or_else(|| foreign(&manager.key, manager.create_revision))
    }

    /// Returns the record.
    ///
    /// # Errors
    /// As [`candidate`](State::candidate).
    pub(super) fn record(self) -> Result<Record, ConsensusError> {
        let last = self.epoch.as_ref().map(|epoch| Epoch(number(epoch.mod_revision)));
        let epoch = self.in_force().or(last).unwrap_or_default();
        let record = Record::new().with_version(self.version()).with_manager(epoch, self.candidate()?);
        Ok(record.with_value(self.record.map(|record| record.value).unwrap_or_default()))
    }

    /// Returns the error of a call in `epoch`, if this epoch is not in force.
    pub(super) fn require(&self, epoch: Epoch) -> Result<(), ConsensusError> {
        if self.in_force() == Some(epoch) {
            return Ok(());
        }
        let by = self.candidate().ok().flatten().map(|candidate| candidate.to_string());
        Err(ConsensusError::Superseded { epoch, by })
    }
}

fn foreign(key: &Bytes, revision: i64) -> ConsensusError {
    let key = String::from_utf8_lossy(key);
    ConsensusError::Refused(format!(
        "etcd: no campaign has written the key {key} of revision {revision}: find the program that writes it, and \
         delete the key (etcdctl del {key}), so that a candidate can become the manager"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(keys: [i64; 3]) -> State {
        let key = |revision: i64| {
            let kv = KeyValue { create_revision: revision, mod_revision: revision, ..Default::default() };
            Some(kv).filter(|_| revision > 0)
        };
        let [manager, epoch, record] = keys.map(key);
        State { revision: 0, manager, epoch, record }
    }

    #[test]
    fn version_rises_with_every_change_also_with_the_end_of_a_manager() {
        // Revisions of the manager's key, of the epoch's and of the record's; other jobs take revisions in between.
        let changes =
            [[0, 0, 0], [5, 5, 0], [0, 5, 0], [6, 6, 0], [6, 6, 7], [6, 6, 9], [0, 6, 9], [10, 10, 9], [0, 10, 9]];
        let versions = changes.map(|keys| found(keys).version().0);
        assert_eq!(versions, [0, 10, 11, 12, 14, 18, 19, 20, 21]);
    }

    #[test]
    fn write_expects_a_version_that_the_record_can_have_in_the_epoch() {
        let keys = Keys::new("job");
        let expects = |epoch, expected| {
            let transaction = keys.write(Epoch(epoch), Version(expected), Bytes::new());
            let record = transaction.compare.last().unwrap().clone();
            (record.result(), record.target_union)
        };
        let modified = |revision| Some(TargetUnion::ModRevision(revision));
        assert_eq!(expects(6, 12), (CompareResult::Less, modified(6)), "nothing written in the epoch");
        assert_eq!(expects(6, 18), (CompareResult::Equal, modified(9)));
        for never in [0, 10, 11, 13, 19, u64::MAX] {
            assert_eq!(expects(6, never), (CompareResult::Less, modified(0)), "version {never}");
        }
    }
}
