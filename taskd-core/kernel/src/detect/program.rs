//! Distinguishes program errors from machine errors: a program error recurs at the same step in different places.
//!
//! The detector never blames a first exception, a signal, or an error that another rank's failure explains.

use super::exit::{judge, last_line, one_line, unexpected};
use super::{Damage, Evidence, Fault, FaultClass, FaultDetector, Findings, Suspect, saved};
use crate::job::strategy::RESTART;
use crate::job::{Domain, ErrorReport, Exit, Generation, JobTime, Name, NodeId, ProcId, Termination};
use crate::state::{Phase, Proc, View, placement};
use crate::trace::{DecodeError, Observation, Signal};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

const NAME: Name = Name::new("program-error");
const SNAPSHOT_VERSION: u8 = 2;

/// Number of failures at the start in a row, with the same code and the same last line, that count as the program's. It
/// is one more than for exceptions, which contain more information than an exit code: a missing resource (a file
/// system, a license) may exist at the next start.
const SAME_STARTS: u32 = 3;

/// Error family of failures without an exception.
const NO_EXCEPTION: Name = Name::new("exit");

/// Length of the part of an error's text that is compared, in characters.
const GIST_CHARS_MAX: usize = 512;

/// Blames the program if its root exception recurs at the same step although the rank ran elsewhere.
///
/// *Root exception*: the error report of the rank that failed first in its generation, if that rank ended by itself. A
/// rank that was killed first explains the errors of the others, so such a generation has no root exception. Follow-up
/// errors and lost races never count as failures of their own.
///
/// *Same exception*: equal family (such as `python`) and code (such as `ValueError`), and equal text except words
/// that contain a digit. Addresses, process ids, ports, times and temporary names differ from run to run while the
/// error is the same; in practice, two errors of one type at one step that differ only in figures are one defect.
///
/// *Same step*: the step in the report, otherwise the last step that the rank completed. Two exceptions before any
/// step count as the same. Steps must be counted absolutely, that is, continue from the checkpoint after a restart.
/// If the job completes that step between the two exceptions, the first exception is forgotten.
///
/// *Elsewhere*: on another host or device, if the job has one that could run the rank ([`Restart`] then moves it
/// there). If there is none, the second occurrence in the same place is enough. If a recovery has started the rank in
/// the same place again although there is another, the rank is blamed, with the recommendation to restart.
///
/// *At the start*: a failure at the start has no exception, and occurs before any step was seen and within
/// [`Policy::start_timeout`] of the start. It recurs if a process of a later generation ends with the same exit
/// code (or signal of its own) and the same last line of stderr, except words that contain a digit. Three such
/// failures in a row are blamed on the program.
///
/// While a recovery that keeps processes is on trial ([`View::on_trial`]) failures are attributed to that recovery,
/// not to the program. An interrupt is never attributed to the program.
///
/// [`Policy::start_timeout`]: crate::job::Policy::start_timeout
/// [`Restart`]: crate::recover::Restart
#[derive(Debug, Default)]
pub struct ProgramErrorDetector {
    state: State,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    /// The latest generation in which a rank failed.
    generation: Generation,
    /// The process that failed first in that generation.
    first: Option<ProcId>,
    /// The latest root exception: the error of the rank that failed first in its generation.
    last: Option<Occurrence>,
}

/// One occurrence of a root exception.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Occurrence {
    family: Name,
    code: Name,
    gist: String,
    step: Option<u64>,
    generation: Generation,
    proc: ProcId,
    node: Option<NodeId>,
    device: Option<u16>,
    at: JobTime,
    /// Number of consecutive occurrences of this exception.
    times: u32,
}

/// Role of a failing end in its generation's first failure.
enum End<'a> {
    /// The process ended with an exception of the program, which is not a consequence of another failure.
    Root(&'a Exit, &'a ErrorReport),
    /// The process ended by itself, without a known exception.
    Wordless(&'a Exit),
    /// The process failed, perhaps as the first one of its generation, but without a known exception of the program.
    Failure,
    /// The process failed as a consequence of another rank's failure.
    Consequence,
}

impl ProgramErrorDetector {
    /// Creates a detector that knows of no earlier failures.
    #[must_use]
    pub fn new() -> ProgramErrorDetector {
        ProgramErrorDetector::default()
    }

    /// Forgets the last exception if the job has completed a later step: the exception does not always recur.
    fn progressed(&mut self, step: u64, o: &Observation, view: &View) {
        let Some(last) = &self.state.last else { return };
        if last.step.is_some_and(|failed_at| step <= failed_at) {
            return;
        }
        // Peers of the failed rank may complete the step as well, so only steps after a restart count.
        let generation = o.generation.or_else(|| view.proc_of(&o.about).map(|p| p.generation));
        if generation > Some(last.generation) {
            self.state.last = None;
        }
    }

