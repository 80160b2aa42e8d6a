//! A launcher that breaks one clause of the contract.

use super::super::*;
use crate::job::{CommandId, Exit, Incarnation, ProcId, Termination};
use crate::launch::{
    Change, DirectiveBatch, LaunchError, Listing, NodeState, Phase, PrepareOptions, ProcStatus, Revision, StartBatch,
    StartOrder,
};
use crate::testing::doubles::FakeLauncher;
use async_trait::async_trait;
use std::collections::BTreeSet;
use std::sync::Mutex;
use tokio::time::sleep;

/// Incarnations from this number on are processes that the broken launcher does not report.
const SHADOWS: u32 = 1000;
const TICK: Duration = Duration::from_millis(100);

pub(super) struct Broken {
    fake: FakeLauncher,
    clause: Clause,
    seen: Mutex<BTreeSet<ProcId>>,
    acknowledged: Mutex<BTreeSet<ProcId>>,
    place: Mutex<Revision>,
    refused: Mutex<bool>,
    gate: tokio::sync::Mutex<()>,
}

impl Broken {
    pub(super) async fn new(fake: FakeLauncher, clause: Clause, owner: u32) -> Broken {
        let broken = Broken {
            fake,
            clause,
            seen: Mutex::default(),
            acknowledged: Mutex::default(),
            place: Mutex::default(),
            refused: Mutex::default(),
            gate: tokio::sync::Mutex::default(),
        };
        if clause == EXIT_OUTLIVES_OWNER && owner > 1 {
            let exits = broken.fake.list().await.unwrap().procs;
            let exits: Vec<ProcId> = exits.into_iter().filter(|p| p.phase.is_exited()).map(|p| p.proc).collect();
            broken.fake.acknowledge(&exits).await.unwrap();
        }
        broken
    }

    async fn gate(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        if self.clause == CALLS_AT_ONCE { Some(self.gate.lock().await) } else { None }
    }

    /// Starts another process from the same specification without reporting it.
    async fn shadow(&self, batch: &StartBatch, order: &StartOrder) {
        let incarnation = Incarnation(order.proc.incarnation.0 + SHADOWS);
        let proc = ProcId { role: order.proc.role.clone(), incarnation };
        let orders = vec![StartOrder::new(proc, order.place.clone(), order.spec.clone())];
        self.fake.start(&StartBatch::new(batch.world.clone(), orders)).await.unwrap();
    }

    async fn ended(&self, procs: &[ProcId]) {
        while procs.iter().any(|proc| self.fake.runs(proc)) {
            sleep(TICK).await;
        }
    }

    fn report(&self, change: Change) -> Vec<Change> {
        let status = match change {
            Change::Node(node) => {
                let blind = self.clause == OUT_OF_SIGHT_IS_NOT_ENDED && node.state == NodeState::OutOfSight;
                let lost = if blind { self.seen.lock().unwrap().clone() } else { BTreeSet::new() };
                let gone = |proc| with(&status_of(proc), exited(Termination::Unknown));
                return std::iter::once(Change::Node(node)).chain(lost.into_iter().map(gone)).collect();
            }
            Change::Proc(status) if status.proc.incarnation.0 >= SHADOWS => return Vec::new(),
            Change::Proc(status) => status,
            other @ (Change::Link(_) | Change::Worker(_) | Change::Guard(_)) => return vec![other],
        };
        let same = Change::Proc(status.clone());
        match &status.phase {
            Phase::Running if self.clause == START_IS_REPORTED => vec![with(&status, pending())],
            Phase::Running if self.clause == PHASE_FORWARD => vec![same, with(&status, pending())],
            Phase::Exited(exit) if self.clause == EXIT_OF_FAILED_START && exit.how == Termination::Unknown => vec![],
            Phase::Exited(exit) if self.clause == EXIT_EXACT && exit.how == Termination::Code(3) => {
                vec![with(&status, exited(Termination::Code(1)))]
            }
            Phase::Exited(_) if self.clause == EXIT_ONCE => vec![same.clone(), same],
            Phase::Exited(exit) if self.clause == DEAD_ONCE => {
                vec![with(&status, Phase::Dead(exit.how)), with(&status, Phase::Dead(exit.how)), same]
            }
            _ => vec![same],
        }
    }
}

fn with(status: &ProcStatus, phase: Phase) -> Change {
    Change::Proc(status.clone().with_phase(phase))
}

fn status_of(proc: ProcId) -> ProcStatus {
    ProcStatus::new(proc, "lost", pending())
}

fn pending() -> Phase {
    Phase::Pending("as scripted".into())
}

fn exited(how: Termination) -> Phase {
    Phase::Exited(Box::new(Exit::new(how)))
}

