//! A recovery that keeps processes is on trial until the job has trained on for a while: what fails of itself in that time is
//! charged to the recovery's strategy, and not to the program or to a rank.
//!
//! It chooses nothing: the `arbiter` passes over a strategy that was charged as often as it may fail.
//!
//! A restart of all ranks is never on trial: it copies nothing from process to process, and what fails after it is the program's
//! or the machine's.

use super::incidents::Open;
use super::plans::PlanId;
use super::{Branch, Kernel, State, View};
use crate::detect::{CHARGED, Clue, Fault, FaultClass, OPERATOR, Sound};
use crate::job::{Domain, IncidentId, JobTime, Name, ProcId, Role, Termination, World};
use crate::recover::{Action, Run};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A recovery has to hold for so many steps after it was closed, where steps are seen, and for [`TRIAL_WITHIN`]. A state that was
/// copied wrongly, or a group that does not fit, shows in the first passes.
pub const TRIAL_STEPS: u64 = 10;

/// A recovery has to hold for so long after it was closed, and for [`TRIAL_STEPS`] where steps are seen. Steps of a millisecond
/// would be over before a process that fails has ended.
pub const TRIAL_WITHIN: Duration = Duration::from_secs(60);

/// Signals that a process raises by its own doing: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV (Linux numbers, equal on x86-64 and
/// aarch64). Others come from outside of it.
const CRASHES: [i32; 6] = [4, 5, 6, 7, 8, 11];

/// What a fault says about the recovery before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Something fails of itself: an exception, a crash, a step, a job that stands still.
    Error,
    /// A process ended because of another.
    Consequence,
    /// It came from outside: a kill, a host, an operator.
    Outside,
}

/// The recovery that is on trial.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Trial {
    pub(super) strategy: Name,
    incident: IncidentId,
    /// Errors for which the recovery was begun: of which rank, and the error's family and code.
    errors: Vec<(Role, Name, Name)>,
    /// What was charged or has failed so far in the incidents that led here.
    attempts: Vec<(Name, String)>,
    /// When its world was put in force.
    #[serde(default)]
    entered: JobTime,
    /// The processes that it starts.
    #[serde(default)]
    starts: Vec<ProcId>,
    /// Ranks wait for what it directs them to do next.
    #[serde(default)]
    directs: bool,
    /// It was charged before it was closed. Faults up to the next decision belong to the same failure, and are not counted again.
    #[serde(default)]
    is_charged: bool,
    /// When its incident was closed; `None`: it is under way.
    closed: Option<JobTime>,
    /// The furthest step of any rank then; `None`: no steps are seen.
    from: Option<u64>,
    /// Enough steps were completed since.
    stepped: bool,
}

impl Trial {
    fn is_over(&self, now: JobTime) -> bool {
        let has_stepped = self.stepped || self.from.is_none();
        self.closed.is_some_and(|at| has_stepped && now >= at + TRIAL_WITHIN)
    }

    /// Whether it recovers this incident, which is still open. Its plan may have been cancelled: that undoes nothing of what it began.
    pub(super) fn is_under_way(&self, id: IncidentId) -> bool {
        self.incident == id && self.closed.is_none()
    }

    /// The same, and ranks wait for its next directive, which no other plan gives them.
    pub(super) fn leaves_ranks_waiting(&self, id: IncidentId) -> bool {
        self.is_under_way(id) && self.directs
    }

    /// Whether a rank that lives has failed in a step of this recovery's world, and all that is known of it are failures before.
    pub(super) fn is_new(&self, fault: &Fault, known: &[&Fault]) -> bool {
        let is_of_a_step = matches!(&fault.prime().class, FaultClass::Network)
            || matches!(&fault.prime().class, FaultClass::Other(name) if *name == "step");
        is_of_a_step
            && fault.prime().damage.process == Sound::Yes
            && known.iter().all(|known| known.onset < self.entered)
    }

    /// Whether the error is the one for which the recovery was begun: then it is still that rank's, and the recovery has only not
    /// mended it.
    fn was_for(&self, fault: &Fault) -> bool {
        let (Domain::Process(role), Some(error)) = (&fault.prime().domain, &fault.error) else { return false };
        self.errors.iter().any(|(of, family, code)| of == role && *family == error.family && *code == error.code)
    }
}

