//! Reading the record from the voters of other hosts.

use super::links::{Links, Method};
use super::messages::{Elsewhere, ReadAnswer, WatchAnswer, WatchRequest};
use crate::consensus::{ConsensusError, Record, Version};
use futures::future::join_all;
use tonic::Code;

/// Reads the record from the leader, or else from any of `addresses`, which name the leader. The error is a reason.
pub(super) async fn read(links: &Links, leader: Option<String>, addresses: &[String]) -> Result<Record, String> {
    if let Some(Ok(ReadAnswer::Record(record))) = ask_leader(links, leader.as_deref()).await {
        return Ok(record);
    }
    let (mut silent, mut reason, mut named) = (Vec::new(), None, None);
    let asked = addresses.iter().map(|address| async move { (address, ask(links, address).await) });
    for (address, answer) in join_all(asked).await {
        match answer {
            Ok(ReadAnswer::Record(record)) => return Ok(record),
            Ok(ReadAnswer::Unavailable(text)) => reason = Some(text),
            Ok(ReadAnswer::NotLeader(Elsewhere { leader })) => named = leader.or(named),
            // The request is for another job, or another release runs there.
            Err(status) if status.code() == Code::FailedPrecondition => reason = Some(status.message().to_owned()),
            Err(_) => silent.push(address.clone()),
        }
    }
    match ask_leader(links, named.as_deref().filter(|named| !silent.iter().any(|address| address == named))).await {
        Some(Ok(ReadAnswer::Record(record))) => return Ok(record),
        Some(Ok(ReadAnswer::Unavailable(text))) => reason = Some(text),
        _ => {}
    }
    let majority = addresses.len() / 2 + 1;
    match reason {
        Some(reason) if addresses.len() - silent.len() >= majority => Err(reason),
        _ => Err(no_majority(addresses.len(), &silent)),
    }
}

async fn ask_leader(links: &Links, address: Option<&str>) -> Option<Result<ReadAnswer, tonic::Status>> {
    match address {
        Some(address) => Some(ask(links, address).await),
        None => None,
    }
}

async fn ask(links: &Links, address: &str) -> Result<ReadAnswer, tonic::Status> {
    links.call((address, 0), Method::Read, &(), links.settings.rpc_limit()).await
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
pub(super) async fn watch(links: &Links, addresses: &[String], after: Version) -> Result<Record, ConsensusError> {
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
