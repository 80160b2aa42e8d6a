//! The other processes that can become manager, and what each states about itself.

use super::Inner;
use crate::dial::Access;
use crate::security::SecurityContext;
use crate::wire::proto::manager_client::ManagerClient;
use crate::wire::proto::{OfficeAnswer, OfficeRequest};
use futures::future::try_join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::Channel;

/// The processes of all standbys, by their addresses.
pub(super) type Statements = BTreeMap<String, String>;

/// What a process that can become manager states about itself.
#[derive(Debug)]
pub(super) struct Standing {
    /// Identifier of this process.
    instance: String,
    job: OnceLock<String>,
    /// Greatest epoch in which this process took office.
    taken: AtomicU64,
}

impl Standing {
    pub(super) fn new(instance: String) -> Standing {
        Standing { instance, job: OnceLock::new(), taken: AtomicU64::new(0) }
    }

    /// This process stands for manager of a job from now on.
    pub(super) fn stands(&self, job: &str) {
        let _ = self.job.set(job.to_owned()); // it stands again
    }

    /// This process takes office. MUST be called before it reads the moment from which its waiting times count.
    pub(super) fn takes(&self, epoch: u64) {
        self.taken.fetch_max(epoch, Ordering::SeqCst);
    }

    pub(super) fn state(&self, request: &OfficeRequest, candidates: Vec<String>) -> Result<OfficeAnswer, Status> {
        match self.job.get() {
            Some(job) if *job != request.job => {
                let text = format!("this process stands for manager of job {job}, not of {}", request.job);
                Err(Status::permission_denied(text))
            }
            _ => {
                let (instance, epoch) = (self.instance.clone(), self.taken.load(Ordering::SeqCst));
                Ok(OfficeAnswer { instance, epoch, candidates })
            }
        }
    }
}

/// The listed candidates, and how they are reached.
#[derive(Clone)]
pub(super) struct Candidates {
    listed: Arc<BTreeSet<String>>,
    access: Access,
    channels: Arc<Mutex<BTreeMap<String, Channel>>>,
}

impl Candidates {
    pub(super) fn new(listed: impl IntoIterator<Item = String>, security: &SecurityContext) -> Candidates {
        let listed = Arc::new(listed.into_iter().collect());
        Candidates { listed, access: Access::new(security), channels: Arc::default() }
    }

    pub(super) fn listed(&self) -> Vec<String> {
        self.listed.iter().cloned().collect()
    }

    /// Returns the candidates other than the one at `own`. `None` if that one is not listed: the others do not know it.
    pub(super) fn others(&self, own: &str) -> Option<Standbys> {
        let is_listed = self.listed.contains(own);
        if !is_listed {
            tracing::warn!(own, "this candidate is not in its own list: standbys do not confirm it");
        }
        is_listed.then(|| Standbys { candidates: self.clone(), own: own.to_owned() })
    }

    async fn channel(&self, address: &str, within: Duration) -> Result<Channel, String> {
        let known = self.channels.lock().unwrap_or_else(PoisonError::into_inner).get(address).cloned();
        if let Some(channel) = known {
            return Ok(channel);
        }
        let channel = self.access.dial(address, within).await?;
        self.channels.lock().unwrap_or_else(PoisonError::into_inner).insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}

/// The standbys of one manager.
pub(super) struct Standbys {
    candidates: Candidates,
    own: String,
}

impl Standbys {
    /// Asks all standbys. Returns the process of each if all of them state that they took office in no later epoch.
    pub(super) async fn ask(&self, manager: &Inner) -> Result<Statements, String> {
        let others = self.candidates.listed.iter().filter(|address| **address != self.own);
        let asked = try_join_all(others.map(|address| self.ask_one(address, manager)));
        Ok(asked.await?.into_iter().collect())
    }

    async fn ask_one(&self, address: &str, manager: &Inner) -> Result<(String, String), String> {
        let within = manager.settings.engine_silent_after();
        let answer = match timeout(within, self.call(address, manager)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("it does not answer within {within:?}")),
        };
        let answer = answer.map_err(|why| {
            self.candidates.channels.lock().unwrap_or_else(PoisonError::into_inner).remove(address);
            format!("the standby at {address}: {why}")
        })?;
        if answer.epoch > manager.epoch.0 {
            return Err(format!("the standby at {address} took office in epoch {}", answer.epoch));
        }
        if !answer.candidates.iter().eq(self.candidates.listed.iter()) {
            let others = answer.candidates.join(", ");
            return Err(format!(
                "the standby at {address} lists other candidates ({others}): start all hosts with one list"
            ));
        }
        Ok((address.to_owned(), answer.instance))
    }

    async fn call(&self, address: &str, manager: &Inner) -> Result<OfficeAnswer, String> {
        let channel = self.candidates.channel(address, manager.settings.engine_silent_after()).await?;
        let request = OfficeRequest { job: manager.job.clone(), epoch: manager.epoch.0 };
        let request = self.candidates.access.request(request).map_err(|status| status.message().to_owned())?;
        let answer = ManagerClient::new(channel).office(request).await;
        answer.map(tonic::Response::into_inner).map_err(|status| match status.message() {
            "" => crate::dial::root_cause(&status),
            text => text.to_owned(),
        })
    }
}
