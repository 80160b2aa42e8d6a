//! Judges one end: cause or consequence, with which confidence, and on which evidence.
//!
//! The functions never wait: they judge what is known now.

use super::NAME;
use crate::detect::{Damage, Evidence, Fault, FaultClass, Findings, Health, Suspect};
use crate::job::JobTime;
use crate::job::{Domain, ErrorReport, Exit, Name, ProcId, Termination, printable};
use crate::state::View;

/// Maximum length of foreign text in evidence, in characters.
pub(super) const TEXT_CHARS_MAX: usize = 300;

/// Name of the evidence for an interrupt from outside of the job, which no rank caused.
pub(crate) const INTERRUPTED: &str = "interrupted";

/// Family of error reports about what Linux did to a process.
const KERNEL: Name = Name::new("kernel");

// Signal numbers of Linux, equal on x86-64 and aarch64.
const SIGABRT: i32 = 6;
const SIGPIPE: i32 = 13;

/// The judgement of one end.
#[derive(Debug, PartialEq)]
pub(in crate::detect) struct Verdict {
    pub(super) class: FaultClass,
    pub(super) damage: Damage,
    pub(super) confidence_permille: u16,
    /// Explanation of the process's end, for the text of the evidence, if the end does not explain itself.
    meaning: Option<&'static str>,
}

/// Confidence of a consequence.
const VICTIM: u16 = 100;

/// Explanation for the error of a connection or a peer.
const POINTS_ELSEWHERE: &str = "it reports that a connection or another rank failed";

/// Explanation of the exit of a process that its host has stopped because its lease was over.
const FENCED: &str = "its host had no contact to a manager in time, and stopped its processes; it starts again";

/// Explanation for the end of one of several interrupted ranks.
const INTERRUPTED_TOGETHER: &str = "interrupted together with other ranks: the interrupt came from outside the job";

impl Verdict {
    /// The verdict for an interrupt that reached several ranks.
    pub(super) fn interrupted_together() -> Verdict {
        Verdict {
            class: FaultClass::Exit,
            damage: Damage::PROCESS_GONE,
            confidence_permille: VICTIM,
            meaning: Some(INTERRUPTED_TOGETHER),
        }
    }

    /// Returns true if the end explains others and is not explained by one of them.
    pub(in crate::detect) const fn is_cause(&self) -> bool {
        self.confidence_permille >= Suspect::BLAME_PERMILLE_MIN
    }
}

/// Judges an end that was not requested and was not a success (see [`ExitDetector`](super::ExitDetector) for the
/// table).
///
/// `explained`: a cause is known already of which this end may be a consequence.
pub(in crate::detect) fn judge(
    how: Termination,
    error: Option<&ErrorReport>,
    explained: bool,
    no_restart_exit_code: i32,
) -> Verdict {
    const RACE_LOST: Damage =
        Damage { process: Health::Faulty, state: Health::Faulty, device: Health::Healthy, program: Health::Healthy };
    let exit = |confidence_permille, meaning| Verdict {
        class: FaultClass::Exit,
        damage: Damage::PROCESS_GONE,
        confidence_permille,
        meaning,
    };
    if how == Termination::Code(no_restart_exit_code) {
        let meaning = Some("the script requests no restart with this exit code");
        let damage = Damage::PROGRAM_BROKEN;
        return Verdict { class: FaultClass::Program, damage, confidence_permille: 1000, meaning };
    }
    match error {
        _ if how.is_interrupt(error) => {
            exit(if error.is_some() { 900 } else { 1000 }, Some("interrupted, and no other rank was interrupted"))
        }
        Some(e) if e.is_fence() => exit(VICTIM, Some(FENCED)),
        Some(e) if e.follow_up => exit(VICTIM, Some(POINTS_ELSEWHERE)),
        Some(e) if e.retry_free => {
            let meaning = Some("lost a race at start-up, a retry costs nothing");
            Verdict { class: FaultClass::Launch, damage: RACE_LOST, confidence_permille: 900, meaning }
        }
        Some(e) if e.family == KERNEL => exit(1000, None), // the kernel killed it, and reports why
        Some(_) => exit(900, None),
        None => match signal_of(how) {
            Some(SIGPIPE) => exit(VICTIM, Some("it wrote to a connection that its peer had closed")),
            Some(signal) if signal != SIGABRT => exit(1000, None),
            None if how == Termination::Unknown => exit(850, None),
            _ if explained => exit(400, Some("most likely a consequence of an earlier failure")),
            _ => exit(800, None),
        },
    }
}

