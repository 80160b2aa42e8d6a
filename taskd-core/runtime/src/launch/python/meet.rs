//! Rendezvous of a generation: its port, the process that listens there, and the endpoint that joining processes
//! receive.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::command::PythonCommand;
use super::port::{self, HeldPort};
use super::{FILES_WITHIN, Framework, HOOKS_VARIABLE, PythonLauncher, on_files};
use crate::job::{NodeId, ProcId, Role, WorkerSpec, World};
use crate::launch::{Directive, DirectiveBatch, Endpoint, LaunchError, Launcher, Listing, ProcStatus, StartBatch};

/// Time limit for the rendezvous service to acknowledge a generation; the service may still be starting.
const OPEN_WITHIN: Duration = Duration::from_secs(10);

fn unable(port: u16, error: &std::io::Error) -> LaunchError {
    LaunchError::Unreachable(format!("cannot listen at port {port}: {error}"))
}

impl<L: Launcher, F: Framework> PythonLauncher<L, F> {
    /// Returns the rendezvous endpoint of the world's generation, and chooses a port if there is none yet.
    ///
    /// `running` lists the processes that run, possibly those of an earlier owner that had begun this same start; then
    /// the port that the earlier owner chose is used again.
    pub(super) async fn meet(
        &self,
        world: &World,
        running: &Listing,
        starting: &StartBatch,
    ) -> Result<Endpoint, LaunchError> {
        let generation = world.generation();
        let runs = running.procs.iter().filter(|status| !status.phase.is_over()).map(|status| &status.proc.role);
        let starts = starting.starts.iter().map(|order| &order.proc.role);
        let is_here = runs.chain(starts).any(|role| self.is_meeting(role));
        let served = is_here || self.forwarder.as_ref().is_some_and(|forwarder| forwarder.is_elsewhere());
        let host = self.framework.rendezvous_host(world);
        let mut held = self.port.lock().await;
        let known = held.as_ref().filter(|held| held.generation == generation).map(|held| held.port);
        let port = match known {
            Some(port) => port,
            None => {
                let files = self.files.clone();
                let attached = running.procs.iter().any(|status| !status.phase.is_over());
                let earlier =
                    if attached { on_files(move || files.read_port(generation)).await.flatten() } else { None };
                let lent_as = if served { None } else { self.lends(&host, starting).await };
                let at = match &lent_as {
                    _ if served => port::listens_at(&host, FILES_WITHIN).await,
                    Some(host) => port::listens_at_address(host),
                    None => None,
                };
                let mut new = match earlier {
                    Some(port) => HeldPort::again(generation, port, at),
                    None => HeldPort::choose(generation, at).map_err(|error| {
                        LaunchError::Unreachable(format!(
                            "no rendezvous port for the processes of {generation}: {error}"
                        ))
                    })?,
                };
                if let Some(host) = lent_as {
                    new.listen_for(&host).map_err(|error| unable(new.port, &error))?;
                }
                // The last generation's port was held until here, so that the new port differs from it.
                let port = held.insert(new).port;
                let files = self.files.clone();
                on_files(move || files.write_port(generation, port)).await;
                port
            }
        };
        Ok(Endpoint { host, port, served })
    }

    /// Returns the host name under which a process of this start will request the listener of its port; empty if
    /// unknown. `None`: no process will request it, so the launcher may not listen there itself.
    async fn lends(&self, host: &str, starting: &StartBatch) -> Option<String> {
        let variable = self.framework.host_variable()?;
        let mut specs = starting.starts.iter().filter(|order| self.is_ours(&order.proc)).map(|order| &order.spec);
        let has_helper = specs.clone().all(|spec| self.has_helper(spec));
        if !has_helper || !self.lender.serve(self.files.lender(), &self.port).await {
            return None;
        }
        // A program that is not Python cannot take a listener, and could not listen beside it.
        if !self.lender.was_asked() {
            tracing::warn!(
                "no process of the last start has requested the listener of its port: the next port is bound without a listener, and \
                 another user of the host could listen there first"
            );
            return None;
        }
        let is_the_users = specs.any(|spec| spec.env.contains_key(variable));
        Some(if is_the_users { String::new() } else { host.to_owned() })
    }

