//! Emergency checkpoint: survivors save the newest complete step before a restart, before the end, or on request.

use super::checkpoint_shards::{self, Shares};
use super::replicas::{is_alone, proven_sets, reported_sharded, that_differ};
use super::{
    ABORT, JOIN, Limits, NEEDED, RESUME, SYNC_STATE, can_be_told, compare_replicas, give_up, join, may_still_run,
    repair_and_resume, states_of,
};
use crate::detect::Health;
use crate::job::strategy::DUMP_EXIT;
use crate::job::{Counted, Domain, Generation, Name, ProcId, Rank, Role, World};
use crate::recover::exit::account;
use crate::recover::restart::start_anew;
use crate::recover::{
    Action, Advance, CommandOutcome, Cost, DUMP, Failure, Incident, JobProfile, PlanExecution, Proposal, Quorum,
    RecoveryStrategy, RefusalError, RefusalKind, Restart, Stage, TargetReply, possible, stages,
};
use crate::state::current_name;
use crate::state::{CheckpointManifest, CheckpointShard, Directive, DirectiveBatch, Phase, View, WorkerState};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Directives that a process must support to save its shard.
const CHECKPOINT_DIRECTIVES: [Name; 3] = [Name::new("abort"), Name::new("write-shard"), Name::new("write-manifest")];

const WRITE_SHARD: Name = Name::new("write-shard");
const WRITE_MANIFEST: Name = Name::new("write-manifest");

/// Time limit for writing the shards: enough for a few hundred gigabytes to an ordinary disk.
const SHARD_TIMEOUT: Duration = Duration::from_secs(600);
const MANIFEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Downtime that saving is expected to add.
const SAVE_TAKES: Duration = Duration::from_secs(30);
/// Expected downtime of a checkpoint that an operator requested, after which no process is started.
const REQUEST_TAKES: Duration = Duration::from_secs(30);

/// Strategy that saves a checkpoint of the surviving ranks' state, so that the job loses only the step in flight.
///
/// Without this strategy, the job loses all training since the training program's own last checkpoint.
///
/// - Stages: `abort` (survivors finish their step; processes of lost ranks that may still run are stopped),
///   `write-shard` (all ranks that hold the newest step available for every rank write a shard), `write-manifest`
///   (one of them writes the manifest last, which makes the shards a checkpoint), then the stages of [`Restart`] or
///   [`ExitStrategy`](crate::recover::ExitStrategy).
/// - If an [operator requested it](crate::kernel::Order::Checkpoint) and no rank is lost, the job continues with
///   `join`, `sync-state`, `resume`, even if nothing could be saved; the order is then reported as not granted.
/// - A survivor that does not answer `abort` in time saves no shard.
/// - The strategy refuses if the job names no checkpoint directory
///   ([`Policy::checkpoint_dir`](crate::job::Policy::checkpoint_dir)), if no replica of some rank can save, or if the
///   following restart could not succeed: no host for the ranks, or a broken program.
/// - The recovery fails between stages if no step's state is available for all ranks, or a shard could not be written.
#[derive(Clone, Copy, Debug)]
pub struct EmergencyCheckpoint {
    then: Then,
    restart: Restart,
    limits: Limits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Restart,
    Exit,
}

impl EmergencyCheckpoint {
    /// Returns the strategy `dump`: the survivors save a checkpoint, and all ranks restart from it.
    #[must_use]
    pub const fn then_restart() -> EmergencyCheckpoint {
        EmergencyCheckpoint { then: Then::Restart, restart: Restart::new(), limits: Limits::USUAL }
    }

    /// Returns the strategy `dump-exit`: the survivors save a checkpoint, and the job ends.
    #[must_use]
    pub const fn then_exit() -> EmergencyCheckpoint {
        EmergencyCheckpoint { then: Then::Exit, ..EmergencyCheckpoint::then_restart() }
    }

