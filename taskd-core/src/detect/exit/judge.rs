//! What one end says: is it a cause or a consequence, how sure is that, and on which evidence.
//!
//! It never waits: it judges what is known now.

use super::NAME;
use crate::detect::{Clue, Damage, Fault, FaultClass, Findings, Sound, Suspect};
use crate::job::JobTime;
use crate::job::{Domain, ErrorReport, Exit, Name, ProcId, Termination, printable};
use crate::kernel::View;

/// Most characters of a text that a clue repeats.
pub(super) const TEXT_CHARS_MAX: usize = 300;

/// The clue of an end by an interrupt that came from outside of the job: it is no rank's doing.
pub(crate) const INTERRUPTED: &str = "interrupted";

/// The family of reports about what Linux has done to a process.
const KERNEL: Name = Name::new("kernel");

// Linux numbers, equal on x86-64 and aarch64.
const SIGABRT: i32 = 6;
const SIGPIPE: i32 = 13;

/// What an end says about its process.
#[derive(Debug, PartialEq)]
pub(in crate::detect) struct Verdict {
    pub(super) class: FaultClass,
    pub(super) damage: Damage,
    pub(super) confidence_permille: u16,
    /// What the end means, where that does not go without saying.
    meaning: Option<&'static str>,
}

/// The confidence of a consequence.
const VICTIM: u16 = 100;

/// What the error of a connection or of a peer says.
const POINTS_ELSEWHERE: &str = "it reports that a connection or another rank failed";

/// What the end of one of several interrupted ranks says.
const INTERRUPTED_TOGETHER: &str =
    "it was interrupted, and so were other ranks: the interrupt came from outside of the job";

impl Verdict {
    /// Of an interrupt that has reached several ranks.
    pub(super) fn interrupted_together() -> Verdict {
        Verdict {
            class: FaultClass::Exit,
            damage: Damage::PROCESS_GONE,
            confidence_permille: VICTIM,
            meaning: Some(INTERRUPTED_TOGETHER),
        }
    }

    /// Whether the end explains others, and is not explained by one of them.
    pub(in crate::detect) const fn is_cause(&self) -> bool {
        self.confidence_permille >= Suspect::BLAME_PERMILLE_MIN
    }
}

/// Judges an end that was not asked for and was no success (see [`ExitDetector`](super::ExitDetector) for the table).
///
/// `explained`: a cause is known already of which this end may be a consequence.
pub(in crate::detect) fn judge(
    how: Termination,
    error: Option<&ErrorReport>,
    explained: bool,
    do_not_restart_code: i32,
) -> Verdict {
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
        _ if how.is_interrupt(error) => {
            exit(if error.is_some() { 900 } else { 1000 }, Some("it was interrupted, and no other rank has ended so"))
        }
        Some(e) if e.follow_up => exit(VICTIM, Some(POINTS_ELSEWHERE)),
        Some(e) if e.retry_free => {
            let meaning = Some("a race at start-up was lost, trying again is free");
            Verdict { class: FaultClass::Launch, damage: RACE_LOST, confidence_permille: 900, meaning }
        }
        Some(e) if e.family == KERNEL => exit(1000, None), // it has killed the process, and says why
        Some(_) => exit(900, None),
        None => match signal_of(how) {
            Some(SIGPIPE) => exit(VICTIM, Some("it wrote to a connection whose other end had gone")),
            Some(signal) if signal != SIGABRT => exit(1000, None),
            None if how == Termination::Unknown => exit(850, None),
            _ if explained => exit(400, Some("most likely a consequence of what failed before it")),
            _ => exit(800, None),
        },
    }
}

/// What the end of a process says whose guard went while it ran: Linux kills it then, or it fails for want of whoever takes its output.
pub(super) const fn with_its_guard() -> Verdict {
    Verdict {
        class: FaultClass::Exit,
        damage: Damage::PROCESS_GONE,
        confidence_permille: 100,
        meaning: Some("it ended with the guard of its host"),
    }
}

/// The signal behind an end; a shell says it with an exit code above 128.
fn signal_of(how: Termination) -> Option<i32> {
    match how {
        Termination::Signal { number, .. } => Some(number),
        Termination::Code(code @ 129..160) => Some(code - 128),
        Termination::Code(_) | Termination::Unknown => None,
    }
}

/// Blames one end, as judged, with everything that is known about it.
pub(super) fn blame(proc: &ProcId, exit: &Exit, since: JobTime, verdict: &Verdict, view: &View, out: &mut Findings) {
    let Verdict { class, damage, confidence_permille, meaning } = verdict;
    let domain = Domain::Process(proc.role.clone());
    let (class, damage, confidence_permille) = (class.clone(), *damage, *confidence_permille);
    let suspect = Suspect { domain, class, damage, confidence_permille };
    let what = if *meaning == Some(INTERRUPTED_TOGETHER) { INTERRUPTED } else { "ended" };
    let meaning = meaning.map(|m| format!(" ({m})")).unwrap_or_default();
    let is_over = view.proc(&proc.role).is_none_or(|known| known.phase.is_over());
    let end = match is_over {
        true => Clue::text(what, format!("{proc} ended: {}{meaning}", exit.how)),
        false => Clue::text("recorded", format!("{proc} has recorded its failure, and does not end{meaning}")),
    };
    let mut fault =
        Fault::new(NAME, since, suspect).of(Some(proc.incarnation)).with_error(exit.error.clone()).because(end);
    if let Some(error) = &exit.error {
        let text = format!("{} {}: {}", error.family, error.code, one_line(&error.text));
        fault = fault.because(Clue::text("error", text));
    }
    let step = exit.step.or_else(|| view.proc(&proc.role).and_then(|p| p.step));
    fault = fault.because(match step {
        Some(step) => Clue::text("last_step", format!("last step seen: {step}")),
        None => Clue::text("last_step", "no completed step was seen"),
    });
    // What the helper logs while a program trains is older than the end, and does not explain it.
    let explains = |line: &&str| step.is_none() || !line.starts_with(HELPER_SAYS);
    if let Some(line) = last_line(exit).filter(explains) {
        fault = fault.because(Clue::text("stderr", format!("last line of stderr: {}", one_line(line))));
    }
    out.blame(fault);
}

/// What the helper in a rank says on stderr begins so.
const HELPER_SAYS: &str = "taskd: ";

/// The last line of what a process wrote to stderr that is not empty: of the program's own, if it wrote any.
pub(in crate::detect) fn last_line(exit: &Exit) -> Option<&str> {
    let mut lines = exit.stderr_tail.split(['\n', '\r']).rev().filter(|line| !line.trim().is_empty());
    let last = lines.clone().next();
    lines.find(|line| !line.starts_with(HELPER_SAYS)).or(last)
}

/// A foreign text in one line of bounded length.
pub(in crate::detect) fn one_line(text: &str) -> String {
    let mut line = String::new();
    for word in printable(text).split_whitespace() {
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
