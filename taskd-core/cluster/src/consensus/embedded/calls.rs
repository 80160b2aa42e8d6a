//! The calls that the leader answers, from the hosts of other voters and from hosts without a voter.

use super::EmbeddedSettings;
use super::links::{Links, Method};
use super::messages::{Call, CallAnswer, Elsewhere, WatchAnswer, WatchRequest};
use crate::consensus::{ConsensusError, Epoch, Record, Version, record};
use bytes::Bytes;
use futures::future::join_all;
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

type Result<T> = std::result::Result<T, ConsensusError>;

/// Asks the leader, as far as it can be reached now.
pub(super) trait Answers: Sync {
    fn settings(&self) -> &EmbeddedSettings;

    /// Asks once. Nothing was done if the answer is `NotLeader` or `Unavailable`.
    fn attempt(&self, call: &Call) -> impl Future<Output = CallAnswer> + Send;
}

/// Asks until the leader answers, or until the time limit of a request.
async fn ask(voters: &impl Answers, call: &Call) -> Result<CallAnswer> {
    let deadline = Instant::now() + voters.settings().request_limit();
    loop {
        let reason = match voters.attempt(call).await {
            CallAnswer::Unavailable(reason) => reason,
            CallAnswer::NotLeader(_) => "no voter is leader".into(),
            answer => return Ok(answer),
        };
        if Instant::now() >= deadline {
            return Err(ConsensusError::Unavailable(reason));
        }
        sleep(voters.settings().heartbeat() / 2).await;
    }
}

fn unexpected<T>(answer: &CallAnswer) -> Result<T> {
    Err(ConsensusError::Unavailable(match answer {
        CallAnswer::Unknown(reason) => reason.clone(),
        other => format!("the leader answered another call: {other:?}"),
    }))
}

pub(super) async fn read(voters: &impl Answers) -> Result<Record> {
    match ask(voters, &Call::Read).await? {
        CallAnswer::Record(record) => Ok(record),
        other => unexpected(&other),
    }
}

pub(super) async fn confirm(voters: &impl Answers, epoch: Epoch) -> Result<()> {
    match ask(voters, &Call::Confirm { epoch }).await? {
        CallAnswer::Confirmed => Ok(()),
        CallAnswer::Superseded { by } => Err(ConsensusError::Superseded { epoch, by }),
        other => unexpected(&other),
    }
}

pub(super) async fn compare_and_set(
    voters: &impl Answers,
    epoch: Epoch,
    expected: Version,
    value: Bytes,
) -> Result<Version> {
    record::check_length(&value)?;
    match ask(voters, &Call::Write { epoch, expected, value }).await? {
        CallAnswer::Written(version) => Ok(version),
        CallAnswer::Conflict { found } => Err(ConsensusError::Conflict { expected, found }),
        CallAnswer::Superseded { by } => Err(ConsensusError::Superseded { epoch, by }),
        other => unexpected(&other),
    }
}

/// Asks the leader, or else any of `addresses`, which name the leader.
pub(super) async fn ask_voters(links: &Links, leader: Option<String>, addresses: &[String], call: &Call) -> CallAnswer {
    if let Some(leader) = &leader {
        match ask_one(links, leader, call).await {
            Ok(CallAnswer::NotLeader(_) | CallAnswer::Unavailable(_)) | Err(_) => {}
            Ok(answer) => return answer,
        }
    }
    let (mut silent, mut reason, mut named) = (Vec::new(), None, None);
    // A change is sent to one voter only: where the leader is, is asked with a call that changes nothing.
    let search = if let Call::Write { epoch, .. } = call { &Call::Confirm { epoch: *epoch } } else { call };
    let asked = addresses.iter().map(|address| async move { (address, ask_one(links, address, search).await) });
    for (address, answer) in join_all(asked).await {
        match answer {
            Ok(CallAnswer::Unavailable(text)) => reason = Some(text),
            Ok(CallAnswer::NotLeader(Elsewhere { leader })) => named = leader.or(named),
            Ok(CallAnswer::Confirmed) if search != call => named = Some(address.clone()),
            Ok(answer) => return answer,
            // The request is for another job, or another release runs there.
            Err(status) if status.code() == Code::FailedPrecondition => reason = Some(status.message().to_owned()),
            Err(_) => silent.push(address.clone()),
        }
    }
    if let Some(named) = named.filter(|named| !silent.contains(named)) {
        match ask_one(links, &named, call).await {
            Ok(CallAnswer::Unavailable(text)) => reason = Some(text),
            Ok(CallAnswer::NotLeader(_)) | Err(_) => {}
            Ok(answer) => return answer,
        }
    }
    let majority = addresses.len() / 2 + 1;
    let answered = addresses.len() - silent.len() >= majority;
    CallAnswer::Unavailable(reason.filter(|_| answered).unwrap_or_else(|| no_majority(addresses.len(), &silent)))
}

/// Asks one voter. A change that is not answered may have been made.
async fn ask_one(links: &Links, address: &str, call: &Call) -> std::result::Result<CallAnswer, Status> {
    let change = matches!(call, Call::Write { .. });
    let limit = if change { links.settings.request_limit() } else { links.settings.rpc_limit() } * 2;
    match links.call((address, 0), Method::Call, call, limit).await {
        Err(status) if change && status.code() != Code::FailedPrecondition => {
            let text = format!("the leader, {address}, has not answered whether it wrote: {}", status.message());
            Ok(CallAnswer::Unknown(text))
        }
        answer => answer,
    }
}

/// States how many voters do not answer.
pub(super) fn no_majority(voters: usize, silent: &[String]) -> String {
    let majority = voters / 2 + 1;
    match silent.len() {
        0 => format!("all {voters} voters answer, and none is leader yet"),
        count => format!("{count} of {voters} voters do not answer ({}), and {majority} must", silent.join(", ")),
    }
}

/// Waits for a record that is newer than `after`, at any of `addresses`.
pub(super) async fn watch(links: &Links, addresses: &[String], after: Version) -> Result<Record> {
    let limit = links.settings.long_poll() + links.settings.rpc_limit();
    let mut silent = Vec::new();
    for address in addresses {
        loop {
            let asked = links.call((address, 0), Method::Watch, &WatchRequest { after }, limit).await;
            match asked {
                Ok(WatchAnswer { record: Some(record) }) => return Ok(record),
                Ok(WatchAnswer { record: None }) => {}
                Err(_) => break silent.push(address.clone()),
            }
        }
    }
    Err(ConsensusError::Unavailable(no_majority(addresses.len(), &silent)))
}