    /// Proposes that the survivors save and that all processes are stopped.
    fn before_the_end(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        let lost = incident.lost_ranks(view);
        let kept = savers(incident, view, &lost)?;
        let counted =
            if self.then == Then::Exit || incident.is_requested_by_operator() { Counted::No } else { Counted::Yes };
        let world = Arc::new(view.world.successor(counted, |_| ()));
        let stop = may_still_run(view, &lost);
        let within = self.limits.give_up;
        let first = Stage { quorum: Quorum::AtLeast(1), ..give_up(&world, &kept, stop, within) };
        let saved = format!("{} ranks save their current step", kept.len());
        let mut proposal = match self.then {
            Then::Exit => {
                let cost = Cost { ends_job: true, ..Cost::downtime(Duration::ZERO) };
                let reason = account(incident, view);
                let stages = stages::end_all(view, view.spec.policy.termination_grace_period, false, reason);
                Proposal::new(stages, vec![Domain::Job], cost, counted, saved)
            }
            Then::Restart => {
                let later = View { world, ..view.clone() };
                let rest = self.restart.propose_counted(incident, &later, Counted::No)?; // the first world has counted
                let downtime = rest.cost.downtime + SAVE_TAKES;
                let cost = Cost { lost_work: Duration::ZERO, downtime, ..rest.cost };
                let reason = format!("{saved}, and all ranks restart from it");
                Proposal { cost, counted, reason, ..rest }
            }
        };
        proposal.stages.insert(0, first);
        Ok(proposal)
    }

    /// Proposes that all ranks save and continue.
    fn on_request(&self, view: &View) -> Result<Proposal, RefusalError> {
        let kept: BTreeSet<Rank> = view.world.members().keys().copied().collect();
        for rank in &kept {
            let proc = view.proc(&Role::Rank(*rank)).filter(|proc| proc.wanted && proc.phase == Phase::Running);
            can_be_told(*rank, proc, &NEEDED, view)?;
            can_be_told(*rank, proc, &CHECKPOINT_DIRECTIVES, view)?;
        }
        if let Some(service) = view.missing_services().next() {
            return Err(format!("service {service} is missing: the ranks cannot rejoin after the save").into());
        }
        let world = Arc::new(view.world.successor(Counted::No, |_| ()));
        let first = give_up(&world, &kept, Vec::new(), self.limits.give_up);
        let stages = vec![first, join(view, &world, self.limits.join)];
        let reason = format!("all {} ranks save their current step and continue", kept.len());
        Ok(Proposal::new(stages, vec![Domain::Job], Cost::downtime(REQUEST_TAKES), Counted::No, reason))
    }

    /// After the abort: the ranks that hold the state of the chosen step write it.
    fn save(run: &PlanExecution, view: &View) -> Advance {
        let saved = match shares(run, view) {
            Ok(shares) => save_stage(&shares, view),
            Err(why) => Err(why),
        };
        match saved {
            Ok(stage) => before_rest(Stage { quorum: need(run), ..stage }, run),
            Err(_) if goes_on(run) => Advance::Continue, // reported at the end
            Err(why) => Advance::Fail(why),
        }
    }

    /// After all shards are written: one of the writers completes the checkpoint with a manifest.
    fn seal(run: &PlanExecution, view: &View) -> Advance {
        match seal_stage(run, view) {
            Ok(stage) => before_rest(Stage { quorum: need(run), ..stage }, run),
            Err(_) if goes_on(run) => Advance::Continue,
            Err(why) => Advance::Fail(why),
        }
    }
}

impl RecoveryStrategy for EmergencyCheckpoint {
    fn name(&self) -> Name {
        match self.then {
            Then::Restart => DUMP,
            Then::Exit => DUMP_EXIT,
        }
    }

    fn config(&self) -> String {
        format!("{} {}", self.limits.text(), self.restart.config())
    }

    fn unsupported_reason(&self, job: &JobProfile) -> Option<String> {
        let names_none = job.spec.policy.checkpoint_dir.is_none();
        names_none.then(|| "the job names no directory for checkpoints (policy.checkpoint_dir)".into())
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        possible(self, view)?;
        let asked = incident.is_requested_by_operator()
            && incident.faults.iter().any(|fault| fault.advice.as_ref() == Some(&DUMP));
        if !asked || view.training().count() < view.world.members().len() || !incident.lost_ranks(view).is_empty() {
            return self.before_the_end(incident, view);
        }
        match incident.attempts.iter().rfind(|(strategy, _)| *strategy == self.name()) {
            Some((_, why)) => Err(RefusalError::new(RefusalKind::TriedEnough, why)),
            None => self.on_request(view),
        }
    }