    /// Returns true if the helper is expected to run in a process; a wrapper program may start anything.
    pub(super) fn has_helper(&self, spec: &WorkerSpec) -> bool {
        let hooks = spec.env.get(HOOKS_VARIABLE).map(String::as_str);
        let is_off = hooks.or_else(|| self.inherited.get(spec, HOOKS_VARIABLE)) == Some("0");
        self.no_helper.is_none() && !is_off && !PythonCommand::ignores_path(&spec.argv)
    }

    /// Listens at the service's port, so that early connections wait instead of being refused.
    pub(super) async fn listen(&self, meet: &Endpoint) -> Result<(), LaunchError> {
        let mut held = self.port.lock().await;
        let Some(held) = held.as_mut().filter(|held| meet.served && held.port == meet.port) else { return Ok(()) };
        held.listen().map_err(|error| unable(meet.port, &error))
    }

    /// Passes the listener of the world's generation to the service, once.
    pub(super) async fn open(&self, world: &World, meet: &Endpoint) -> Result<(), LaunchError> {
        let listener = {
            let mut held = self.port.lock().await;
            held.as_mut().filter(|held| meet.served && held.port == meet.port).and_then(HeldPort::take_listener)
        };
        let (Some(listener), Some(meeting)) = (listener, self.framework.rendezvous()) else { return Ok(()) };
        if let Some(forwarder) = &self.forwarder {
            if forwarder.is_elsewhere() && !self.meeting_is_here().await {
                forwarder.forward(world.generation(), listener);
                return Ok(());
            }
            if let Ok(address) = listener.local_addr() {
                forwarder.serves(world.generation(), address);
            }
        }
        let control = self.files.meeting();
        let opening = tokio::time::timeout(OPEN_WITHIN, meeting.open(&control, world.generation(), listener));
        let opened = tokio::select! {
            biased;
            opened = opening => opened.unwrap_or_else(|_| Err(format!("it has not answered within {OPEN_WITHIN:?}"))),
            () = self.meeting_has_ended() => Err("it has ended".into()), // a connection to its socket would wait
        };
        opened
            .map_err(|why| LaunchError::Unreachable(format!("service {} has no rendezvous: {why}", meeting.service())))
    }

    /// Returns true if the rendezvous service of the job runs on this launcher's hosts.
    async fn meeting_is_here(&self) -> bool {
        let listing = self.inner.list().await.unwrap_or_default();
        listing.procs.iter().any(|status| !status.phase.is_over() && self.is_meeting(&status.proc.role))
    }

    /// Returns once the rendezvous service of the job does not run.
    async fn meeting_has_ended(&self) {
        while let Ok(listing) = self.inner.list().await {
            let mut running = listing.procs.iter().filter(|status| !status.phase.is_over());
            if !running.any(|status| self.is_meeting(&status.proc.role)) {
                return;
            }
            if self.inner.watch(listing.revision).await.is_err() {
                break;
            }
        }
        std::future::pending().await // unknown: the launcher does not answer
    }

    pub(super) fn is_meeting(&self, role: &Role) -> bool {
        matches!(role, Role::Service(name) if self.framework.rendezvous().is_some_and(|meeting| meeting.service() == *name))
    }

    /// Returns the directives with the rendezvous endpoint added for joining processes: the same endpoint that the
    /// processes get which start in that world.
    pub(super) async fn with_store(&self, batch: &DirectiveBatch) -> Result<DirectiveBatch, LaunchError> {
        let mut batch = batch.clone();
        let missing = |directive: &Directive| matches!(directive, Directive::Join { store: None, .. });
        if batch.directives.iter().any(|(_, directive)| missing(directive)) {
            let running = self.inner.list().await?;
            let no_starts = StartBatch::new(Arc::clone(&batch.world), Vec::new());
            let meet = self.meet(&located(&batch.world, &running), &running, &no_starts).await?;
            self.listen(&meet).await?;
            self.open(&batch.world, &meet).await?;
            for (_, directive) in &mut batch.directives {
                if let Directive::Join { store: store @ None, .. } = directive {
                    *store = Some(meet.clone());
                }
            }
        }
        Ok(batch)
    }
}

/// Returns the world with the hosts that the launcher has chosen for members without a fixed host; processes that start
/// later need them.
pub(super) fn located(world: &World, listing: &Listing) -> World {
    let at = |status: &ProcStatus| Some((status.proc.clone(), status.node.clone()?));
    let seen: BTreeMap<ProcId, NodeId> = listing.procs.iter().filter_map(at).collect();
    world.clone().located(|proc| seen.get(proc).cloned())
}
