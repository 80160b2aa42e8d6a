//! Puts recoveries that keep processes on trial until the job has trained for a while.
//!
//! A failure in that time is charged to the recovery's strategy, not to the program or to a rank. This module chooses
//! nothing: the `arbiter` passes over a strategy that was charged as often as it may fail.
//!
//! A restart of all ranks is never on trial: it copies nothing between processes, and a failure after it is that of the
//! program or of the machine.

use super::incidents::Open;
use super::ledger::Ledger;
use super::plans::{Plan, PlanId};
use super::{Branch, Counts};
use crate::detect::{CHARGED, Evidence, Fault, FaultClass, Health, OPERATOR};
use crate::job::{Domain, IncidentId, JobTime, Name, ProcId, Role, Termination, World};
use crate::recover::{Action, PlanExecution};
use crate::state::View;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Number of steps that the job has to train without a new failure after a recovery that kept processes, so that
/// the recovery counts as successful. They are counted from the end of the recovery's incident, if steps are
/// reported.
///
/// The job has to train for [`TRIAL_WITHIN`] as well. State that was copied wrongly, or a process group that does
/// not fit, causes a failure in the first steps.
pub const TRIAL_STEPS: u64 = 10;

/// Time for which the job has to train without a new failure after a recovery that kept processes, so that the
/// recovery counts as successful. It begins at the end of the recovery's incident.
///
/// If steps are reported, the job has to train for [`TRIAL_STEPS`] as well. A number of steps alone is not enough:
/// steps of a millisecond would be over before a failing process has ended.
pub const TRIAL_WITHIN: Duration = Duration::from_secs(60);

/// Signals that a process raises by its own fault: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV.
///
/// Linux numbers, equal on x86-64 and aarch64. Other signals come from outside of the process.
const CRASHES: [i32; 6] = [4, 5, 6, 7, 8, 11];

/// What a fault indicates about the recovery before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A process or the job failed by itself: an exception, a crash, a failed step, a job that stands still.
    Error,
    /// A process ended because of another one.
    Consequence,
    /// The cause came from outside: a kill, a host, an operator.
    Outside,
}

/// The recovery that is on trial.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Trial {
    pub(super) strategy: Name,
    incident: IncidentId,
    /// Errors for which the recovery was begun: role, and family and code of the error.
    errors: Vec<(Role, Name, Name)>,
    /// Attempts charged or failed so far in the incidents that led to this recovery.
    attempts: Vec<(Name, String)>,
    /// Time at which the recovery's world became the current one.
    #[serde(default)]
    entered: JobTime,
    /// The processes that the recovery starts.
    #[serde(default)]
    starts: Vec<ProcId>,
    /// True if ranks wait for the next directive of the recovery.
    #[serde(default)]
    directs: bool,
    /// True if a failure was charged to the recovery before its incident was closed. Faults up to the next decision
    /// belong to the same failure and are not counted again.
    #[serde(default)]
    is_charged: bool,
    /// Time at which the recovery's incident was closed. `None`: the recovery is in progress.
    closed: Option<JobTime>,
    /// Highest step of any rank at the time in `closed`. `None`: no steps are reported.
    from: Option<u64>,
    /// True if ranks have completed enough steps since the time in `closed`.
    stepped: bool,
}

impl Trial {
    fn is_over(&self, now: JobTime) -> bool {
        let has_stepped = self.stepped || self.from.is_none();
        self.closed.is_some_and(|at| has_stepped && now >= at + TRIAL_WITHIN)
    }

    /// Returns true if it is the recovery of this incident, which is still open. Its plan may have been cancelled,
    /// which undoes nothing of what it began.
    pub(super) fn is_under_way(&self, id: IncidentId) -> bool {
        self.incident == id && self.closed.is_none()
    }

    /// Returns true if it is in progress for this incident, and ranks wait for a directive that no other plan sends.
    pub(super) fn leaves_ranks_waiting(&self, id: IncidentId) -> bool {
        self.is_under_way(id) && self.directs
    }

    /// Returns true if a live rank has failed in a step of this recovery's world, and all its known faults are older.
    pub(super) fn is_new(&self, fault: &Fault, known: &[&Fault]) -> bool {
        let is_of_a_step = matches!(&fault.primary_suspect().class, FaultClass::Network)
            || matches!(&fault.primary_suspect().class, FaultClass::Other(name) if *name == "step");
        is_of_a_step
            && fault.primary_suspect().damage.process == Health::Healthy
            && known.iter().all(|known| known.onset < self.entered)
    }

