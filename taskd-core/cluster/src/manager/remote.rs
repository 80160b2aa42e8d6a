//! The launcher of one host, called over the wire.

use super::Inner;
use super::host::{Host, Session, Visibility};
use crate::session::{CallError, Request};
use crate::wire::{DirectiveArguments, PrepareArguments, StartArguments, StopArguments, decode, encode, method, pack};
use async_trait::async_trait;
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use taskd_runtime::job::{CommandId, ProcId, World};
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
    /// Calls a method of the agent's launcher to get information.
    async fn request<T: DeserializeOwned>(
        &self,
        method: &'static str,
        arguments: &(impl Serialize + Sync),
    ) -> Result<T, LaunchError> {
        self.manager.in_office()?;
        self.in_sight(true).await?;
        let request = Request::new(method, arguments_of(method, arguments)?);
        let answer = self.host.session().calls.call(request, true).await;
        self.answer(method, answer)
    }

    /// Calls a method of the agent's launcher that has an effect.
    async fn order(
        &self,
        session: &Arc<Session>,
        method: &'static str,
        arguments: &(impl Serialize + Sync),
        shared: Bytes,
    ) -> Result<(), LaunchError> {
        let request = Request { method, arguments: arguments_of(method, arguments)?, shared };
        let answer = self.manager.order(&self.host, session, request).await;
        self.answer(method, answer)
    }

    fn answer<T: DeserializeOwned>(&self, method: &str, answer: Result<Bytes, CallError>) -> Result<T, LaunchError> {
        self.manager.in_office()?;
        let value = answer.map_err(|error| self.error(error))?;
        decode(&value).map_err(|error| refused(&format!("the answer to {method} cannot be read"), &error))
    }

    /// Waits until the host is in sight, and returns its session.
    async fn session(&self) -> Result<Arc<Session>, LaunchError> {
        self.manager.in_office()?;
        self.in_sight(false).await?;
        Ok(self.host.session())
    }

    /// Returns the arguments of a start order. What all hosts get is in the second part.
    async fn start_arguments(
        &self,
        session: &Session,
        batch: &StartBatch,
    ) -> Result<(StartArguments, Bytes), LaunchError> {
        let rendezvous = self.manager.rendezvous_for(&self.host).await;
        let secret = self.manager.rank_secret().await;
        let address = self.host.peer_address().and_then(|address| host_in(&address));
        let copies = self.manager.copies_of(batch);
        let (world, shared) = self.manager.shared_world(session, &batch.world)?;
        let batch = StartBatch::new(world, batch.starts.clone());
        Ok((StartArguments { batch, rendezvous, secret, address, copies }, shared))
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

fn arguments_of(method: &str, arguments: &impl Serialize) -> Result<Bytes, LaunchError> {
    encode(arguments).map_err(|error| refused(&format!("{method} cannot be sent"), &error))
}

impl Inner {
    /// Returns the world for the arguments of a call, and that of its `shared` part: the same bytes for all hosts, so that a
    /// world of 10,000 hosts is not encoded and kept for each of them. An older agent gets the world in the arguments.
    fn shared_world(&self, session: &Session, world: &Arc<World>) -> Result<(Arc<World>, Bytes), LaunchError> {
        if !session.shares() {
            return Ok((Arc::clone(world), Bytes::new()));
        }
        let mut packed = self.packed.lock().unwrap_or_else(PoisonError::into_inner); // no foreign code runs meanwhile
        let shared = match &*packed {
            Some((known, shared)) if Arc::ptr_eq(known, world) => shared.clone(),
            _ => {
                let shared = pack(&**world).map_err(|error| refused("the world cannot be sent", &error))?;
                *packed = Some((Arc::clone(world), shared.clone()));
                shared
            }
        };
        Ok((Arc::new(World::first(BTreeMap::new())), shared))
    }
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
        let session = self.session().await?;
        let (arguments, shared) = self.start_arguments(&session, batch).await?;
        self.order(&session, method::START, &arguments, shared).await
    }

    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        let arguments = StopArguments { procs: procs.to_vec(), grace };
        self.order(&self.session().await?, method::STOP, &arguments, Bytes::new()).await
    }

    async fn list(&self) -> Result<Listing, LaunchError> {
        let listing: Listing = self.request(method::LIST, &()).await?;
        self.manager.completed.see(&listing.procs);
        Ok(listing)
    }

    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        let mut sight = self.host.sight.subscribe();
        tokio::select! {
            biased;
            answer = self.request(method::WATCH, &from) => {
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
        self.order(&self.session().await?, method::ACKNOWLEDGE, &exits, Bytes::new()).await
    }

    async fn send_directives(&self, id: CommandId, batch: &DirectiveBatch) -> Result<(), LaunchError> {
        let session = self.session().await?;
        let rendezvous = self.manager.rendezvous_for(&self.host).await;
        let (world, shared) = self.manager.shared_world(&session, &batch.world)?;
        let batch = DirectiveBatch::new(world, batch.directives.clone());
        let arguments = DirectiveArguments { id, batch, rendezvous };
        self.order(&session, method::SEND_DIRECTIVES, &arguments, shared).await
    }

    async fn prepare(&self, batch: &StartBatch, options: &PrepareOptions) -> Result<(), LaunchError> {
        let session = self.session().await?;
        let (arguments, shared) = self.start_arguments(&session, batch).await?;
        self.order(&session, method::PREPARE, &PrepareArguments::new(arguments, options), shared).await
    }

    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        self.order(&self.session().await?, method::DETACH, &keep, Bytes::new()).await
    }

    fn begin_shutdown(&self, grace: Duration) {
        if self.manager.in_office().is_ok()
            && let Ok(arguments) = encode(&grace)
        {
            self.host.session().calls.post(method::BEGIN_SHUTDOWN, arguments);
        }
    }
}
