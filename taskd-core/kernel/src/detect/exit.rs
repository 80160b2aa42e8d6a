//! Blames processes that ended unexpectedly.
//!
//! The detector does not decide on the recovery, and blames no end that was requested. It names a rank with exit code 0
//! only if all failed ranks point to another rank, and none is known to have failed by itself.

mod judge;
mod left;

pub(crate) use judge::INTERRUPTED;
pub(super) use judge::{judge, last_line, one_line};
pub(super) use left::left_first;

use super::{FaultClass, FaultDetector, Findings, saved};
use crate::job::{Domain, ErrorReport, Exit, Generation, Incarnation, JobTime, Name, ProcId, Role, Termination};
use crate::state::{Phase, Proc, View};
use crate::trace::{DecodeError, Observation, Signal};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

const NAME: Name = Name::new("exit");
const SNAPSHOT_VERSION: u8 = 2;

/// Time within which a process that has recorded its failure should end. Most end at once, and the exit contains more
/// information.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// Delay of a consequence's judgement after the end that may be its cause.
const BEHIND_ITS_CAUSE: Duration = Duration::from_millis(1);

/// Time for which the end of an interrupted rank waits for interrupts of other ranks of its generation, by their own
/// signal or by that of their process group. Programs clean up before they end; a late blame costs less than blaming
/// one rank for an event that hit all.
const INTERRUPTS_WITHIN: Duration = Duration::from_secs(3);

/// Default time for which an end waits for its exact exit (see [`ExitDetector::with_exact_within`]).
const EXACT_WITHIN: Duration = Duration::from_secs(10);

/// Blames processes that end unexpectedly.
///
/// *Confidence.* Ranks that train together fail together, so each end is judged by how well it explains the others.
/// Below 500 permille a process is a *victim*: another failure is the cause of its end.
///
/// | end | confidence, permille | class |
/// |---|---|---|
/// | the policy's no-restart exit code | 1000 | program |
/// | together with its host's guard (which starts and stops the ranks there), whatever its exit or error | 100: a victim | exit |
/// | error report of the Linux kernel, such as a kill for lack of memory | 1000 | exit |
/// | killed by its host's guard at the end of the host's lease | 100: a victim | exit |
/// | error report of a follow-up error | 100: a victim | exit |
/// | error report of a race lost at start-up (`retry_free`) | 900 | launch |
/// | any other error report | 900 | exit |
/// | signal from outside or from the hardware | 1000 | exit |
/// | an interrupt (KeyboardInterrupt, SIGINT) of one rank, 3 s later | 900, without an error report 1000 | exit |
/// | interrupts of several ranks of a generation: from outside of the job | 100: victims | exit |
/// | SIGPIPE: the other end of a connection had gone | 100: a victim | exit |
/// | unknown: the process that observed it failed as well | 850 | exit |
/// | any other exit code, or SIGABRT, which programs send themselves | 800 | exit |
/// | any other exit code or SIGABRT, when a cause in the same generation is known already | 400: a victim | exit |
///
/// If all ends of a generation are those of victims, a rank that had exited with code 0 before them is blamed with
/// 600 permille: the others waited for it. Any other known cause has priority.
///
/// Exit codes from 129 to 159 count as the signal that a shell encodes with them, because a script around a program
/// hides how the program ended.
///
/// *Timing.* The detector blames a death by signal as soon as it is known, but an interrupt while other ranks run
/// only after 3 s, because other interrupts may follow. It judges an end by exit code only after the exact
/// [`Phase::Exited`], whose error report distinguishes a cause from a consequence. It judges a consequence only
/// when no such end can turn out to be its cause any more. As soon as a cause is known it judges all ends
/// immediately: the incident is open, and a later report refines its fault. Only an unknown end still waits for its
/// report, because it may have been a success.
///
/// A process that has [recorded](Signal::FailureRecorded) a fatal error and has not ended one second later counts as
/// ended with that error: it hangs in its exit handlers, and other ranks wait for it. Stopping a process exactly would
/// wait for the same exit, so little is lost, and the wait is bounded ([`with_exact_within`](Self::with_exact_within)).
#[derive(Debug)]
pub struct ExitDetector {
    exact_within: Duration,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    /// The latest generation (see `World`) in which a process was blamed as the cause of a failure.
    explained: Option<Generation>,
    /// Ends of processes for which the detector waits for the exact exit (its error report), by role.
    awaited: BTreeMap<Role, End>,
    /// Earliest time at which an entry of `awaited` has waited long enough; may be earlier than the true time.
    due: Option<JobTime>,
    /// Exact exits that look like consequences, held back because their cause may be among `awaited`.
    held: BTreeMap<Role, End>,
    /// Deaths that were blamed before the exact exit of the process was reported.
    blamed: BTreeMap<Role, End>,
}