    fn ended(&mut self, id: ProcId, proc: &Proc, end: &End<'_>, view: &View, out: &mut Findings) {
        let State { generation, first, last } = &mut self.state;
        if proc.generation < *generation {
            return;
        }
        if proc.generation > *generation {
            (*generation, *first) = (proc.generation, None);
        }
        let is_first = first.as_ref().is_none_or(|f| *f == id);
        let lived = view.now.since(proc.progress_at);
        let is_at_start = proc.step.is_none() && lived < view.spec.policy.start_timeout;
        if is_first && !is_at_start {
            last.take_if(|last| last.family == NO_EXCEPTION); // the program has started successfully since
        }
        match end {
            End::Root(exit, error) if is_first => {
                *first = Some(id.clone());
                self.occurred(Occurrence::new(id, proc, exit, error, view), error, view, out);
            }
            End::Wordless(exit) if is_first => {
                *first = Some(id.clone());
                if is_at_start && exit.step.is_none() {
                    self.failed_at_start(Occurrence::at_start(id, proc, exit, view), exit, view, out);
                }
            }
            End::Failure if is_first => *first = Some(id),
            End::Consequence if is_first => *first = None,
            _ => {}
        }
    }

    /// Handles a process that failed before its first step, and of which only the exit code and a line of stderr are
    /// known.
    fn failed_at_start(&mut self, mut now: Occurrence, exit: &Exit, view: &View, out: &mut Findings) {
        let again = self.state.last.as_ref().filter(|last| last.is_again(&now));
        now.times = again.map_or(1, |last| last.times + 1);
        if let Some(last) = again {
            let can_move = !last.is_elsewhere(&now) && placement::can_move(view, &now.proc.role);
            if can_move {
                out.blame(in_the_same_place(last, &now));
            } else if now.times >= SAME_STARTS {
                let suspect = Suspect::certain(Domain::Job, FaultClass::Program, Damage::PROGRAM_BROKEN);
                let (words, code, times) = (last_line(exit).map(one_line), &now.code, now.times);
                let words = words.unwrap_or_else(|| "stderr is empty".into());
                let what = format!("the program fails at start: {words} ({code}, {times} times in a row)");
                let fault = Fault::new(NAME, now.at, suspect)
                    .with_evidence(Evidence::text("repeated", what))
                    .with_evidence(Evidence::text("first", last.to_string()))
                    .with_evidence(Evidence::text("second", now.to_string()));
                out.blame(fault);
            }
        }
        self.state.last = Some(now);
    }

    fn occurred(&mut self, now: Occurrence, error: &ErrorReport, view: &View, out: &mut Findings) {
        let again = self.state.last.as_ref().filter(|last| last.is_again(&now));
        if let Some(last) = again
            && (last.is_elsewhere(&now) || !placement::can_move(view, &now.proc.role))
        {
            let suspect = Suspect::certain(Domain::Job, FaultClass::Program, Damage::PROGRAM_BROKEN);
            let what = format!("the same {} twice at the same step: the program fails, not the machine", error.code);
            let fault = Fault::new(NAME, now.at, suspect)
                .with_evidence(Evidence::text("repeated", what))
                .with_evidence(Evidence::text("first", last.to_string()))
                .with_evidence(Evidence::text("second", now.to_string()))
                .with_evidence(Evidence::text(
                    "error",
                    format!("{} {}: {}", error.family, error.code, one_line(&error.text)),
                ));
            out.blame(fault.with_error(Some(Box::new(error.clone()))));
        } else if let Some(last) = again {
            out.blame(in_the_same_place(last, &now));
        }
        self.state.last = Some(now);
    }
}

/// Creates the fault for an error that recurred in the same place although the job has another one: [`Restart`] moves
/// the rank there, and a third occurrence decides.
///
/// [`Restart`]: crate::recover::Restart
fn in_the_same_place(last: &Occurrence, now: &Occurrence) -> Fault {
    let suspect = Suspect {
        domain: Domain::Process(now.proc.role.clone()),
        class: FaultClass::Program,
        damage: Damage::PROCESS_GONE,
        confidence_permille: Suspect::BLAME_PERMILLE_MIN, // machine or program: the exception explains more
    };
    let what = format!("the same {} twice at the same step, in the same place: restart the rank elsewhere", now.code);
    Fault::new(NAME, now.at, suspect)
        .with_incarnation(Some(now.proc.incarnation))
        .with_evidence(Evidence::text("repeated", what))
        .with_evidence(Evidence::text("first", last.to_string()))
        .with_evidence(Evidence::text("second", now.to_string()))
        .with_advice(RESTART)
}

impl FaultDetector for ProgramErrorDetector {
    fn name(&self) -> Name {
        NAME
    }

    fn observe(&mut self, o: &Observation, view: &View, out: &mut Findings) {
        match (&o.signal, &o.about) {
            (Signal::Progress { step }, _) => self.progressed(*step, o, view),
            _ if view.on_trial.is_some() => {} // the recovery may have caused the failure, so it is charged to it
            (Signal::Phase(phase), Domain::Process(role)) => {
                let Some(end) = End::of(phase, view.spec.policy.no_restart_exit_code) else { return };
                let Some(proc) = unexpected(role, o.incarnation, view) else { return };
                let id = ProcId { role: role.clone(), incarnation: proc.incarnation };
                self.ended(id, proc, &end, view, out);
            }
            (Signal::FailureRecorded(error), Domain::Process(role)) => {
                let Some(proc) = unexpected(role, o.incarnation, view).filter(|p| !p.phase.is_over()) else { return };
                let id = ProcId { role: role.clone(), incarnation: proc.incarnation };
                let exit = Exit { step: error.step, ..Exit::new(Termination::Unknown) };
                let is_root = !error.follow_up && !error.retry_free;
                let end = if is_root { End::Root(&exit, error) } else { End::Consequence };
                self.ended(id, proc, &end, view, out);
            }
            _ => {}
        }
    }