    fn advance(&self, run: &PlanExecution, view: &View) -> Advance {
        match run.ended_stage().map(|stage| current_name(&stage.name)) {
            Some(name) if name == ABORT => EmergencyCheckpoint::save(run, view),
            Some(name) if name == WRITE_SHARD => EmergencyCheckpoint::seal(run, view),
            Some(name) if name == JOIN => repair_and_resume(run, view, &self.limits),
            Some(name) if name == RESUME => match what_failed(run, view) {
                Some(why) => Advance::RolledBack(why),
                None => Advance::Continue,
            },
            Some(name) if name == SYNC_STATE => compare_replicas(run, view),
            _ if self.then == Then::Restart => start_anew(run, view, Counted::No),
            _ => Advance::Continue,
        }
    }
}

/// Returns the live ranks that can save, provided that each set of replicas has at least one.
///
/// # Errors
/// The reason why some set has none.
fn savers(incident: &Incident, view: &View, lost: &BTreeSet<Rank>) -> Result<BTreeSet<Rank>, String> {
    let spoiled = |rank: Rank| {
        let suspects = incident.faults.iter().map(|fault| fault.primary_suspect());
        let about = Domain::Process(Role::Rank(rank));
        let mut damages = suspects.filter(|s| s.is_cause() && view.contains(&s.domain, &about)).map(|s| s.damage);
        damages.any(|damage| damage.state == Health::Faulty)
    };
    let refusal = |rank: Rank| {
        if lost.contains(&rank) {
            return Err(format!("{rank} is lost"));
        }
        if spoiled(rank) {
            return Err(format!("the state of {rank} is reported as damaged"));
        }
        let proc = view.proc(&Role::Rank(rank)).filter(|proc| proc.wanted && proc.phase == Phase::Running);
        can_be_told(rank, proc, &CHECKPOINT_DIRECTIVES, view)
    };
    let ranks = || view.world.members().keys().copied();
    let kept: BTreeSet<Rank> = ranks().filter(|rank| refusal(*rank).is_ok()).collect();
    let sharded = reported_sharded(&kept, view);
    for set in proven_sets(view, sharded.is_some()) {
        if set.is_disjoint(&kept) {
            let why = set.iter().find_map(|rank| refusal(*rank).err()).unwrap_or_default();
            let alone = set.first().filter(|_| set.len() == 1 && view.world.size() > 1);
            return Err(match (sharded, alone) {
                (Some(what), _) => is_alone(what, &why),
                (None, Some(rank)) => format!("{why}, and {}", view.replicas.why_alone(*rank)),
                (None, None) => format!("no replica is left that can save a checkpoint: {why}"),
            });
        }
    }
    Ok(kept)
}

/// Returns true if the job continues with its current processes after this checkpoint.
fn goes_on(run: &PlanExecution) -> bool {
    run.proposal.stages.iter().any(|stage| stage.name == JOIN)
}

/// Returns the quorum of the save stages. If the job continues, a failed save is reported once it trains again;
/// otherwise the next strategy is tried at once.
fn need(run: &PlanExecution) -> Quorum {
    if goes_on(run) { Quorum::AtLeast(0) } else { Quorum::All }
}

fn before_rest(stage: Stage, run: &PlanExecution) -> Advance {
    let rest = run.proposal.stages.iter().skip(run.stage).cloned();
    Advance::ReplaceRest([stage].into_iter().chain(rest).collect())
}

/// Computes which rank writes which shard, from the states reported at the abort.
fn shares(run: &PlanExecution, view: &View) -> Result<Shares, String> {
    let states = states_of(&run.done);
    checkpoint_shards::plan(&states, sets(&states, view))
}

/// Returns the sets of ranks that are proven to hold the same state.
fn sets(states: &BTreeMap<Rank, WorkerState>, view: &View) -> Vec<BTreeSet<Rank>> {
    proven_sets(view, states.values().any(|state| !state.sharded.is_empty()))
}

/// Returns the name of a checkpoint's directory.
fn name_of(step: u64, generation: Generation, at_ms: u64) -> String {
    format!("step-{step:012}-world-{}-{at_ms}", generation.0)
}

fn save_stage(shares: &Shares, view: &View) -> Result<Stage, String> {
    let Shares { step, writers, .. } = shares;
    let root = view.spec.policy.checkpoint_dir.as_ref().ok_or("the job names no directory for checkpoints any more")?;
    let dir = root.join(name_of(*step, view.world.generation(), view.now.as_nanos() / 1_000_000));
    let without: Vec<Rank> = view.world.members().keys().copied().filter(|rank| !writers.contains_key(rank)).collect();
    let order = |(rank, share): (&Rank, &checkpoint_shards::Share)| {
        let (dir, step, without) = (dir.clone(), *step, without.clone());
        Some((view.world.proc(*rank)?, Directive::WriteShard { dir, step, part: share.part, of: share.of, without }))
    };
    let orders = writers.iter().filter_map(order).collect();
    Ok(direct(WRITE_SHARD, SHARD_TIMEOUT, &view.world, orders))
}