/// The end of a process, exact or as far as it is known.
#[derive(Debug, Serialize, Deserialize)]
struct End {
    incarnation: Incarnation,
    since: JobTime,
    /// Time until which the detector waits for the exact exit of the process.
    due: JobTime,
    exit: Exit,
    /// True if, when this end was first judged, a failure was known already of which the end may be a consequence.
    explained: bool,
}

impl Default for ExitDetector {
    fn default() -> ExitDetector {
        ExitDetector::new()
    }
}

impl ExitDetector {
    /// Creates a detector that waits up to 10 s for the report of a process's exact exit, which contains the process's
    /// error report.
    #[must_use]
    pub fn new() -> ExitDetector {
        ExitDetector { exact_within: EXACT_WITHIN, state: State::default() }
    }

    /// Sets how long the detector waits for the report of a process's exact exit, if the process has ended and the end
    /// may be a success, or a consequence of another failure. After that, it blames the process based on what is known.
    #[must_use]
    pub fn with_exact_within(mut self, bound: Duration) -> ExitDetector {
        self.exact_within = bound;
        self
    }

    fn died(&mut self, role: &Role, proc: &Proc, how: Termination, view: &View, out: &mut Findings) {
        let known = self.state.known(role, proc);
        let explained = known.map_or(self.state.is_explained(proc), |known| known.explained);
        let is_blamed = self.state.blamed.get(role).is_some_and(|end| end.incarnation == proc.incarnation);
        let waits = match how {
            Termination::Code(0) => return,
            _ if proc.unguarded => false, // the end of its guard is blamed, so nothing else is needed
            Termination::Code(_) => !explained && !is_blamed,
            Termination::Signal { .. } => false,
            Termination::Unknown => !is_blamed,
        };
        let since = known.map_or(view.now, |known| known.since);
        let error = known.and_then(|known| known.exit.error.clone()); // the error that the process recorded
        let (exit, due) = (Exit { error, ..Exit::new(how) }, view.now + self.exact_within);
        let end = End { incarnation: proc.incarnation, since, due, exit, explained };
        if waits {
            self.state.wait_for(role, end);
        } else if !is_blamed && end.may_be_interrupted_with_others(role, proc, view) {
            self.state.wait_for_interrupts(role, end);
        } else {
            self.state.awaited.remove(role);
            self.state.blame(role, &end, view, out);
            self.state.blamed.insert(role.clone(), end);
        }
    }

    /// Handles a fatal error that a running process has recorded.
    fn recorded(&mut self, role: &Role, proc: &Proc, error: &ErrorReport, view: &View) {
        if proc.phase.is_over() || self.state.known(role, proc).is_some() {
            return;
        }
        let exit = Exit { error: Some(Box::new(error.clone())), step: error.step, ..Exit::new(Termination::Unknown) };
        let (explained, due) = (self.state.is_explained(proc), view.now + ENDS_WITHIN);
        self.state.wait_for(role, End { incarnation: proc.incarnation, since: view.now, due, exit, explained });
    }

    fn exited(&mut self, role: &Role, proc: &Proc, exit: &Exit, view: &View, out: &mut Findings) {
        let state = &mut self.state;
        let of_this = |end: &End| end.incarnation == proc.incarnation;
        let awaited = state.awaited.remove(role).filter(of_this);
        let blamed = state.blamed.remove(role).filter(of_this);
        let since = blamed.as_ref().or(awaited.as_ref()).map_or(view.now, |death| death.since);
        let explained = blamed.as_ref().map_or(state.is_explained(proc), |death| death.explained);
        let end = End { incarnation: proc.incarnation, since, due: view.now, exit: exit.clone(), explained };
        if blamed.is_none() && end.may_be_interrupted_with_others(role, proc, view) {
            return state.wait_for_interrupts(role, end);
        }
        let mut class = None;
        if !exit.how.is_success() {
            if blamed.is_none() && !explained && !state.awaited.is_empty() && !end.judge(proc, view).is_cause() {
                state.held.insert(role.clone(), end);
                return;
            }
            class = state.blame(role, &end, view, out);
        }
        // A blame with another class is withdrawn only now: an incident that becomes empty is closed.
        if blamed.is_some() && class != Some(FaultClass::Exit) {
            out.clear(Domain::Process(role.clone()), FaultClass::Exit);
        }
    }
}

