//! Survivors save the newest step that is whole, before everybody starts again from it, or before the job ends; or because an
//! operator asks for a checkpoint.

use super::replicas::{is_alone, proven_sets, that_differ, told_sharded};
use super::shares::{self, Shares};
use super::{
    GIVE_UP, JOIN, Limits, NEEDED, REPAIR, RESUME, can_be_told, compare_replicas, give_up, join, may_still_run,
    repair_and_resume, states_of,
};
use crate::detect::Sound;
use crate::job::{Counted, Domain, Generation, Name, ProcId, Rank, Role, World};
use crate::kernel::View;
use crate::launch::{DirectBatch, Directive, DumpManifest, DumpPart, Phase, WorkerState};
use crate::recover::exit::account;
use crate::recover::restart::start_anew;
use crate::recover::{
    Action, Beforehand, Cost, DUMP, Done, Failure, Incident, Need, Next, Output, Proposal, RecoveryStrategy, Restart,
    Run, Stage, possible, stages,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What a process must understand to save a part.
const SAVES: [Name; 3] = [Name::new("give-up"), Name::new("dump"), Name::new("seal")];

const SAVE: Name = Name::new("dump");
const SEAL: Name = Name::new("seal");

/// How long the parts may take to be written: a few hundred gigabytes, to a disk of the usual kind.
const SAVE_WITHIN: Duration = Duration::from_secs(600);
const SEAL_WITHIN: Duration = Duration::from_secs(60);
/// What saving is expected to add to the time without training.
const SAVE_TAKES: Duration = Duration::from_secs(30);
/// An operator's checkpoint, which nobody is started for.
const REQUEST_TAKES: Duration = Duration::from_secs(30);

/// Saves a dying checkpoint of what the survivors hold, so that the job loses the step in flight and not all since its program
/// saved last.
///
/// - Stages: `give-up` (survivors come to the end of their step; what is lost is stopped for certain), `dump` (all who have the newest
///   step that is there of every rank write a part), `seal` (one of them writes the manifest, last: parts without one are no
///   checkpoint), and then as [`Restart`] or [`ExitStrategy`](crate::recover::ExitStrategy) do.
/// - When an [operator asks for it](crate::kernel::Order::Dump) and no rank is lost, the job goes on by `join`, `repair`, `resume`, also
///   when nothing could be saved; then the order is not granted.
/// - A survivor that does not answer `give-up` in time is left out.
/// - It refuses when the job names no directory ([`Policy::dump_dir`](crate::job::Policy::dump_dir)), when of some rank no replica is left
///   that can save, and when what follows could not be: no place for the ranks, a program that is broken.
/// - It gives up between stages when no step's state is there of all ranks, or a part could not be written.
#[derive(Clone, Copy, Debug)]
pub struct Dump {
    then: Then,
    restart: Restart,
    limits: Limits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Restart,
    Exit,
}

impl Dump {
    /// `dump`: everybody starts again, from that checkpoint.
    #[must_use]
    pub const fn and_restart() -> Dump {
        Dump { then: Then::Restart, restart: Restart::new(), limits: Limits::USUAL }
    }

    /// `dump-exit`: the job ends, and leaves a checkpoint.
    #[must_use]
    pub const fn and_exit() -> Dump {
        Dump { then: Then::Exit, ..Dump::and_restart() }
    }

    /// The survivors save, and everybody is stopped.
    fn before_the_end(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        let lost = incident.lost(view);
        let kept = savers(incident, view, &lost)?;
        let counted = if self.then == Then::Exit || incident.is_ordered() { Counted::No } else { Counted::Yes };
        let world = Arc::new(view.world.successor(counted, |_| ()));
        let stop = may_still_run(view, &lost);
        let within = self.limits.give_up;
        let first = Stage { need: Need::AtLeast(1), ..give_up(&world, &kept, stop, within) };
        let saved = format!("{} ranks save the step that they have", kept.len());
        let mut proposal = match self.then {
            Then::Exit => {
                let cost = Cost { ends_job: true, ..Cost::downtime(Duration::ZERO) };
                let reason = account(incident, view);
                let stages = stages::end_all(view, view.spec.policy.stop_grace, false, reason);
                Proposal { stages, touches: vec![Domain::Job], cost, counted, reason: saved }
            }
            Then::Restart => {
                let later = View { world, ..view.clone() };
                let rest = self.restart.propose_counted(incident, &later, Counted::No)?; // the first world has counted
                let downtime = rest.cost.downtime + SAVE_TAKES;
                let cost = Cost { lost_work: Duration::ZERO, downtime, ..rest.cost };
                let reason = format!("{saved}, and all start again from it");
                Proposal { cost, counted, reason, ..rest }
            }
        };
        proposal.stages.insert(0, first);
        Ok(proposal)
    }

    /// Everybody saves, and goes on.
    fn on_request(&self, view: &View) -> Result<Proposal, String> {
        let kept: BTreeSet<Rank> = view.world.members().keys().copied().collect();
        for rank in &kept {
            let proc = view.proc(&Role::Rank(*rank)).filter(|proc| proc.wanted && proc.phase == Phase::Running);
            can_be_told(*rank, proc, &NEEDED, view)?;
            can_be_told(*rank, proc, &SAVES, view)?;
        }
        if let Some(service) = view.missing_services().next() {
            return Err(format!("service {service} is missing, and ranks could not meet again"));
        }
        let world = Arc::new(view.world.successor(Counted::No, |_| ()));
        let first = give_up(&world, &kept, Vec::new(), self.limits.give_up);
        Ok(Proposal {
            stages: vec![first, join(view, &world, self.limits.join)],
            touches: vec![Domain::Job],
            cost: Cost::downtime(REQUEST_TAKES),
            counted: Counted::No,
            reason: format!("all {} ranks save the step that they have, and go on", kept.len()),
        })
    }

    /// Those who gave up have said where they stand: who has the state to save writes.
    fn save(run: &Run, view: &View) -> Next {
        let saved = match shares(run, view) {
            Ok(shares) => save_stage(&shares, view),
            Err(why) => Err(why),
        };
        match saved {
            Ok(stage) => before_rest(Stage { need: need(run), ..stage }, run),
            Err(_) if goes_on(run) => Next::AsProposed, // told at the end
            Err(why) => Next::GiveUp(why),
        }
    }

    /// All parts are there: one of those who wrote makes a whole of them.
    fn seal(run: &Run, view: &View) -> Next {
        match seal_stage(run, view) {
            Ok(stage) => before_rest(Stage { need: need(run), ..stage }, run),
            Err(_) if goes_on(run) => Next::AsProposed,
            Err(why) => Next::GiveUp(why),
        }
    }
}

impl RecoveryStrategy for Dump {
    fn name(&self) -> Name {
        match self.then {
            Then::Restart => DUMP,
            Then::Exit => Name::new("dump-exit"),
        }
    }

    fn config(&self) -> String {
        format!("{} {}", self.limits.text(), self.restart.config())
    }

    fn cannot(&self, job: &Beforehand) -> Option<String> {
        let names_none = job.spec.policy.dump_dir.is_none();
        names_none.then(|| "the job names no directory for checkpoints (policy.dump_dir)".into())
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        possible(self, view)?;
        let asked = incident.is_ordered() && incident.faults.iter().any(|fault| fault.advice.as_ref() == Some(&DUMP));
        if !asked || view.training().count() < view.world.members().len() || !incident.lost(view).is_empty() {
            return self.before_the_end(incident, view);
        }
        match incident.attempts.iter().rfind(|(strategy, _)| *strategy == self.name()) {
            Some((_, why)) => Err(why.clone()),
            None => self.on_request(view),
        }
    }

    fn advance(&self, run: &Run, view: &View) -> Next {
        match run.ended_stage().map(|stage| &stage.name) {
            Some(name) if *name == GIVE_UP => Dump::save(run, view),
            Some(name) if *name == SAVE => Dump::seal(run, view),
            Some(name) if *name == JOIN => repair_and_resume(run, view, &self.limits),
            Some(name) if *name == RESUME => match what_failed(run, view) {
                Some(why) => Next::Undone(why),
                None => Next::AsProposed,
            },
            Some(name) if *name == REPAIR => compare_replicas(run, view),
            _ if self.then == Then::Restart => start_anew(run, view, Counted::No),
            _ => Next::AsProposed,
        }
    }
}

/// The ranks that live and can save, if some rank of each set of replicas does.
fn savers(incident: &Incident, view: &View, lost: &BTreeSet<Rank>) -> Result<BTreeSet<Rank>, String> {
    let spoiled = |rank: Rank| {
        let suspects = incident.faults.iter().map(|fault| fault.prime());
        let about = Domain::Process(Role::Rank(rank));
        let mut damages = suspects.filter(|s| s.is_cause() && view.contains(&s.domain, &about)).map(|s| s.damage);
        damages.any(|damage| damage.state == Sound::No)
    };
    let refusal = |rank: Rank| {
        if lost.contains(&rank) {
            return Err(format!("{rank} is lost"));
        }
        if spoiled(rank) {
            return Err(format!("what {rank} holds is said to be damaged"));
        }
        let proc = view.proc(&Role::Rank(rank)).filter(|proc| proc.wanted && proc.phase == Phase::Running);
        can_be_told(rank, proc, &SAVES, view)
    };
    let ranks = || view.world.members().keys().copied();
    let kept: BTreeSet<Rank> = ranks().filter(|rank| refusal(*rank).is_ok()).collect();
    let sharded = told_sharded(&kept, view);
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

/// Whether the job goes on after this run's checkpoint with the processes that it has.
fn goes_on(run: &Run) -> bool {
    run.proposal.stages.iter().any(|stage| stage.name == JOIN)
}

/// What is not saved is told when the job trains again; where it does not, the next rung is tried at once.
fn need(run: &Run) -> Need {
    if goes_on(run) { Need::AtLeast(0) } else { Need::All }
}

fn before_rest(stage: Stage, run: &Run) -> Next {
    let rest = run.proposal.stages.iter().skip(run.stage).cloned();
    Next::Instead([stage].into_iter().chain(rest).collect())
}

/// Who writes what, by what those who gave up have said.
fn shares(run: &Run, view: &View) -> Result<Shares, String> {
    let states = states_of(&run.done);
    shares::plan(&states, sets(&states, view))
}

/// Ranks that hold the same state, as far as that is proven.
fn sets(states: &BTreeMap<Rank, WorkerState>, view: &View) -> Vec<BTreeSet<Rank>> {
    proven_sets(view, states.values().any(|state| !state.sharded.is_empty()))
}

/// The name of a checkpoint's directory.
fn name_of(step: u64, generation: Generation, at_ms: u64) -> String {
    format!("step-{step:012}-world-{}-{at_ms}", generation.0)
}

fn save_stage(shares: &Shares, view: &View) -> Result<Stage, String> {
    let Shares { step, writers, .. } = shares;
    let root = view.spec.policy.dump_dir.as_ref().ok_or("the job names no directory for checkpoints any more")?;
    let dir = root.join(name_of(*step, view.world.generation(), view.now.as_nanos() / 1_000_000));
    let without: Vec<Rank> = view.world.members().keys().copied().filter(|rank| !writers.contains_key(rank)).collect();
    let order = |(rank, share): (&Rank, &shares::Share)| {
        let (dir, step, without) = (dir.clone(), *step, without.clone());
        Some((view.world.proc(*rank)?, Directive::Dump { dir, step, part: share.part, of: share.of, without }))
    };
    let orders = writers.iter().filter_map(order).collect();
    Ok(direct(SAVE, SAVE_WITHIN, &view.world, orders))
}

fn seal_stage(run: &Run, view: &View) -> Result<Stage, String> {
    let Written { dir, step, parts } = written(run)?;
    let sets = sets(&states_of(&run.done), view);
    let digests =
        done_in(run, SAVE).flat_map(|done| &done.results).filter_map(|(target, result)| match (target, result) {
            (Domain::Process(Role::Rank(rank)), Ok(Output::Answered(answered))) => {
                Some((*rank, answered.digest.as_ref()?.digest.as_str()))
            }
            _ => None,
        });
    if let Some((one, other)) = that_differ(&sets, &digests.collect()) {
        return Err(format!(
            "{one} and {other} hold different parameters and optimizer state: their parts are of no one checkpoint"
        ));
    }
    let size = u32::try_from(view.world.places().count()).unwrap_or(u32::MAX);
    let manifest = DumpManifest { step, generation: view.world.generation(), size, sets, parts: parts.clone() };
    let first = parts.keys().next().and_then(|rank| view.world.proc(*rank)).ok_or("nobody has written a part")?;
    let seal = Directive::Seal { dir, manifest: Box::new(manifest) };
    Ok(direct(SEAL, SEAL_WITHIN, &view.world, vec![(first, seal)]))
}

fn direct(name: Name, within: Duration, world: &Arc<World>, orders: Vec<(ProcId, Directive)>) -> Stage {
    Stage::new(name, within, vec![Action::Direct(DirectBatch { world: Arc::clone(world), orders })])
}

/// The parts that were written.
struct Written {
    dir: PathBuf,
    step: u64,
    parts: BTreeMap<Rank, DumpPart>,
}

/// What the last `dump` of the run has come to, if every part of it was written.
fn written(run: &Run) -> Result<Written, String> {
    let mut found: Option<Written> = None;
    for done in done_in(run, SAVE) {
        let Action::Direct(batch) = &done.action else { continue };
        for (proc, directive) in &batch.orders {
            let (Directive::Dump { dir, step, .. }, Some(rank)) = (directive, proc.role.rank()) else { continue };
            let part = answer_of(done, rank)?;
            let part = part.ok_or_else(|| format!("{rank} does not say what it has written"))?;
            let known = found.get_or_insert_with(|| Written { dir: dir.clone(), step: *step, parts: BTreeMap::new() });
            known.parts.insert(rank, part);
        }
    }
    found.ok_or_else(|| "nobody was told to save".into())
}

fn answer_of(done: &Done, rank: Rank) -> Result<Option<DumpPart>, String> {
    match done.results.get(&Domain::Process(Role::Rank(rank))) {
        Some(Ok(Output::Answered(answered))) => Ok(answered.part.clone()),
        Some(Ok(_)) => Ok(None),
        Some(Err(why)) => Err(format!("{rank}: {why}")),
        None => Err(format!("{rank}: {}", Failure::TimedOut)),
    }
}

fn done_in(run: &Run, name: Name) -> impl Iterator<Item = &Done> {
    let stages = run.proposal.stages.iter().zip(&run.done);
    stages.filter(move |(stage, _)| stage.name == name).flat_map(|(_, done)| done)
}

/// Why there is no checkpoint, after a run with which the job goes on.
fn what_failed(run: &Run, view: &View) -> Option<String> {
    let sealed = done_in(run, SEAL).flat_map(|done| done.results.values()).next();
    let why = match sealed {
        Some(Ok(_)) => return None,
        Some(Err(why)) => why.to_string(),
        None if done_in(run, SAVE).next().is_none() => shares(run, view).err().unwrap_or_default(),
        None => written(run).err().unwrap_or_default(),
    };
    Some(format!("no checkpoint was saved, and the job goes on: {why}"))
}

#[cfg(test)]
mod tests;