impl Kernel {
    /// A plan is about to put a world in force.
    pub(super) fn world_entered(&mut self, plan: Option<PlanId>, world: &World) {
        let State { view, plans, incidents, trial, .. } = &mut self.state;
        let keeps = world.members().iter().any(|(rank, member)| {
            let known = view.proc(&Role::Rank(*rank));
            known.is_some_and(|p| p.incarnation == member.incarnation && p.wanted && !p.phase.is_over())
        });
        let before = trial.take();
        let recovery = plan.and_then(|id| Some((id.incident()?, plans.get(&id)?))).filter(|_| keeps);
        let Some((incident, plan)) = recovery else { return };
        let Some(open) = incidents.get(&incident) else { return };
        let carried = before.map(|trial| trial.attempts).filter(|before| before.len() > open.incident.attempts.len());
        let errors = open.incident.faults.iter().filter_map(|fault| {
            let (Domain::Process(role), Some(error)) = (&fault.prime().domain, &fault.error) else { return None };
            fault.prime().is_cause().then(|| (role.clone(), error.family.clone(), error.code.clone()))
        });
        *trial = Some(Trial {
            strategy: plan.run.strategy.clone(),
            incident,
            errors: errors.collect(),
            attempts: carried.unwrap_or_else(|| open.incident.attempts.clone()),
            entered: view.now,
            starts: starts(&plan.run),
            directs: plan
                .run
                .proposal
                .stages
                .iter()
                .flat_map(|stage| &stage.actions)
                .any(|a| matches!(a, Action::Direct(_))),
            is_charged: false,
            closed: None,
            from: None,
            stepped: false,
        });
    }

    /// Time has passed: a recovery that has held is on trial no more.
    pub(super) fn pass_trial(&mut self) {
        let State { view, trial, .. } = &mut self.state;
        if trial.as_ref().is_some_and(|trial| trial.is_over(view.now)) {
            *trial = None;
        }
        if view.on_trial.as_ref() != trial.as_ref().map(|trial| &trial.strategy) {
            view.on_trial = trial.as_ref().map(|trial| trial.strategy.clone());
        }
    }

    /// A rank has completed a step.
    pub(super) fn stepped(&mut self, step: u64) {
        if let Some(trial) = &mut self.state.trial
            && trial.closed.is_some()
        {
            trial.stepped |= trial.from.is_some_and(|from| step >= from.saturating_add(TRIAL_STEPS));
        }
    }

    /// An incident is over: from here on its recovery has to hold.
    pub(super) fn trial_closed(&mut self, id: IncidentId) {
        let State { view, trial, .. } = &mut self.state;
        if let Some(trial) = trial.as_mut().filter(|trial| trial.incident == id && trial.closed.is_none()) {
            trial.closed = Some(view.now);
            trial.from = view.training().filter_map(|(_, proc)| proc.step).max();
        }
    }

    /// An incident has become part of another.
    pub(super) fn trial_merged(&mut self, into: IncidentId, from: IncidentId) {
        if let Some(trial) = self.state.trial.as_mut().filter(|trial| trial.incident == from) {
            trial.incident = into;
        }
    }

    /// A fault strikes in the middle of an incident's recovery. What fails of itself is charged to it; so is what a process that it
    /// has started says of its peers. The fault as it is to be taken. Where such a process is killed from outside the recovery has
    /// failed as well, and the kill stays a cause: it may be that what kills it (for memory that a restart would not need) comes again.
    pub(super) fn charge_running(&mut self, id: IncidentId, fault: Fault) -> Fault {
        let State { view, plans, incidents, trial, counts, .. } = &mut self.state;
        let Some(trial) = trial.as_mut().filter(|trial| trial.is_under_way(id)) else { return fault };
        let is_running = plans.contains_key(&PlanId::Recovery(id));
        let kind = kind(&fault, view);
        let is_newcomer = || fault_proc(&fault).is_some_and(|proc| trial.starts.contains(&proc));
        let has_made_it_fail = match kind {
            Kind::Error => fault.prime().is_cause() || is_newcomer(),
            Kind::Consequence => is_newcomer(),
            Kind::Outside => {
                let is_end = matches!(fault.prime().class, FaultClass::Exit | FaultClass::Launch);
                fault.by != OPERATOR && is_end && is_newcomer()
            }
        };
        let Some(open) = incidents.get_mut(&id).filter(|_| has_made_it_fail) else { return fault };
        // The first of several cancels the plan.
        if is_running || !trial.is_charged {
            counts.branch(Branch::Charged);
            open.charge(&trial.strategy, words(&fault));
            trial.is_charged = true;
        }
        if kind == Kind::Outside || trial.was_for(&fault) {
            return fault;
        }
        let text = format!("charged to {}, in the middle of which it failed", trial.strategy);
        fault.charged(Clue::text(CHARGED, text))
    }