    /// Ends a trial that has held, and names the strategy on trial to the plugins.
    pub(super) fn pass(trial: &mut Option<Trial>, now: JobTime, on_trial: &mut Option<Name>) {
        if trial.as_ref().is_some_and(|trial| trial.is_over(now)) {
            *trial = None;
        }
        if on_trial.as_ref() != trial.as_ref().map(|trial| &trial.strategy) {
            *on_trial = trial.as_ref().map(|trial| trial.strategy.clone());
        }
    }

    /// A rank has completed a step.
    pub(super) fn stepped(&mut self, step: u64) {
        if self.closed.is_some() {
            self.stepped |= self.from.is_some_and(|from| step >= from.saturating_add(TRIAL_STEPS));
        }
    }

    /// An incident was closed: from now on its recovery has to hold.
    pub(super) fn closed(&mut self, id: IncidentId, view: &View) {
        if self.is_under_way(id) {
            self.closed = Some(view.now);
            self.from = view.training().filter_map(|(_, proc)| proc.step).max();
        }
    }

    /// An incident was merged into another one.
    pub(super) fn merged(&mut self, into: IncidentId, from: IncidentId) {
        if self.incident == from {
            self.incident = into;
        }
    }

    /// Returns true if the recovery was begun for this error.
    ///
    /// The error is then still that rank's, and the recovery has merely not repaired it.
    fn was_for(&self, fault: &Fault) -> bool {
        let (Domain::Process(role), Some(error)) = (&fault.primary_suspect().domain, &fault.error) else {
            return false;
        };
        self.errors.iter().any(|(of, family, code)| of == role && *family == error.family && *code == error.code)
    }
}

/// Puts recoveries on trial, and charges failures to the one on trial.
pub(super) struct Probation<'a> {
    pub(super) view: &'a View,
    pub(super) plans: &'a BTreeMap<PlanId, Plan>,
    pub(super) incidents: &'a mut BTreeMap<IncidentId, Open>,
    pub(super) trial: &'a mut Option<Trial>,
    pub(super) counts: &'a mut Counts,
    pub(super) ledger: &'a mut Ledger,
}

