//! The launcher of one host, called over the wire.

use super::Inner;
use super::host::{Host, Visibility};
use crate::session::CallError;
use crate::wire::{DirectiveArguments, PrepareArguments, StartArguments, StopArguments, decode, encode, method};
use async_trait::async_trait;
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use taskd_runtime::job::{CommandId, ProcId};
use taskd_runtime::launch::{
    Change, DirectiveBatch, LaunchError, Launcher, LauncherInfo, Listing, PrepareOptions, Revision, StartBatch,
};

/// Calls the launcher of a host's agent. While the host is out of sight, requests for information fail at once, and
/// orders wait.
pub(super) struct RemoteLauncher {
    pub(super) host: Arc<Host>,
    pub(super) manager: Arc<Inner>,
}

impl RemoteLauncher {
    /// Calls a method of the agent's launcher.
    async fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        arguments: &(impl Serialize + Sync),
        cancellable: bool,
    ) -> Result<T, LaunchError> {
        self.manager.in_office()?;
        self.in_sight(cancellable).await?;
        let arguments = encode(arguments).map_err(|error| refused(&format!("{method} cannot be sent"), &error))?;
        let answer = self.host.session().calls.call(method, arguments, cancellable).await;
        self.manager.in_office()?;
        let value = answer.map_err(|error| self.error(error))?;
        decode(&value).map_err(|error| refused(&format!("the answer to {method} cannot be read"), &error))
    }

    async fn arguments(&self, batch: &StartBatch) -> StartArguments {
        let rendezvous = self.manager.rendezvous_for(&self.host).await;
        let secret = self.manager.rank_secret().await;
        let address = self.host.peer_address().and_then(|address| host_in(&address));
        StartArguments { batch: batch.clone(), rendezvous, secret, address, copies: self.manager.copies_of(batch) }
    }

    /// Returns Ok if the host is in sight. An order waits while it is out of sight, which ends within
    /// [`replace_after`](crate::ClusterSettings::replace_after): an order that failed meanwhile would use up an attempt
    /// of a recovery, and the job would fail before the host is back or lost. A request for information fails at once.
    async fn in_sight(&self, is_request: bool) -> Result<(), LaunchError> {
        let mut sight = self.host.sight.subscribe();
        let gone = |what| Err(LaunchError::Unreachable(format!("{} {what}", self.host.name)));
        loop {
            let seen = *sight.borrow_and_update();
            match seen {
                Visibility::Seen => return Ok(()),
                Visibility::OutOfSight if is_request => return gone("is out of sight"),
                Visibility::OutOfSight => {}
                Visibility::Left => return gone("has left"),
            }
            let over = self.manager.over();
            tokio::select! {
                biased;
                error = over => return Err(error),
                changed = sight.changed() => if changed.is_err() { return gone("has left") },
            }
        }
    }

    fn error(&self, error: CallError) -> LaunchError {
        match error {
            CallError::Ended(why) => LaunchError::Unreachable(format!("{}: {why}", self.host.name)),
            CallError::UnknownMethod(_) => LaunchError::Refused(format!("{}: {error}", self.host.name)),
            CallError::Failed(error) => {
                decode(&error).unwrap_or_else(|error| refused("the agent's error cannot be read", &error))
            }
        }
    }
}

/// Returns the host in an address `HOST:PORT`.
fn host_in(address: &str) -> Option<String> {
    let (host, _) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty()).then(|| host.to_owned())
}

fn refused(what: &str, why: &dyn Display) -> LaunchError {
    LaunchError::Refused(format!("{what}: {why}"))
}

#[async_trait]
impl Launcher for RemoteLauncher {
    fn info(&self) -> LauncherInfo {
        self.host.info().with_detach() // the agent keeps its processes, whatever its launcher can do
    }

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        self.call(method::START, &self.arguments(batch).await, false).await
    }

    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        self.call(method::STOP, &StopArguments { procs: procs.to_vec(), grace }, false).await
    }

    async fn list(&self) -> Result<Listing, LaunchError> {
        let listing: Listing = self.call(method::LIST, &(), true).await?;
        self.manager.completed.see(&listing.procs);
        Ok(listing)
    }

    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        let mut sight = self.host.sight.subscribe();
        tokio::select! {
            biased;
            answer = self.call(method::WATCH, &from, true) => {
                let (changes, next): (Vec<Change>, Revision) = answer?;
                self.manager.completed.see_changes(&changes);
                Ok((changes, next))
            }
            _ = sight.wait_for(|sight| *sight != Visibility::Seen) => {
                Err(LaunchError::Unreachable(format!("{} is out of sight", self.host.name)))
            }
        }
    }

    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        self.call(method::ACKNOWLEDGE, &exits, false).await
    }

    async fn send_directives(&self, id: CommandId, batch: &DirectiveBatch) -> Result<(), LaunchError> {
        let rendezvous = self.manager.rendezvous_for(&self.host).await;
        let arguments = DirectiveArguments { id, batch: batch.clone(), rendezvous };
        self.call(method::SEND_DIRECTIVES, &arguments, false).await
    }

    async fn prepare(&self, batch: &StartBatch, options: &PrepareOptions) -> Result<(), LaunchError> {
        let arguments = PrepareArguments::new(self.arguments(batch).await, options);
        self.call(method::PREPARE, &arguments, false).await
    }

    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        self.call(method::DETACH, &keep, false).await
    }

    fn begin_shutdown(&self, grace: Duration) {
        if self.manager.in_office().is_ok()
            && let Ok(arguments) = encode(&grace)
        {
            self.host.session().calls.post(method::BEGIN_SHUTDOWN, arguments);
        }
    }
}
