//! Blames processes that ended although nobody had asked them to.
//!
//! It never decides what follows, and blames neither an end that was asked for nor one with exit code 0.

use super::{Clue, Damage, FaultClass, FaultDetector, Findings, Sound, Suspect, saved};
use crate::detect::Fault;
use crate::job::{Domain, ErrorReport, Exit, Incarnation, JobTime, Name, Role, Termination};
use crate::kernel::{Proc, View};
use crate::launch::Phase;
use crate::trace::{Malformed, Observation, Signal};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

const NAME: Name = Name::new("exit");
const SNAPSHOT_VERSION: u8 = 1;

/// Most characters of a text that a clue repeats.
const TEXT_CHARS_MAX: usize = 300;

/// How long an end waits for its exact exit, unless [`ExitDetector::with_exact_within`] says otherwise.
const EXACT_WITHIN: Duration = Duration::from_secs(10);

/// Blames unexpected ends of processes.
///
/// *When.* A death by signal is blamed as soon as it is known. One by exit code waits for the exact
/// [`Phase::Exited`], because only that carries the error report which tells a cause from a consequence, and one of which
/// nothing is known waits because it may have been a success. Stopping the process exactly would wait for the same exit,
/// so little is lost. The wait is bounded ([`with_exact_within`](Self::with_exact_within)).
///
/// *How sure.* Ranks that train together fall together, so an end says whether it explains the others:
///
/// | end | confidence, permille | class |
/// |---|---|---|
/// | the script's do-not-restart code | 1000 | program |
/// | error report of a follow-up error | a victim | exit |
/// | error report of a race lost at start-up (`retry_free`) | 900 | launch |
/// | any other error report | 900 | exit |
/// | signal from outside or from the hardware | 1000 | exit |
/// | SIGABRT: programs abort over their peers' failures as well | 800 | exit |
/// | SIGPIPE: the other end of a connection had gone | a victim | exit |
/// | unknown: whoever could have known went down as well | 850 | exit |
/// | any other exit code | 800 | exit |
///
/// Codes from 129 to 159 count as the signal that a shell says with them: a script around a program hides how it ended.
#[derive(Debug)]
pub struct ExitDetector {
    exact_within: Duration,
    /// Ends whose exact exit has not been told: at most one a role.
    deaths: BTreeMap<Role, Death>,
    /// When the first of them has waited long enough; may be early.
    due: Option<JobTime>,
}

/// An end as far as it is known before its exact exit.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Death {
    incarnation: Incarnation,
    how: Termination,
    since: JobTime,
    blamed: bool,
}

impl Default for ExitDetector {
    fn default() -> ExitDetector {
        ExitDetector::new()
    }
}

impl ExitDetector {
    /// A detector that waits up to 10 s for an exact exit.
    #[must_use]
    pub const fn new() -> ExitDetector {
        ExitDetector { exact_within: EXACT_WITHIN, deaths: BTreeMap::new(), due: None }
    }

    /// How long an end that may turn out to be harmless, or a consequence, waits for its exact exit. Then it is blamed
    /// with what is known.
    #[must_use]
    pub const fn with_exact_within(mut self, bound: Duration) -> ExitDetector {
        self.exact_within = bound;
        self
    }

    fn died(&mut self, role: &Role, incarnation: Incarnation, how: Termination, view: &View, out: &mut Findings) {
        if how.is_success() {
            return;
        }
        let death = Death { incarnation, how, since: view.now, blamed: matches!(how, Termination::Signal { .. }) };
        if death.blamed {
            blame(role, incarnation, &Exit::new(how), view.now, view, out);
        } else {
            self.due = self.due.or(Some(view.now + self.exact_within));
        }
        self.deaths.insert(role.clone(), death);
    }

    fn exited(&mut self, role: &Role, incarnation: Incarnation, exit: &Exit, view: &View, out: &mut Findings) {
        let death = self.deaths.remove(role).filter(|d| d.incarnation == incarnation);
        let since = death.as_ref().map_or(view.now, |d| d.since);
        let mut class = None;
        if !exit.how.is_success() {
            class = Some(blame(role, incarnation, exit, since, view, out));
        }
        // What was blamed before as something else is taken back only now: an incident that becomes empty is closed.
        if death.is_some_and(|d| d.blamed) && class != Some(FaultClass::Exit) {
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
        let (Signal::Phase(phase), Domain::Process(role)) = (&o.signal, &o.about) else { return };
        if !phase.is_over() {
            return;
        }
        let Some(proc) = unexpected(role, o.incarnation, view) else { return };
        match phase {
            Phase::Dead(how) => self.died(role, proc.incarnation, *how, view, out),
            Phase::Exited(exit) => self.exited(role, proc.incarnation, exit, view, out),
            Phase::Pending(_) | Phase::Running => {}
        }
    }

    fn deadline(&self) -> Option<JobTime> {
        self.due
    }

    fn expire(&mut self, view: &View, out: &mut Findings) {
        self.due = None;
        for (role, death) in self.deaths.iter_mut().filter(|(_, d)| !d.blamed) {
            let due = death.since + self.exact_within;
            if due > view.now {
                self.due = Some(self.due.map_or(due, |d| d.min(due)));
                continue;
            }
            death.blamed = true;
            if unexpected(role, Some(death.incarnation), view).is_some() {
                blame(role, death.incarnation, &Exit::new(death.how), death.since, view, out);
            }
        }
    }

    fn snapshot(&self) -> Option<Bytes> {
        saved::save(SNAPSHOT_VERSION, &(&self.deaths, self.due))
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), Malformed> {
        (self.deaths, self.due) = saved::load(SNAPSHOT_VERSION, saved)?;
        Ok(())
    }
}

/// The process of a role, if an end of this incarnation is one that nobody had asked for.
pub(super) fn unexpected<'a>(role: &Role, incarnation: Option<Incarnation>, view: &'a View) -> Option<&'a Proc> {
    view.proc(role).filter(|p| p.wanted && incarnation.is_none_or(|i| i == p.incarnation))
}

