//! Calls to other voters.

use super::messages::{self, MESSAGE_BYTES_MAX};
use super::{Connect, EmbeddedSettings};
use crate::wire::proto::voter_client::VoterClient;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use taskd_runtime::job::Name;
use tonic::service::Interceptor;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// Most channels that are kept. A job has five voters; more addresses are seen only as voters are replaced.
const CHANNELS_MAX: usize = 32;

/// The calls of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Append,
    Vote,
    Install,
    Hello,
    Call,
    Watch,
    Admit,
    Yield,
}

/// Channels to the voters of one job.
#[derive(Clone)]
pub(super) struct Links {
    job: Name,
    pub(super) settings: EmbeddedSettings,
    connect: Arc<dyn Connect>,
    channels: Arc<Mutex<BTreeMap<String, Channel>>>,
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("job", &self.job).finish_non_exhaustive()
    }
}

impl Links {
    pub(super) fn new(job: Name, settings: EmbeddedSettings, connect: Arc<dyn Connect>) -> Links {
        Links { job, settings, connect, channels: Arc::default() }
    }

    fn channel(&self, address: &str) -> Result<Channel, Status> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(address) {
            return Ok(channel.clone());
        }
        let opened = self.connect.connect(address);
        let channel = opened.map_err(|error| Status::invalid_argument(error.to_string()))?;
        if channels.len() >= CHANNELS_MAX {
            tracing::debug!("{CHANNELS_MAX} channels to voters are open: all are opened again when they are used");
            channels.clear();
        }
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }

    /// Calls the voter at `address`; `voter` is its identifier, or 0 for any.
    pub(super) async fn call<Q: Serialize, A: DeserializeOwned>(
        &self,
        (address, voter): (&str, u64),
        method: Method,
        body: &Q,
        limit: Duration,
    ) -> Result<A, Status> {
        let request = messages::request(self.job.as_str(), voter, body)?;
        let token = self.connect.token();
        let present = move |request: Request<()>| match token.clone() {
            Some(mut token) => token.call(request),
            None => Ok(request),
        };
        let client = VoterClient::with_interceptor(self.channel(address)?, present);
        let mut client =
            client.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX);
        let sent = async {
            match method {
                Method::Append => client.append(request).await,
                Method::Vote => client.vote(request).await,
                Method::Install => client.install(request).await,
                Method::Hello => client.hello(request).await,
                Method::Call => client.call(request).await,
                Method::Watch => client.watch(request).await,
                Method::Admit => client.admit(request).await,
                Method::Yield => client.r#yield(request).await,
            }
        };
        match tokio::time::timeout(limit, sent).await {
            Ok(answered) => messages::decode(&answered?.into_inner().body),
            Err(_) => Err(Status::deadline_exceeded(format!("no answer within {limit:?}"))),
        }
    }
}