fn seal_stage(run: &PlanExecution, view: &View) -> Result<Stage, String> {
    let Written { dir, step, parts } = written(run)?;
    let sets = sets(&states_of(&run.done), view);
    let digests = done_in(run, WRITE_SHARD).flat_map(|done| &done.results).filter_map(|(target, result)| {
        match (target, result) {
            (Domain::Process(Role::Rank(rank)), Ok(TargetReply::Directive(answered))) => {
                Some((*rank, answered.digest.as_ref()?.digest.as_str()))
            }
            _ => None,
        }
    });
    if let Some((one, other)) = that_differ(&sets, &digests.collect()) {
        return Err(format!(
            "{one} and {other} hold different parameters and optimizer state: their shards do not form one checkpoint"
        ));
    }
    let size = u32::try_from(view.world.places().count()).unwrap_or(u32::MAX);
    let manifest = CheckpointManifest { step, generation: view.world.generation(), size, sets, shards: parts.clone() };
    let first = parts.keys().next().and_then(|rank| view.world.proc(*rank)).ok_or("no rank has written a shard")?;
    let seal = Directive::WriteManifest { dir, manifest: Box::new(manifest) };
    Ok(direct(WRITE_MANIFEST, MANIFEST_TIMEOUT, &view.world, vec![(first, seal)]))
}

fn direct(name: Name, within: Duration, world: &Arc<World>, directives: Vec<(ProcId, Directive)>) -> Stage {
    Stage::new(name, within, vec![Action::SendDirectives(DirectiveBatch { world: Arc::clone(world), directives })])
}

/// The shards that were written.
struct Written {
    dir: PathBuf,
    step: u64,
    parts: BTreeMap<Rank, CheckpointShard>,
}

/// Returns the shards of the run's last `write-shard` stage.
///
/// # Errors
/// A shard was not written.
fn written(run: &PlanExecution) -> Result<Written, String> {
    let mut found: Option<Written> = None;
    for done in done_in(run, WRITE_SHARD) {
        let Action::SendDirectives(batch) = &done.action else { continue };
        for (proc, directive) in &batch.directives {
            let (Directive::WriteShard { dir, step, .. }, Some(rank)) = (directive, proc.role.rank()) else { continue };
            let part = answer_of(done, rank)?;
            let part = part.ok_or_else(|| format!("{rank} has not reported its shard"))?;
            let known = found.get_or_insert_with(|| Written { dir: dir.clone(), step: *step, parts: BTreeMap::new() });
            known.parts.insert(rank, part);
        }
    }
    found.ok_or_else(|| "no rank was asked to write a shard".into())
}

fn answer_of(done: &CommandOutcome, rank: Rank) -> Result<Option<CheckpointShard>, String> {
    match done.results.get(&Domain::Process(Role::Rank(rank))) {
        Some(Ok(TargetReply::Directive(answered))) => Ok(answered.shard.clone()),
        Some(Ok(_)) => Ok(None),
        Some(Err(why)) => Err(format!("{rank}: {why}")),
        None => Err(format!("{rank}: {}", Failure::TimedOut)),
    }
}

fn done_in(run: &PlanExecution, name: Name) -> impl Iterator<Item = &CommandOutcome> {
    let stages = run.proposal.stages.iter().zip(&run.done);
    stages.filter(move |(stage, _)| current_name(&stage.name) == name).flat_map(|(_, done)| done)
}

/// Returns the reason why no checkpoint was saved, after a run with which the job continues. `None` if one was saved.
fn what_failed(run: &PlanExecution, view: &View) -> Option<String> {
    let sealed = done_in(run, WRITE_MANIFEST).flat_map(|done| done.results.values()).next();
    let why = match sealed {
        Some(Ok(_)) => return None,
        Some(Err(why)) => why.to_string(),
        None if done_in(run, WRITE_SHARD).next().is_none() => shares(run, view).err().unwrap_or_default(),
        None => written(run).err().unwrap_or_default(),
    };
    Some(format!("no checkpoint was saved, and the job continues: {why}"))
}

#[cfg(test)]
mod tests;
