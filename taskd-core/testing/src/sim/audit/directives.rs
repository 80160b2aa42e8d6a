//! Directives are sent only to processes that can carry them out, in their order, within one world; and a stage of
//! directives ends when all replies have arrived.
//!
//! | directive | only after |
//! |---|---|
//! | `join` | the process has aborted for this world, or was started to join it |
//! | `sync-state` | it has joined this world |
//! | `resume` | it has synchronized its state in this world |

use super::super::outcome::Violation;
use super::Moment;
use super::books::event;
use crate::job::{CommandId, Generation, IncidentId, ProcId};
use crate::kernel::Effect;
use crate::kernel::{Command, Event, Input};
use crate::launch::{Change, Directive, DirectiveBatch, JOIN_VARIABLE, Peer, WorkerMessage};
use crate::recover::Action;
use std::collections::{BTreeMap, BTreeSet};

/// A command with outstanding replies, by the audit's own count.
#[derive(Debug)]
struct Sent {
    incident: Option<IncidentId>,
    generation: Generation,
    waiting: BTreeMap<ProcId, &'static str>,
}

#[derive(Debug, Default)]
pub(super) struct Directives {
    open: BTreeMap<CommandId, Sent>,
    /// The last directive that each process has completed, with the generation of the world to which it belonged.
    did: BTreeMap<ProcId, (Generation, &'static str)>,
    /// Plans whose stage in progress waits for more than directives.
    mixed: BTreeSet<Option<IncidentId>>,
}

impl Directives {
    pub(super) fn input(&mut self, m: &Moment<'_>) {
        match m.input {
            Input::Changed(Change::Worker(event)) => {
                let WorkerMessage::Reply { id, result } = &event.message else { return };
                let Some(sent) = self.open.get_mut(id) else { return };
                let Some(name) = sent.waiting.remove(&event.proc) else { return };
                if result.is_ok() {
                    self.did.insert(event.proc.clone(), (sent.generation, name));
                }
            }
            Input::Answered { id, results } => {
                let Some(sent) = self.open.get_mut(id) else { return };
                let refused = |proc: &ProcId| {
                    results.iter().any(|(d, r)| r.is_err() && *d == crate::job::Domain::Process(proc.role.clone()))
                };
                sent.waiting.retain(|proc, _| !refused(proc));
            }
            _ => {}
        }
    }

    pub(super) fn command(&mut self, m: &Moment<'_>, command: &Command) -> Result<(), Violation> {
        match &command.effect {
            Effect::Act(Action::Start { batch, .. }) => {
                self.mixed.insert(command.incident);
                let joins = batch.starts.iter().filter(|order| order.spec.env.contains_key(JOIN_VARIABLE));
                let generation = batch.world.generation();
                self.did.extend(joins.map(|order| (order.proc.clone(), (generation, "abort"))));
            }
            Effect::Act(Action::Stop { .. }) | Effect::Act(Action::Collect(_)) => {
                _ = self.mixed.insert(command.incident)
            }
            Effect::Act(Action::SendDirectives(batch)) if !self.open.contains_key(&command.id) => {
                return self.sent(m, command, batch);
            }
            _ => {}
        }
        match event(command) {
            Some(
                Event::Cancelled { incident, .. } | Event::Failed { incident, .. } | Event::Closed { incident, .. },
            ) => self.stage_over(Some(*incident)),
            Some(Event::StageDone { incident, .. }) => self.stage_over(*incident),
            _ => {}
        }
        Ok(())
    }

    fn stage_over(&mut self, incident: Option<IncidentId>) {
        self.open.retain(|_, sent| sent.incident != incident);
        self.mixed.remove(&incident);
    }

    fn sent(&mut self, m: &Moment<'_>, command: &Command, batch: &DirectiveBatch) -> Result<(), Violation> {
        let generation = batch.world.generation();
        let wrong = |proc: &ProcId, what: &Directive| Violation::WronglyTold {
            proc: proc.clone(),
            directive: what.name(),
            generation,
        };
        for (proc, what) in &batch.directives {
            let before = self.did.get(proc).filter(|(of, _)| *of == generation).map(|(_, name)| *name);
            let in_order = match what {
                Directive::Abort {} => before.is_none(),
                Directive::Join { .. } => before == Some("abort"),
                Directive::SyncState { .. } => before == Some("join"),
                Directive::Resume { .. } => before == Some("sync-state"),
                Directive::WriteShard { .. } => before == Some("abort"),
                Directive::WriteManifest { .. } => before == Some("write-shard"),
                Directive::CommitInMemory { .. } => true,
                _ => false, // unknown to this audit
            };
            let is_member = proc.role.rank().and_then(|rank| batch.world.proc(rank)).as_ref() == Some(proc);
            if !in_order || !is_member || !peers_of(what).all(|peer| is_pid_of(m, batch, peer)) {
                return Err(wrong(proc, what));
            }
        }
        let waiting = batch.directives.iter().map(|(proc, what)| (proc.clone(), what.name())).collect();
        self.open.insert(command.id, Sent { incident: command.incident, generation, waiting });
        Ok(())
    }

    /// An ended process sends no reply; when no process remains, the stage must have ended, successfully or not.
    pub(super) fn step_done(&mut self, m: &Moment<'_>) -> Result<(), Violation> {
        let view = m.kernel.view();
        let lives = |proc: &ProcId| {
            view.proc(&proc.role).is_some_and(|p| p.incarnation == proc.incarnation && !p.phase.is_over())
        };
        for sent in self.open.values_mut() {
            sent.waiting.retain(|proc, _| lives(proc));
        }
        let mixed = &self.mixed;
        let idle = |(_, sent): &(&CommandId, &Sent)| sent.waiting.is_empty() && !mixed.contains(&sent.incident);
        match self.open.iter().find(idle) {
            Some((command, _)) if !m.kernel.is_over() => Err(Violation::WaitsForNobody { command: *command }),
            _ => Ok(()),
        }
    }
}

fn peers_of(what: &Directive) -> impl Iterator<Item = &Peer> {
    let peers: &[Peer] = match what {
        Directive::Join { members, .. } => members,
        Directive::SyncState { from, .. } => from,
        _ => &[],
    };
    peers.iter()
}

/// Returns true if a peer has no process id, or the one of this world's process.
fn is_pid_of(m: &Moment<'_>, batch: &DirectiveBatch, peer: &Peer) -> bool {
    let status = batch.world.proc(peer.rank).and_then(|proc| m.fleet.status(&proc));
    peer.pid.is_none() || status.is_some_and(|status| status.pid == peer.pid)
}