    fn snapshot(&self) -> Option<Bytes> {
        saved::save(SNAPSHOT_VERSION, &self.state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), DecodeError> {
        self.state = saved::load(SNAPSHOT_VERSION, saved)?;
        Ok(())
    }
}

impl<'a> End<'a> {
    /// Classifies a phase; `None` if it is not a failure, or may still turn out to be none.
    fn of(phase: &'a Phase, no_restart_exit_code: i32) -> Option<End<'a>> {
        let (how, exit) = match phase {
            Phase::Dead(how) => (*how, None),
            Phase::Exited(exit) => (exit.how, Some(exit.as_ref())),
            Phase::Pending(_) | Phase::Running => return None,
        };
        if how.is_success() || (exit.is_none() && how == Termination::Unknown) {
            return None;
        }
        let error = exit.and_then(|e| e.error.as_deref());
        if how.is_interrupt(error) {
            return Some(End::Failure);
        }
        if error.is_some_and(|e| e.retry_free) || !judge(how, error, false, no_restart_exit_code).is_cause() {
            return Some(End::Consequence);
        }
        Some(match (how, exit.zip(error)) {
            (Termination::Code(_), Some((exit, error))) => End::Root(exit, error),
            _ if error.is_none() && ends_itself(how) => exit.map_or(End::Failure, End::Wordless),
            _ => End::Failure,
        })
    }
}

/// Returns true if the termination is the process's own doing: an exit code, or a crash (SIGILL, SIGABRT, SIGBUS,
/// SIGFPE, SIGSEGV).
fn ends_itself(how: Termination) -> bool {
    match how {
        Termination::Code(code) => !(129..160).contains(&code), // a shell's encoding of a signal
        Termination::Signal { number, .. } => matches!(number, 4 | 6 | 7 | 8 | 11),
        Termination::Unknown => false,
    }
}

impl Occurrence {
    /// Creates an occurrence from a failure before the first step of which only the exit code and the last line are
    /// known.
    fn at_start(id: ProcId, proc: &Proc, exit: &Exit, view: &View) -> Occurrence {
        let text = last_line(exit).unwrap_or_default().to_owned();
        let error = ErrorReport {
            family: NO_EXCEPTION,
            code: Name::from(exit.how.to_string()),
            text,
            follow_up: false,
            retry_free: false,
            step: None,
        };
        Occurrence::new(id, proc, exit, &error, view)
    }

    fn new(id: ProcId, proc: &Proc, exit: &Exit, error: &ErrorReport, view: &View) -> Occurrence {
        let member = id.role.rank().and_then(|rank| view.world.members().get(&rank));
        Occurrence {
            family: error.family.clone(),
            code: error.code.clone(),
            gist: gist(&error.text),
            step: error.step.or(exit.step).or(proc.step),
            generation: proc.generation,
            node: proc.node.clone().or_else(|| member?.node.clone()),
            device: member.and_then(|m| m.device),
            proc: id,
            at: view.now,
            times: 1,
        }
    }

    fn is_again(&self, later: &Occurrence) -> bool {
        let same_error = self.family == later.family && self.code == later.code && self.gist == later.gist;
        same_error && self.step == later.step && self.generation < later.generation
    }

    fn is_elsewhere(&self, later: &Occurrence) -> bool {
        (&self.node, self.device) != (&later.node, later.device)
    }
}

impl std::fmt::Display for Occurrence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Occurrence { code, proc, generation, at, .. } = self;
        write!(f, "{code} in {proc}")?;
        if let Some(node) = &self.node {
            write!(f, " on {node}")?;
        }
        if let Some(device) = self.device {
            write!(f, ", device {device}")?;
        }
        match self.step {
            Some(step) => write!(f, ", at step {step}")?,
            None => f.write_str(", before its first step")?,
        }
        write!(f, " ({generation}, at {at})")
    }
}

/// Returns an error's text with every word that contains a digit replaced by `#`, so that it is equal from run to run.
fn gist(text: &str) -> String {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    let end = text.char_indices().nth(GIST_CHARS_MAX).map_or(text.len(), |(end, _)| end);
    let mut gist = String::new();
    for piece in text[..end].split_inclusive(|c| !in_word(c)) {
        let word = piece.trim_end_matches(|c| !in_word(c));
        let has_digit = word.contains(|c: char| c.is_ascii_digit());
        gist.push_str(if has_digit { "#" } else { word });
        gist.push_str(&piece[word.len()..]);
    }
    gist
}

#[cfg(test)]
mod tests;