impl FaultDetector for ExitDetector {
    fn name(&self) -> Name {
        NAME
    }

    fn config(&self) -> String {
        format!("exact_within_ms={}", self.exact_within.as_millis())
    }

    fn observe(&mut self, o: &Observation, view: &View, out: &mut Findings) {
        let Domain::Process(role) = &o.about else { return };
        let is_news = match &o.signal {
            Signal::Phase(phase) => phase.is_over(),
            signal => matches!(signal, Signal::FailureRecorded(_)),
        };
        if !is_news {
            return; // true of most observations: they cost no lookup
        }
        let Some(proc) = unexpected(role, o.incarnation, view) else { return };
        let explained = self.state.explained;
        let is_fenced = proc.phase.exit().and_then(|exit| exit.error.as_deref()).is_some_and(ErrorReport::is_fence);
        if proc.unguarded || is_fenced {
            self.state.explained = self.state.explained.max(Some(proc.generation)); // others fail because it is gone
        }
        match &o.signal {
            Signal::Phase(Phase::Dead(how)) => self.died(role, proc, *how, view, out),
            Signal::Phase(Phase::Exited(exit)) => self.exited(role, proc, exit, view, out),
            Signal::FailureRecorded(error) => self.recorded(role, proc, error, view),
            _ => {}
        }
        self.state.release(explained, view, out);
    }

    fn deadline(&self) -> Option<JobTime> {
        self.state.due
    }

    fn expire(&mut self, view: &View, out: &mut Findings) {
        let explained = self.state.explained;
        self.state.wait_for_causes(view);
        self.state.blame_awaited(|end| end.due <= view.now, view, out);
        self.state.release(explained, view, out);
        self.state.due = self.state.awaited.values().map(|end| end.due).min();
    }

    fn snapshot(&self) -> Option<Bytes> {
        saved::save(SNAPSHOT_VERSION, &self.state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), DecodeError> {
        self.state = saved::load(SNAPSHOT_VERSION, saved)?;
        Ok(())
    }
}

impl State {
    /// Returns what is known about the end of this process.
    fn known(&self, role: &Role, proc: &Proc) -> Option<&End> {
        let of = |ends: &BTreeMap<Role, End>| ends.get(role).is_some_and(|end| end.incarnation == proc.incarnation);
        [&self.blamed, &self.awaited].into_iter().find(|ends| of(ends)).and_then(|ends| ends.get(role))
    }

    /// Stores an end in `awaited` until the exact exit of the process is reported.
    fn wait_for(&mut self, role: &Role, end: End) {
        self.due = Some(self.due.map_or(end.due, |due| due.min(end.due)));
        self.awaited.insert(role.clone(), end);
    }

    /// Delays the judgement of an interrupted process, because other ranks may have been interrupted as well.
    fn wait_for_interrupts(&mut self, role: &Role, end: End) {
        self.wait_for(role, End { due: end.since + INTERRUPTS_WITHIN, ..end });
    }

    /// Extends the wait of due consequences until just after the last pending end that may be their cause, so that they
    /// are judged with that cause known.
    fn wait_for_causes(&mut self, view: &View) {
        let is_cause = |role: &Role, end: &End| {
            unexpected(role, Some(end.incarnation), view).is_some_and(|proc| end.judge(proc, view).is_cause())
        };
        let pending = self.awaited.iter().filter(|(role, end)| end.due > view.now && is_cause(role, end));
        let Some(until) = pending.map(|(_, end)| end.due).max() else { return };
        for (role, end) in &mut self.awaited {
            if end.due <= view.now && !is_cause(role, end) {
                end.due = until + BEHIND_ITS_CAUSE;
            }
        }
    }

    /// Returns true if a cause is known of which an end of this process may be a consequence.
    fn is_explained(&self, proc: &Proc) -> bool {
        self.explained >= Some(proc.generation)
    }

    /// Blames waiting ends once a cause is known, and held victims also if no cause can be expected any more.
    fn release(&mut self, explained_before: Option<Generation>, view: &View, out: &mut Findings) {
        let is_explained = self.explained > explained_before;
        if is_explained {
            self.blame_awaited(|end| end.exit.how != Termination::Unknown || end.exit.error.is_some(), view, out);
        }
        if is_explained || self.awaited.is_empty() {
            for (role, end) in std::mem::take(&mut self.held) {
                self.blame(&role, &end, view, out);
            }
        }
    }