    /// An incident is about to be decided: where nothing came from outside, and a recovery is on trial, that one has not held.
    pub(super) fn charge_closed(&mut self, id: IncidentId) {
        let State { view, incidents, trial, counts, ledger, .. } = &mut self.state;
        let Some(trial) = trial.as_ref().filter(|trial| trial.incident != id) else { return };
        let Some(open) = incidents.get_mut(&id) else { return };
        let Some(closed) = trial.closed.filter(|closed| !open.tried && open.incident.opened >= *closed) else { return };
        let faults = &mut open.incident.faults;
        let is_outside = |fault: &Fault| fault.prime().is_cause() && kind(fault, view) == Kind::Outside;
        let first = faults.iter().find(|fault| kind(fault, view) == Kind::Error && fault.prime().is_cause());
        let first = first.or_else(|| faults.iter().find(|fault| kind(fault, view) == Kind::Consequence));
        let Some(first) = first.filter(|_| !faults.iter().any(is_outside)) else { return };
        let why = format!("{} ({} after it had recovered {})", words(first), after(view.now, closed), trial.incident);
        let text = format!(
            "charged to {}, which recovered {} at {closed}: what fails so soon after it is its doing",
            trial.strategy, trial.incident
        );
        for fault in faults.iter_mut().filter(|fault| !trial.was_for(fault)) {
            *fault = fault.clone().charged(Clue::text(CHARGED, text.clone()));
        }
        open.tried = true;
        let own = std::mem::take(&mut open.incident.attempts);
        for (strategy, why) in trial.attempts.clone() {
            open.charge(&strategy, why); // none of these has failed in this incident
        }
        open.incident.attempts.extend(own);
        open.charge(&trial.strategy, why);
        counts.branch(Branch::Charged);
        ledger.judged(&open.incident, view);
    }
}

impl Open {
    pub(super) fn charge(&mut self, strategy: &Name, why: String) {
        self.incident.attempts.push((strategy.clone(), why));
        *self.charged.entry(strategy.clone()).or_default() += 1;
    }

    /// Whether a recovery of it has failed by itself, and not only been charged with what failed beside or after it.
    pub(super) fn has_failed(&self) -> bool {
        self.incident.attempts.len() > self.charged.values().map(|times| *times as usize).sum()
    }
}

fn kind(fault: &Fault, view: &View) -> Kind {
    let suspect = fault.prime();
    if fault.by == OPERATOR {
        return Kind::Outside;
    }
    match (&suspect.domain, &suspect.class) {
        (Domain::Process(Role::Rank(_)), FaultClass::Exit) => kind_of_end(fault, view),
        (Domain::Process(Role::Rank(_)), FaultClass::Stall) | (Domain::Job, FaultClass::Stall) => Kind::Error,
        (Domain::Process(Role::Rank(_)), FaultClass::Other(name)) if *name == "step" => Kind::Error,
        // Of a collective: the process lives.
        (Domain::Process(Role::Rank(_)), class) if suspect.damage.process == Sound::Yes => match class {
            FaultClass::Program => Kind::Error, // it was called wrongly, or left out
            FaultClass::Network => Kind::Consequence,
            _ => Kind::Outside,
        },
        _ => Kind::Outside,
    }
}

fn kind_of_end(fault: &Fault, view: &View) -> Kind {
    if fault.error.as_ref().is_some_and(|error| error.retry_free || error.is_interrupt()) {
        return Kind::Outside;
    }
    let own_error = fault.error.as_ref().is_some_and(|error| !error.follow_up);
    let proc = view.proc_of(&fault.prime().domain).filter(|proc| fault.incarnation() == Some(proc.incarnation));
    let how = proc.and_then(|proc| proc.phase.termination());
    match how {
        Some(Termination::Code(0)) => Kind::Consequence,
        Some(Termination::Code(129..160)) if !own_error => Kind::Outside, // a shell's word for a signal
        Some(Termination::Signal { number, .. }) if !own_error && !CRASHES.contains(&number) => Kind::Outside,
        Some(Termination::Unknown) => Kind::Outside,
        None if !own_error => Kind::Outside,
        _ if own_error || fault.error.is_none() => Kind::Error,
        _ => Kind::Consequence,
    }
}

fn fault_proc(fault: &Fault) -> Option<ProcId> {
    let Domain::Process(role) = &fault.prime().domain else { return None };
    Some(ProcId { role: role.clone(), incarnation: fault.incarnation()? })
}

/// The processes that a run starts, or has started.
fn starts(run: &Run) -> Vec<ProcId> {
    let done = run.done.iter().flatten().map(|done| &done.action);
    let all = done.chain(run.proposal.stages.iter().flat_map(|stage| &stage.actions));
    let batches = all.filter_map(|action| match action {
        Action::Start { batch, .. } => Some(batch),
        _ => None,
    });
    batches.flat_map(|batch| &batch.orders).map(|order| order.proc.clone()).collect()
}

/// What a fault is, in one line: how a process ended, and of which error.
fn words(fault: &Fault) -> String {
    let says = |clue: &&Clue| clue.what != "last_step" && clue.what != "stderr" && !clue.text.is_empty();
    let clues: Vec<&str> = fault.clues.iter().filter(says).map(|clue| clue.text.as_str()).take(2).collect();
    match clues.is_empty() {
        true => format!("{} in {}", fault.prime().class, fault.prime().domain),
        false => clues.join(", "),
    }
}

fn after(now: JobTime, closed: JobTime) -> String {
    format!("{:.1} s", now.since(closed).as_secs_f64())
}
