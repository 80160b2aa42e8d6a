//! What voters read, from each other and from their stores, for the cases of `fuzz`.

use super::VoterAddress;
use super::machine::{Office, StoredSnapshot};
use super::messages::{
    AdmitAnswer, AdmitRequest, Call, CallAnswer, Elsewhere, HelloAnswer, WatchAnswer, WatchRequest, YieldAnswer,
    YieldRequest, decode,
};
use super::types::{Command, Entry, Leader, LogId, SnapshotMeta, StoredMembership, Types, Vote};
use crate::consensus::{Candidate, Epoch, Record, Version};
use crate::wire::proto::{VoterAnswer, VoterRequest};
use bytes::Bytes;
use openraft::raft::{AppendEntriesRequest, InstallSnapshotRequest, VoteRequest};
use openraft::{EntryPayload, Membership};
use prost::Message;
use serde::{Serialize, de::DeserializeOwned};
use std::collections::{BTreeMap, BTreeSet};
use taskd_runtime::job::NodeId;

/// Reads one form of a body.
type Read = fn(&[u8]) -> Result<(), String>;

/// Forms of the body of a message: the number of a voter in a request is that of its form.
const MESSAGES: &[Read] = &[
    body::<AppendEntriesRequest<Types>>,
    body::<VoteRequest<u64>>,
    body::<InstallSnapshotRequest<Types>>,
    body::<Call>,
    body::<CallAnswer>,
    body::<HelloAnswer>,
    body::<WatchRequest>,
    body::<WatchAnswer>,
    body::<AdmitRequest>,
    body::<AdmitAnswer>,
    body::<YieldRequest>,
    body::<YieldAnswer>,
];

/// Forms of what a store contains: the first byte of an input is the number of one.
const STORED: &[Read] = &[body::<Entry>, body::<Vote>, body::<StoredSnapshot>, body::<Office>, body::<Option<LogId>>];

fn log_id(index: u64) -> LogId {
    LogId::new(Leader::new(3, 0x1234_5678_9abc_def0), index)
}

fn place() -> VoterAddress {
    VoterAddress::new(NodeId("host-1".into()), "10.0.0.1:9601")
}

fn candidate() -> Candidate {
    Candidate::new(NodeId("host-1".into()), "17", "10.0.0.1:9601")
}

fn membership() -> Membership<u64, VoterAddress> {
    Membership::new(vec![BTreeSet::from([1, 2])], BTreeMap::from([(1, place()), (2, place().with_witness())]))
}

fn entries() -> Vec<Entry> {
    let value = Bytes::from_static(b"the record of a world");
    let write = Command::Write { epoch: Epoch(2), expected: Version(5), value };
    let commands =
        [Command::Elect { candidate: candidate(), after: Epoch(1) }, write, Command::Vacate { epoch: Epoch(2) }];
    let payloads = commands.into_iter().map(EntryPayload::Normal);
    let payloads = payloads.chain([EntryPayload::Blank, EntryPayload::Membership(membership())]);
    (1..).zip(payloads).map(|(index, payload)| Entry { log_id: log_id(index), payload }).collect()
}

fn record() -> Record {
    let mut record = Record::default();
    (record.version, record.epoch, record.manager) = (Version(5), Epoch(2), Some(candidate()));
    record.value = Bytes::from_static(b"the record of a world");
    record
}

fn snapshot() -> StoredSnapshot {
    let last_membership = StoredMembership::new(Some(log_id(4)), membership());
    let meta = SnapshotMeta { last_log_id: Some(log_id(9)), last_membership, snapshot_id: "9".into() };
    let office = Office { record: record(), elected_by: Some(Leader::new(3, 1)) };
    StoredSnapshot { meta, data: bytes(&office).into() }
}

fn bytes<T: Serialize>(value: &T) -> Vec<u8> {
    rmp_serde::to_vec_named(value).unwrap_or_default()
}

/// Returns valid requests and answers of voters.
pub(crate) fn messages() -> Vec<Vec<u8>> {
    let vote = Vote::new(3, 1);
    let StoredSnapshot { meta, data } = snapshot();
    let append: AppendEntriesRequest<Types> =
        AppendEntriesRequest { vote, prev_log_id: Some(log_id(0)), entries: entries(), leader_commit: Some(log_id(2)) };
    let install: InstallSnapshotRequest<Types> =
        InstallSnapshotRequest { vote, meta, offset: 0, data: data.to_vec(), done: true };
    let admit = AdmitRequest { voter: 7, place: place(), replaces: Some(NodeId("host-2".into())) };
    let bodies = [
        bytes(&append),
        bytes(&VoteRequest { vote, last_log_id: Some(log_id(4)) }),
        bytes(&install),
        bytes(&Call::Write { epoch: Epoch(2), expected: Version(5), value: Bytes::from_static(b"world") }),
        bytes(&CallAnswer::NotLeader(Elsewhere { leader: Some("10.0.0.2:9601".into()) })),
        bytes(&HelloAnswer { voter: 7, place: place(), initialised: true, leaderless_ms: 40 }),
        bytes(&WatchRequest { after: Version(4) }),
        bytes(&WatchAnswer { record: Some(record()) }),
        bytes(&admit),
        bytes(&AdmitAnswer::Refused("no".into())),
        bytes(&YieldRequest { voter: 7 }),
        bytes(&YieldAnswer::Behind),
    ];
    let request =
        |(voter, body): (u64, Vec<u8>)| VoterRequest { version: 1, job: "job".into(), voter, body: body.into() };
    (0..).zip(bodies).map(|body| request(body).encode_to_vec()).collect()
}

/// Reads a request of a voter, and its body.
pub(crate) fn read_message(input: &[u8]) -> Result<(), String> {
    let _ = VoterAnswer::decode(input);
    let VoterRequest { voter, body, .. } = VoterRequest::decode(input).map_err(|error| error.to_string())?;
    let read = usize::try_from(voter).ok().and_then(|form| MESSAGES.get(form));
    read.ok_or_else(|| format!("there is no form {voter}"))?(&body)
}

/// Returns valid contents of a store.
pub(crate) fn stored() -> Vec<Vec<u8>> {
    let office = Office { record: record(), elected_by: None };
    let values = entries().iter().map(|entry| (0, bytes(entry))).collect::<Vec<(u8, Vec<u8>)>>();
    let more =
        [(1, bytes(&Vote::new(3, 1))), (2, bytes(&snapshot())), (3, bytes(&office)), (4, bytes(&Some(log_id(4))))];
    values.into_iter().chain(more).map(|(form, value)| [&[form], &*value].concat()).collect()
}

/// Reads a part of a store.
pub(crate) fn read_stored(input: &[u8]) -> Result<(), String> {
    let (form, value) = input.split_first().ok_or("there is no value")?;
    STORED.get(usize::from(*form)).ok_or_else(|| format!("there is no form {form}"))?(value)
}

/// Reads a body; what was read has one form.
fn body<T: Serialize + DeserializeOwned>(input: &[u8]) -> Result<(), String> {
    let value: T = decode(input).map_err(|status| status.message().to_owned())?;
    let written = bytes(&value);
    let Ok(again) = decode::<T>(&written) else { panic!("what was read cannot be read again") };
    assert!(bytes(&again) == written, "what was read changes when it is read again");
    Ok(())
}