    /// Blames the selected waiting deaths based on what is known.
    fn blame_awaited(&mut self, which: impl Fn(&End) -> bool, view: &View, out: &mut Findings) {
        let awaited = std::mem::take(&mut self.awaited).into_iter();
        let (now, later): (BTreeMap<_, _>, _) = awaited.partition(|(_, end)| which(end));
        self.awaited = later;
        for (role, mut end) in now {
            end.explained = unexpected(&role, Some(end.incarnation), view).is_some_and(|p| self.is_explained(p));
            self.blame(&role, &end, view, out);
            self.blamed.insert(role, end);
        }
    }

    /// Blames an end and returns the class, or `None` if the process was replaced or is no longer wanted.
    fn blame(&mut self, role: &Role, end: &End, view: &View, out: &mut Findings) -> Option<FaultClass> {
        let proc = unexpected(role, Some(end.incarnation), view)?;
        let (mut verdict, mut is_from_outside) = (end.judge(proc, view), false);
        if end.exit.how.is_interrupt(end.exit.error.as_deref()) {
            let others = interrupted(role, proc.generation, view);
            if let [(other, its)] = others.as_slice() {
                // The earlier interrupt was judged as a single one; blame it again as one of several.
                let exit = its.phase.exit().cloned().or_else(|| Some(Exit::new(its.phase.termination()?)));
                let id = ProcId { role: (*other).clone(), incarnation: its.incarnation };
                if let Some(exit) = exit {
                    let since = its.ended_at.unwrap_or(view.now);
                    judge::blame(&id, &exit, since, &judge::Verdict::interrupted_together(), view, out);
                }
            }
            is_from_outside = !others.is_empty();
            if is_from_outside {
                verdict = judge::Verdict::interrupted_together();
            }
        }
        if verdict.is_cause() {
            self.explained = self.explained.max(Some(proc.generation));
        } else if !is_from_outside
            && self.explained < Some(proc.generation)
            && let Some(fault) = left_first(NAME, view, proc.generation)
        {
            out.blame(fault);
        }
        let proc = ProcId { role: role.clone(), incarnation: end.incarnation };
        judge::blame(&proc, &end.exit, end.since, &verdict, view, out);
        Some(verdict.class)
    }
}

impl End {
    fn judge(&self, proc: &Proc, view: &View) -> judge::Verdict {
        if proc.unguarded {
            return judge::with_its_guard();
        }
        judge(self.exit.how, self.exit.error.as_deref(), self.explained, view.spec.policy.no_restart_exit_code)
    }

    /// Returns true for the first process of a generation that an interrupt ended, if running ranks may have been
    /// interrupted as well.
    fn may_be_interrupted_with_others(&self, role: &Role, proc: &Proc, view: &View) -> bool {
        let is_due = view.now >= self.since + INTERRUPTS_WITHIN;
        let runs = |(other, its): (&Role, &Proc)| {
            other != role && other.rank().is_some() && its.generation == proc.generation && !its.phase.is_over()
        };
        !is_due
            && !proc.unguarded
            && !self.explained
            && self.exit.how.is_interrupt(self.exit.error.as_deref())
            && interrupted(role, proc.generation, view).is_empty()
            && view.procs.iter().any(runs)
    }
}

/// Returns the other ranks of a generation that were interrupted.
fn interrupted<'a>(but: &Role, generation: Generation, view: &'a View) -> Vec<(&'a Role, &'a Proc)> {
    let was = |proc: &Proc| {
        let error = proc.phase.exit().and_then(|exit| exit.error.as_deref());
        proc.wanted && proc.phase.termination().is_some_and(|how| how.is_interrupt(error))
    };
    let of_world = |(role, proc): &(&Role, &Proc)| role.rank().is_some() && proc.generation == generation;
    view.procs.iter().filter(|(role, _)| *role != but).filter(of_world).filter(|(_, proc)| was(proc)).collect()
}

/// Returns the process of a role if the end of this incarnation was not requested.
pub(super) fn unexpected<'a>(role: &Role, incarnation: Option<Incarnation>, view: &'a View) -> Option<&'a Proc> {
    view.proc(role).filter(|p| p.wanted && incarnation.is_none_or(|i| i == p.incarnation))
}

#[cfg(test)]
mod tests;