#[async_trait]
impl Launcher for Broken {
    crate::delegate!(Launcher to |this| this.fake, except start, prepare, send_directives, stop, list, watch, acknowledge, detach);

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        let _gate = self.gate().await;
        let procs: Vec<ProcId> = batch.starts.iter().map(|order| order.proc.clone()).collect();
        let known: BTreeSet<ProcId> = {
            let mut seen = self.seen.lock().unwrap();
            procs.iter().filter(|proc| !seen.insert((*proc).clone())).cloned().collect()
        };
        if self.clause == DROP_BREAKS_NOTHING {
            if procs.iter().all(|proc| known.contains(proc)) {
                return Ok(());
            }
            tokio::task::yield_now().await;
        }
        if self.clause == START_ALL_OR_NOTHING {
            for order in &batch.starts {
                self.fake.start(&StartBatch::new(batch.world.clone(), vec![order.clone()])).await?;
            }
        }
        if self.clause == REFUSED_IS_FINAL && std::mem::take(&mut *self.refused.lock().unwrap()) {
            return Ok(());
        }
        if let Err(error) = self.fake.start(batch).await {
            *self.refused.lock().unwrap() = true;
            return Err(error);
        }
        for order in &batch.starts {
            let again = self.clause == START_ONCE && known.contains(&order.proc);
            if again || self.clause == STOP_WHOLE_TREE {
                self.shadow(batch, order).await;
            }
        }
        if self.clause == START_ONLY_ACCEPTS {
            self.ended(&procs).await;
        }
        Ok(())
    }

    async fn prepare(&self, batch: &StartBatch, options: &PrepareOptions) -> Result<(), LaunchError> {
        if self.clause == PREPARE_STARTS_NOTHING {
            self.fake.start(batch).await?;
        }
        self.fake.prepare(batch, options).await
    }

    async fn send_directives(&self, id: CommandId, batch: &DirectiveBatch) -> Result<(), LaunchError> {
        if self.clause == CALLS_REACH_INNER {
            return Err(LaunchError::Refused("there is no link".into())); // as a launcher that has forgotten it
        }
        self.fake.send_directives(id, batch).await
    }

    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        let _gate = self.gate().await;
        if self.clause == STOP_ENDS {
            return Ok(());
        }
        if self.clause == STOP_UNKNOWN_IS_FINE && !procs.iter().all(|proc| self.fake.runs(proc)) {
            return Err(LaunchError::Refused("no such process".into()));
        }
        let grace = match self.clause {
            STOP_GRACE => Duration::ZERO,
            STOP_BY_FORCE => Duration::from_secs(1_000_000),
            _ => grace,
        };
        self.fake.stop(procs, grace).await?;
        if self.clause == STOP_ONLY_BEGINS {
            self.ended(procs).await;
        }
        Ok(())
    }

    async fn list(&self) -> Result<Listing, LaunchError> {
        let _gate = self.gate().await;
        let mut listing = self.fake.list().await?;
        let keep = |p: &ProcStatus| match self.clause {
            LIST_COMPLETE => p.phase != Phase::Running,
            EXIT_KEPT => !p.phase.is_exited(),
            _ => p.proc.incarnation.0 < SHADOWS,
        };
        listing.procs.retain(keep);
        match self.clause {
            LIST_HOSTS => listing.nodes.clear(),
            LIST_THEN_WATCH => listing.revision.seq = listing.revision.seq.saturating_sub(1),
            START_NEVER_AGAIN => {
                let (seen, gone) = (self.seen.lock().unwrap(), self.acknowledged.lock().unwrap());
                listing.procs.extend(seen.intersection(&gone).cloned().map(status_of));
            }
            _ => {}
        }
        Ok(listing)
    }

    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        let _gate = self.gate().await;
        let keeps_place = [WATCH_CALLER_HOLDS_PLACE, WATCH_CANCEL_SAFE].contains(&self.clause);
        let place = *self.place.lock().unwrap();
        let mut from = if keeps_place && place.epoch == from.epoch { from.max(place) } else { from };
        if self.clause == WATCH_WAITS {
            let waited = tokio::time::timeout(TICK, self.fake.watch(from)).await;
            return waited.unwrap_or(Ok((Vec::new(), from)));
        }
        loop {
            let reported = self.fake.watch(from).await;
            if self.clause == WATCH_STALE && reported.is_err() {
                std::future::pending::<()>().await;
            }
            let (changes, next) = reported?;
            let changes: Vec<Change> = changes.into_iter().flat_map(|change| self.report(change)).collect();
            *self.place.lock().unwrap() = next;
            if self.clause == WATCH_CANCEL_SAFE {
                tokio::task::yield_now().await;
            }
            if !changes.is_empty() {
                return Ok((changes, next));
            }
            from = next;
        }
    }

    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        let _gate = self.gate().await;
        if self.clause == ACKNOWLEDGED_IS_FORGOTTEN {
            return Ok(());
        }
        let known = self.fake.list().await?.procs;
        let known = |proc: &ProcId| known.iter().any(|p| p.proc == *proc && p.phase.is_exited());
        if self.clause == ACKNOWLEDGE_UNKNOWN_IS_FINE && !exits.iter().all(known) {
            return Err(LaunchError::Refused("no such exit".into()));
        }
        if self.clause == START_NEVER_AGAIN {
            self.seen.lock().unwrap().retain(|proc| !exits.contains(proc));
            self.acknowledged.lock().unwrap().extend(exits.iter().cloned());
        }
        self.fake.acknowledge(exits).await
    }

    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        if self.clause == DETACH_KEEPS {
            for status in self.fake.list().await?.procs {
                self.fake.kill(&status.proc);
            }
        }
        self.fake.detach(keep).await
    }
}
