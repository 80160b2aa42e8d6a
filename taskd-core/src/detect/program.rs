//! Tells a program's own error from a machine's: the same root exception twice, at the same step, in different places.
//!
//! It never blames a first exception, a signal, or an error that somebody else's failure explains.

use super::exit::{judge, last_line, one_line, unexpected};
use super::{Clue, Damage, Fault, FaultClass, FaultDetector, Findings, Suspect, saved};
use crate::job::{Domain, ErrorReport, Exit, Generation, JobTime, Name, NodeId, ProcId, Termination};
use crate::kernel::{Proc, View};
use crate::launch::Phase;
use crate::recover::placement;
use crate::trace::{Malformed, Observation, Signal};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

const NAME: Name = Name::new("program-error");
const SNAPSHOT_VERSION: u8 = 2;

/// So many failures at the start in a row, with the same code and the same last line, are the program's. One more than for exceptions,
/// which say more than an exit code: what is not there yet (a file system, a license) may be there at the next start.
const SAME_STARTS: u32 = 3;

/// Stands for the family of an error where there was no exception.
const NO_EXCEPTION: Name = Name::new("exit");

/// The strategy that moves the rank of an exception.
const RESTART: Name = Name::new("restart");

/// How much of an error's text is compared, in characters.
const GIST_CHARS_MAX: usize = 512;

/// Blames the program when its root exception comes back at the same step although it ran elsewhere.
///
/// *Root exception*: the error report of the rank that failed first in its generation, where that rank ended by itself.
/// A rank that was killed first explains the others' errors, so such a generation has no root exception; follow-up errors
/// and lost races never count as a failure of their own.
///
/// *Same*: equal family and code, and equal text but for words with a digit in them. Addresses, process ids, ports,
/// times and temporary names differ from run to run while the error is the same; two errors of one type at one step
/// that differ in nothing but figures are one defect in practice.
///
/// *Same step*: as the report says, else the last step that the rank completed; two exceptions before any step count as
/// the same. Steps must be counted absolutely, that is, on from the checkpoint after a restart. When the job gets beyond
/// that step in between, the first exception is forgotten.
///
/// *Elsewhere*: on another host or device, if the job has one that could take the rank ([`Restart`] then moves it there);
/// if it has none, the second time in the same place is enough. Where a recovery has started the rank in the same place again and
/// there is another, the rank is blamed, with the advice to restart.
///
/// *At the start*: a failure without an exception, before any step was seen and within [`Policy::start_within`] of the start, comes back when a process of a later generation ends with the
/// same exit code (or signal of its own) and the same last line of stderr, but for words with a digit in them. Three in a row are the
/// program's.
///
/// While a recovery that keeps processes is on trial ([`View::on_trial`]) nothing that fails is the program's: it is charged to that
/// recovery. Nor is an interrupt.
///
/// [`Policy::start_within`]: crate::job::Policy::start_within
/// [`Restart`]: crate::recover::Restart
#[derive(Debug, Default)]
pub struct ProgramErrorDetector {
    state: State,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    /// The latest generation in which a rank failed.
    generation: Generation,
    /// The process that failed first in it.
    first: Option<ProcId>,
    /// The latest root exception.
    last: Option<Occurrence>,
}

/// One root exception.
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
    /// How often it has come, in a row.
    times: u32,
}

/// What a failing end says about who failed first.
enum End<'a> {
    /// The program's own exception.
    Root(&'a Exit, &'a ErrorReport),
    /// It ended by itself, without an exception that is known.
    Wordless(&'a Exit),
    /// A failure that may be the first one, without an exception of the program as far as is known.
    Failure,
    /// A consequence of somebody else's failure.
    Consequence,
}

impl ProgramErrorDetector {
    /// A detector that has seen nothing yet.
    #[must_use]
    pub fn new() -> ProgramErrorDetector {
        ProgramErrorDetector::default()
    }