/// What an end says about its process.
#[derive(Debug, PartialEq)]
pub(super) struct Verdict {
    pub(super) class: FaultClass,
    pub(super) damage: Damage,
    pub(super) confidence_permille: u16,
    /// What the end means, where that does not go without saying.
    meaning: Option<&'static str>,
}

impl Verdict {
    /// Whether the end explains others, and is not explained by one of them.
    pub(super) const fn is_cause(&self) -> bool {
        self.confidence_permille >= Suspect::BLAME_PERMILLE_MIN
    }
}

/// Judges an end that was not asked for and was no success (see [`ExitDetector`] for the table).
pub(super) fn judge(how: Termination, error: Option<&ErrorReport>, do_not_restart_code: i32) -> Verdict {
    const VICTIM: u16 = 100;
    const RACE_LOST: Damage = Damage { process: Sound::No, state: Sound::No, device: Sound::Yes, program: Sound::Yes };
    let exit = |confidence_permille, meaning| Verdict {
        class: FaultClass::Exit,
        damage: Damage::PROCESS_GONE,
        confidence_permille,
        meaning,
    };
    if how == Termination::Code(do_not_restart_code) {
        let meaning = Some("with this code the script asks not to be restarted");
        let damage = Damage::PROGRAM_BROKEN;
        return Verdict { class: FaultClass::Program, damage, confidence_permille: 1000, meaning };
    }
    match error {
        Some(e) if e.follow_up => exit(VICTIM, Some("it reports a consequence of somebody else's failure")),
        Some(e) if e.retry_free => {
            let meaning = Some("a race at start-up was lost, trying again is free");
            Verdict { class: FaultClass::Launch, damage: RACE_LOST, confidence_permille: 900, meaning }
        }
        Some(_) => exit(900, None),
        None => match signal_of(how) {
            Some(SIGABRT) => exit(800, None),
            Some(SIGPIPE) => exit(VICTIM, Some("it wrote to a connection whose other end had gone")),
            Some(_) => exit(1000, None),
            None if how == Termination::Unknown => exit(850, None),
            None => exit(800, None),
        },
    }
}

// Linux numbers, equal on x86-64 and aarch64.
const SIGABRT: i32 = 6;
const SIGPIPE: i32 = 13;

/// The signal behind an end; a shell says it with an exit code above 128.
fn signal_of(how: Termination) -> Option<i32> {
    match how {
        Termination::Signal { number, .. } => Some(number),
        Termination::Code(code @ 129..160) => Some(code - 128),
        Termination::Code(_) | Termination::Unknown => None,
    }
}

/// Blames one end with everything that is known about it; gives the class it was blamed as.
fn blame(
    role: &Role,
    incarnation: Incarnation,
    exit: &Exit,
    since: JobTime,
    view: &View,
    out: &mut Findings,
) -> FaultClass {
    let verdict = judge(exit.how, exit.error.as_deref(), view.spec.policy.do_not_restart_code);
    let Verdict { class, damage, confidence_permille, meaning } = verdict;
    let suspect = Suspect { domain: Domain::Process(role.clone()), class: class.clone(), damage, confidence_permille };
    let meaning = meaning.map(|m| format!(" ({m})")).unwrap_or_default();
    let ended = Clue::text("ended", format!("{role}{incarnation} ended: {}{meaning}", exit.how));
    let mut fault =
        Fault::new(NAME, since, suspect).of(Some(incarnation)).with_error(exit.error.clone()).because(ended);
    if let Some(error) = &exit.error {
        let text = format!("{} {}: {}", error.family, error.code, one_line(&error.text));
        fault = fault.because(Clue::text("error", text));
    }
    let step = exit.step.or_else(|| view.proc(role).and_then(|p| p.step));
    fault = fault.because(match step {
        Some(step) => Clue::text("last_step", format!("last completed step {step}")),
        None => Clue::text("last_step", "no completed step was seen"),
    });
    if let Some(line) = exit.stderr_tail.lines().rev().find(|l| !l.trim().is_empty()) {
        fault = fault.because(Clue::text("stderr", format!("last line of stderr: {}", one_line(line))));
    }
    out.blame(fault);
    class
}

/// A foreign text in one line of bounded length.
pub(super) fn one_line(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if let Some((end, _)) = line.char_indices().nth(TEXT_CHARS_MAX) {
            line.truncate(end);
            line.push('…');
            break;
        }
    }
    line
}

#[cfg(test)]
mod tests;