impl Probation<'_> {
    /// Handles a plan that is about to put a world in force: a recovery that keeps processes goes on trial.
    pub(super) fn world_entered(&mut self, plan: Option<PlanId>, world: &World) {
        let Probation { view, plans, incidents, trial, .. } = self;
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
            let (Domain::Process(role), Some(error)) = (&fault.primary_suspect().domain, &fault.error) else {
                return None;
            };
            fault.primary_suspect().is_cause().then(|| (role.clone(), error.family.clone(), error.code.clone()))
        });
        **trial = Some(Trial {
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
                .any(|a| matches!(a, Action::SendDirectives(_))),
            is_charged: false,
            closed: None,
            from: None,
            stepped: false,
        });
    }

    /// Handles a fault during the recovery of an incident, and returns it, possibly charged to the recovery.
    ///
    /// A failure by itself is charged to the recovery, and so are faults that a process started by the recovery reports
    /// of its peers. If such a process is killed from outside, the recovery has failed as well, but the kill remains a
    /// cause: its reason may recur (for example an OOM kill, for memory that a restart would not need).
    pub(super) fn charge_running(&mut self, id: IncidentId, fault: Fault) -> Fault {
        let Probation { view, plans, incidents, trial, counts, .. } = self;
        let Some(trial) = trial.as_mut().filter(|trial| trial.is_under_way(id)) else { return fault };
        let is_running = plans.contains_key(&PlanId::Recovery(id));
        let kind = kind(&fault, view);
        let is_newcomer = || fault_proc(&fault).is_some_and(|proc| trial.starts.contains(&proc));
        let has_made_it_fail = match kind {
            Kind::Error => fault.primary_suspect().is_cause() || is_newcomer(),
            Kind::Consequence => is_newcomer(),
            Kind::Outside => {
                let is_end = matches!(fault.primary_suspect().class, FaultClass::Exit | FaultClass::Launch);
                fault.by != OPERATOR && is_end && is_newcomer()
            }
        };
        let Some(open) = incidents.get_mut(&id).filter(|_| has_made_it_fail) else { return fault };
        // The first of several faults cancels the plan.
        if is_running || !trial.is_charged {
            counts.branch(Branch::Charged);
            open.charge(&trial.strategy, words(&fault));
            trial.is_charged = true;
        }
        if kind == Kind::Outside || trial.was_for(&fault) {
            return fault;
        }
        let text = format!("charged to {}, which was running when it failed", trial.strategy);
        fault.charged(Evidence::text(CHARGED, text))
    }

    /// Charges the recovery on trial with an incident that is about to be decided, if no cause came from outside.
    pub(super) fn charge_closed(&mut self, id: IncidentId) {
        let Probation { view, incidents, trial, counts, ledger, .. } = self;
        let Some(trial) = trial.as_ref().filter(|trial| trial.incident != id) else { return };
        let Some(open) = incidents.get_mut(&id) else { return };
        let Some(closed) = trial.closed.filter(|closed| !open.tried && open.incident.opened >= *closed) else { return };
        let faults = &mut open.incident.faults;
        let is_outside = |fault: &Fault| fault.primary_suspect().is_cause() && kind(fault, view) == Kind::Outside;
        let first = faults.iter().find(|fault| kind(fault, view) == Kind::Error && fault.primary_suspect().is_cause());
        let first = first.or_else(|| faults.iter().find(|fault| kind(fault, view) == Kind::Consequence));
        let Some(first) = first.filter(|_| !faults.iter().any(is_outside)) else { return };
        let why = format!("{} ({} after it had recovered {})", words(first), after(view.now, closed), trial.incident);
        let text = format!(
            "charged to {}, which recovered {} at {closed}: a failure so soon after a recovery is charged to it",
            trial.strategy, trial.incident
        );
        for fault in faults.iter_mut().filter(|fault| !trial.was_for(fault)) {
            *fault = fault.clone().charged(Evidence::text(CHARGED, text.clone()));
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

    /// Returns true if a recovery run of this incident has failed.
    ///
    /// That is, not all attempts are mere charges for failures beside or after a recovery.
    pub(super) fn has_failed(&self) -> bool {
        self.incident.attempts.len() > self.charged.values().map(|times| *times as usize).sum()
    }
}

fn kind(fault: &Fault, view: &View) -> Kind {
    let suspect = fault.primary_suspect();
    if fault.by == OPERATOR {
        return Kind::Outside;
    }
    match (&suspect.domain, &suspect.class) {
        (Domain::Process(Role::Rank(_)), FaultClass::Exit) => kind_of_end(fault, view),
        (Domain::Process(Role::Rank(_)), FaultClass::Stall) | (Domain::Job, FaultClass::Stall) => Kind::Error,
        (Domain::Process(Role::Rank(_)), FaultClass::Other(name)) if *name == "step" => Kind::Error,
        // A fault of a collective: the process is alive.
        (Domain::Process(Role::Rank(_)), class) if suspect.damage.process == Health::Healthy => match class {
            FaultClass::Program => Kind::Error, // it was called wrongly, or skipped
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
    let proc =
        view.proc_of(&fault.primary_suspect().domain).filter(|proc| fault.incarnation() == Some(proc.incarnation));
    let how = proc.and_then(|proc| proc.phase.termination());
    match how {
        Some(Termination::Code(0)) => Kind::Consequence,
        Some(Termination::Code(129..160)) if !own_error => Kind::Outside, // a shell's code for a signal
        Some(Termination::Signal { number, .. }) if !own_error && !CRASHES.contains(&number) => Kind::Outside,
        Some(Termination::Unknown) => Kind::Outside,
        None if !own_error => Kind::Outside,
        _ if own_error || fault.error.is_none() => Kind::Error,
        _ => Kind::Consequence,
    }
}

fn fault_proc(fault: &Fault) -> Option<ProcId> {
    let Domain::Process(role) = &fault.primary_suspect().domain else { return None };
    Some(ProcId { role: role.clone(), incarnation: fault.incarnation()? })
}

/// Returns the processes that a run starts or has started.
fn starts(run: &PlanExecution) -> Vec<ProcId> {
    let done = run.done.iter().flatten().map(|done| &done.action);
    let all = done.chain(run.proposal.stages.iter().flat_map(|stage| &stage.actions));
    let batches = all.filter_map(|action| match action {
        Action::Start { batch, .. } => Some(batch),
        _ => None,
    });
    batches.flat_map(|batch| &batch.starts).map(|order| order.proc.clone()).collect()
}

/// Returns a fault as one line of text: how a process ended, and with which error.
fn words(fault: &Fault) -> String {
    let says = |clue: &&Evidence| clue.what != "last_step" && clue.what != "stderr" && !clue.text.is_empty();
    let clues: Vec<&str> = fault.evidence.iter().filter(says).map(|clue| clue.text.as_str()).take(2).collect();
    match clues.is_empty() {
        true => format!("{} in {}", fault.primary_suspect().class, fault.primary_suspect().domain),
        false => clues.join(", "),
    }
}

fn after(now: JobTime, closed: JobTime) -> String {
    format!("{:.1} s", now.since(closed).as_secs_f64())
}