    /// The job got further, so the exception is not one that always comes back.
    fn progressed(&mut self, step: u64, o: &Observation, view: &View) {
        let Some(last) = &self.state.last else { return };
        if last.step.is_some_and(|failed_at| step <= failed_at) {
            return;
        }
        // Peers of the failed rank may complete the step as well: only what comes after a restart counts.
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
        let is_at_start = proc.step.is_none() && lived < view.spec.policy.start_within;
        if is_first && !is_at_start {
            last.take_if(|last| last.family == NO_EXCEPTION); // the program has started well since
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

    /// It has ended before its first step, and said no more than its exit code and a line.
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
                let words = words.unwrap_or_else(|| "it wrote nothing to stderr".into());
                let what = format!("the program fails at start: {words} ({code}, {times} times in a row)");
                let fault = Fault::new(NAME, now.at, suspect)
                    .because(Clue::text("repeated", what))
                    .because(Clue::text("first", last.to_string()))
                    .because(Clue::text("second", now.to_string()));
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
                .because(Clue::text("repeated", what))
                .because(Clue::text("first", last.to_string()))
                .because(Clue::text("second", now.to_string()))
                .because(Clue::text("error", format!("{} {}: {}", error.family, error.code, one_line(&error.text))));
            out.blame(fault.with_error(Some(Box::new(error.clone()))));
        } else if let Some(last) = again {
            out.blame(in_the_same_place(last, &now));
        }
        self.state.last = Some(now);
    }
}

/// It came back where it was, and there is another place: [`Restart`] tries it there, and the third time will tell.
///
/// [`Restart`]: crate::recover::Restart
fn in_the_same_place(last: &Occurrence, now: &Occurrence) -> Fault {
    let suspect = Suspect {
        domain: Domain::Process(now.proc.role.clone()),
        class: FaultClass::Program,
        damage: Damage::PROCESS_GONE,
        confidence_permille: Suspect::BLAME_PERMILLE_MIN, // machine or program: the exception itself explains more
    };
    let what = format!("the same {} twice at the same step, in the same place: it is to be tried elsewhere", now.code);
    Fault::new(NAME, now.at, suspect)
        .of(Some(now.proc.incarnation))
        .because(Clue::text("repeated", what))
        .because(Clue::text("first", last.to_string()))
        .because(Clue::text("second", now.to_string()))
        .advising(RESTART)
}

impl FaultDetector for ProgramErrorDetector {
    fn name(&self) -> Name {
        NAME
    }

    fn observe(&mut self, o: &Observation, view: &View, out: &mut Findings) {
        match (&o.signal, &o.about) {
            (Signal::Progress { step }, _) => self.progressed(*step, o, view),
            _ if view.on_trial.is_some() => {} // what fails may be the recovery's doing, and is charged to it
            (Signal::Phase(phase), Domain::Process(role)) => {
                let Some(end) = End::of(phase, view.spec.policy.do_not_restart_code) else { return };
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

    fn restore(&mut self, saved: &[u8]) -> Result<(), Malformed> {
        self.state = saved::load(SNAPSHOT_VERSION, saved)?;
        Ok(())
    }
}

impl<'a> End<'a> {
    /// `None` for what is no failure, or may still turn out to be none.
    fn of(phase: &'a Phase, do_not_restart_code: i32) -> Option<End<'a>> {
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
        if error.is_some_and(|e| e.retry_free) || !judge(how, error, false, do_not_restart_code).is_cause() {
            return Some(End::Consequence);
        }
        Some(match (how, exit.zip(error)) {
            (Termination::Code(_), Some((exit, error))) => End::Root(exit, error),
            _ if error.is_none() && ends_itself(how) => exit.map_or(End::Failure, End::Wordless),
            _ => End::Failure,
        })
    }
}

/// Whether a process that ends so has ended by its own doing: by its exit code, or by a crash (SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV).
fn ends_itself(how: Termination) -> bool {
    match how {
        Termination::Code(code) => !(129..160).contains(&code), // a shell's word for a signal
        Termination::Signal { number, .. } => matches!(number, 4 | 6 | 7 | 8 | 11),
        Termination::Unknown => false,
    }
}

impl Occurrence {
    /// A failure before the first step of which nothing but its code and its last line is known.
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

/// The part of an error's text that stays the same from run to run.
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