/// The verdict for a process whose guard ended while it ran: Linux kills the process then, or it fails because its
/// output is no longer read.
pub(super) const fn with_its_guard() -> Verdict {
    Verdict {
        class: FaultClass::Exit,
        damage: Damage::PROCESS_GONE,
        confidence_permille: 100,
        meaning: Some("it ended with the guard of its host"),
    }
}

/// Returns the number of the signal that ended a process; a shell encodes it as an exit code above 128.
fn signal_of(how: Termination) -> Option<i32> {
    match how {
        Termination::Signal { number, .. } => Some(number),
        Termination::Code(code @ 129..160) => Some(code - 128),
        Termination::Code(_) | Termination::Unknown => None,
    }
}

/// Blames one end with its verdict and everything that is known about it.
pub(super) fn blame(proc: &ProcId, exit: &Exit, since: JobTime, verdict: &Verdict, view: &View, out: &mut Findings) {
    let Verdict { class, damage, confidence_permille, meaning } = verdict;
    let domain = Domain::Process(proc.role.clone());
    let (class, damage, confidence_permille) = (class.clone(), *damage, *confidence_permille);
    let suspect = Suspect { domain, class, damage, confidence_permille };
    let what = if *meaning == Some(INTERRUPTED_TOGETHER) { INTERRUPTED } else { "ended" };
    let meaning = meaning.map(|m| format!(" ({m})")).unwrap_or_default();
    let is_over = view.proc(&proc.role).is_none_or(|known| known.phase.is_over());
    let end = match is_over {
        true => Evidence::text(what, format!("{proc} ended: {}{meaning}", exit.how)),
        false => Evidence::text("recorded", format!("{proc} has recorded its failure and is still running{meaning}")),
    };
    let mut fault = Fault::new(NAME, since, suspect)
        .with_incarnation(Some(proc.incarnation))
        .with_error(exit.error.clone())
        .with_evidence(end);
    if let Some(error) = &exit.error {
        let text = format!("{} {}: {}", error.family, error.code, one_line(&error.text));
        fault = fault.with_evidence(Evidence::text("error", text));
    }
    let step = exit.step.or_else(|| view.proc(&proc.role).and_then(|p| p.step));
    fault = fault.with_evidence(match step {
        Some(step) => Evidence::text("last_step", format!("last step seen: {step}")),
        None => Evidence::text("last_step", "no completed step was seen"),
    });
    // Lines of the helper from before the end do not explain the end of a program that has trained.
    let explains = |line: &&str| step.is_none() || !line.starts_with(HELPER_SAYS);
    if let Some(line) = last_line(exit).filter(explains) {
        fault = fault.with_evidence(Evidence::text("stderr", format!("last line of stderr: {}", one_line(line))));
    }
    out.blame(fault);
}

/// Prefix of the lines that the helper in a rank writes to stderr.
const HELPER_SAYS: &str = "taskd: ";

/// Returns the last line of stderr that is not empty, preferably one of the program and not of the helper.
pub(in crate::detect) fn last_line(exit: &Exit) -> Option<&str> {
    let mut lines = exit.stderr_tail.split(['\n', '\r']).rev().filter(|line| !line.trim().is_empty());
    let last = lines.clone().next();
    lines.find(|line| !line.starts_with(HELPER_SAYS)).or(last)
}

/// Converts foreign text into one line of bounded length.
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
