//! Known error lines of frameworks, communication libraries, drivers and Linux: what they mean, and where the cause
//! lies.
//!
//! The lines are a table ([`LogTable`]), not code. Whether an error is a consequence of another failure
//! ([`ErrorReport::follow_up`]) is decided by the framework's crate, and this detector never contradicts it.

mod pattern;
mod table;

pub use table::{
    Blame, Harm, Known, LogPattern, LogTable, LogTableError, PATTERN_BYTES_MAX, PATTERNS_MAX, TABLE_BYTES_MAX,
};

use super::{Damage, Evidence, Fault, FaultClass, FaultDetector, Findings, Suspect, saved};
use crate::job::{Domain, ErrorReport, Generation, Incarnation, Name, Rank, Role};
use crate::state::{Phase, View};
use crate::trace::{DecodeError, Observation, Signal};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

const NAME: Name = Name::new("log-pattern");
const SNAPSHOT_VERSION: u8 = 1;

/// Maximum number of bytes of a line that are searched. The rest of the line is ignored, and counted.
pub const LINE_BYTES_MAX: usize = 4096;

/// Maximum number of lines of one report that are searched: the last ones. Earlier ones are ignored, and counted.
pub const LINES_MAX: usize = 64;

/// Maximum number of pairs of a process and an entry that are remembered as reported in a generation. Above it, further
/// lines are not reported, and counted.
pub const REPORTED_MAX: usize = 4096;

/// Reports known error lines with their meaning, and blames what they show to be faulty.
///
/// # Lines
/// The detector searches the text of errors that are reported about a process ([`Signal::Error`]), that a process has
/// recorded before its end ([`Signal::FailureRecorded`]), and that are known of an ended process: its error report, or,
/// without one, the end of its standard error. Of several known lines of one failure, the one with the first entry
/// in the table decides: the built-in table lists causes before consequences.
///
/// # Findings
/// | the line | of a process that has failed | of a process that continues |
/// |---|---|---|
/// | shows the cause in the reporter, its device, its host, or a rank that it names | a fault of that domain with the entry's class, damage and confidence | a note; the fault, if the entry is `live` |
/// | shows that a peer failed first | a fault in which the process is a victim: the [exit detector](super::ExitDetector) then does not blame it | a note |
/// | does not show where the cause lies | a note | a note |
///
/// If the framework's crate states that an error is a consequence of another failure ([`ErrorReport::follow_up`]), the
/// process that reports it, its device and its host are not blamed. Each entry is reported once for each process.
///
/// This detector is not among the [`defaults`](super::defaults). Register it before the exit detector.
#[derive(Debug)]
pub struct LogPatternDetector {
    table: LogTable,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    generation: Generation,
    /// Processes and entries that were reported in this generation.
    reported: BTreeSet<(Domain, Option<Incarnation>, Name)>,
    counts: LogCounts,
}

/// Counters of what the detector ignored at its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCounts {
    /// Number of lines of which only the first [`LINE_BYTES_MAX`] bytes were searched.
    pub cut: u64,
    /// Number of lines that were not searched, because a report had more than [`LINES_MAX`].
    pub skipped: u64,
    /// Number of known lines that were not reported, because [`REPORTED_MAX`] was reached.
    pub unreported: u64,
}

/// A failure or an error, as the detector looks at it.
struct Report<'a> {
    about: &'a Domain,
    incarnation: Option<Incarnation>,
    error: Option<&'a ErrorReport>,
    stderr_tail: &'a str,
    /// True if the process has failed.
    has_failed: bool,
}

impl Default for LogPatternDetector {
    fn default() -> LogPatternDetector {
        LogPatternDetector::new(LogTable::built_in())
    }
}

impl LogPatternDetector {
    /// Creates the detector with this table. The default is the built-in table.
    #[must_use]
    pub fn new(table: LogTable) -> LogPatternDetector {
        LogPatternDetector { table, state: State::default() }
    }

    /// Returns the counters of what was ignored at a limit.
    #[must_use]
    pub const fn counts(&self) -> LogCounts {
        self.state.counts
    }

    fn report(&mut self, report: &Report<'_>, view: &View, out: &mut Findings) {
        let Some((known, line)) = decisive(&self.table, report, &mut self.state.counts) else { return };
        let state = &mut self.state;
        if state.generation != view.world.generation() {
            state.generation = view.world.generation();
            state.reported.clear();
        }
        if state.reported.len() >= REPORTED_MAX {
            state.counts.unreported = state.counts.unreported.saturating_add(1);
            return;
        }
        if !state.reported.insert((report.about.clone(), report.incarnation, known.pattern.id.clone())) {
            return;
        }
        let evidence = [
            Evidence::text("log_line", format!("{}: {}", known.pattern.id, super::exit::one_line(&line))),
            Evidence::text("log_advice", known.pattern.advice.clone()),
        ];
        let evidence = evidence.into_iter().filter(|evidence| !evidence.text.is_empty());
        match suspect(&known, report, view) {
            Some(suspect) => {
                let of = view.proc_of(&suspect.domain).map(|proc| proc.incarnation);
                let fault = Fault::new(NAME, view.now, suspect).with_incarnation(of);
                let fault = fault.with_error(report.error.cloned().map(Box::new));
                out.blame(evidence.fold(fault, Fault::with_evidence));
            }
            None => evidence.for_each(|evidence| out.note(report.about.clone(), evidence)),
        }
    }
}

/// Returns the known line that decides, with its entry.
fn decisive<'a>(table: &'a LogTable, report: &Report<'_>, counts: &mut LogCounts) -> Option<(Known<'a>, String)> {
    let text = report.error.map_or(report.stderr_tail, |error| error.text.as_str());
    let lines: Vec<&str> = text.split(['\n', '\r']).filter(|line| !line.trim().is_empty()).collect();
    let skipped = lines.len().saturating_sub(LINES_MAX);
    counts.skipped = counts.skipped.saturating_add(skipped as u64);
    let mut best: Option<(Known<'_>, &str)> = None;
    for line in lines.into_iter().skip(skipped) {
        let searched = beginning(line);
        counts.cut = counts.cut.saturating_add(u64::from(searched.len() < line.len()));
        if let Some(known) = table.find(searched)
            && best.as_ref().is_none_or(|(before, _)| known.priority < before.priority)
        {
            best = Some((known, searched));
        }
    }
    best.map(|(known, line)| (known, line.to_owned()))
}

/// Returns the part of a line that is searched.
fn beginning(line: &str) -> &str {
    let mut end = line.len().min(LINE_BYTES_MAX);
    while !line.is_char_boundary(end) {
        end -= 1; // a character has at most four bytes
    }
    &line[..end]
}

/// Returns the suspect that a known line shows; `None` if the line is only noted.
fn suspect(known: &Known<'_>, report: &Report<'_>, view: &View) -> Option<Suspect> {
    let pattern = known.pattern;
    let is_consequence = report.error.is_some_and(|error| error.follow_up);
    let victim = || {
        let suspect = Suspect::victim(report.about.clone(), FaultClass::Exit, Damage::PROCESS_GONE);
        report.has_failed.then_some(suspect)
    };
    let domain = match pattern.blame {
        Blame::Unknown => return None,
        Blame::Peer => return victim(),
        Blame::Named => {
            let named = known.rank.map(Rank).filter(|rank| view.world.members().contains_key(rank));
            match named.map(|rank| Domain::Process(Role::Rank(rank))).filter(|named| named != report.about) {
                Some(named) if view.proc_of(&named).is_some_and(|proc| !proc.phase.is_over()) => named,
                _ => return victim(), // the failure of that rank is reported by other detectors
            }
        }
        _ if is_consequence => return victim(),
        Blame::Reporter => report.about.clone(),
        Blame::Device => {
            report.about_rank().and_then(|rank| view.device_of(rank)).unwrap_or_else(|| report.about.clone())
        }
        Blame::Host => Domain::Node(view.node_of(report.about)?.clone()),
    };
    if !report.has_failed && !pattern.live {
        return None;
    }
    let damage = match pattern.blame {
        Blame::Named => Damage::default(), // the line shows only that this rank is missing
        _ => pattern.damage.damage(),
    };
    Some(Suspect::new(domain, known.class.clone(), damage, pattern.confidence_permille))
}

impl Report<'_> {
    fn about_rank(&self) -> Option<Rank> {
        match self.about {
            Domain::Process(role) => role.rank(),
            _ => None,
        }
    }
}

impl FaultDetector for LogPatternDetector {
    fn name(&self) -> Name {
        NAME
    }

    fn config(&self) -> String {
        format!("patterns={} table={:016x}", self.table.patterns().count(), self.table.checksum())
    }

    fn observe(&mut self, o: &Observation, view: &View, out: &mut Findings) {
        let (error, stderr_tail, has_failed) = match &o.signal {
            Signal::Error(error) => (Some(error.as_ref()), "", false),
            Signal::FailureRecorded(error) => (Some(error.as_ref()), "", true),
            Signal::Phase(Phase::Exited(exit)) if !exit.how.is_success() => {
                (exit.error.as_deref(), exit.stderr_tail.as_str(), true)
            }
            _ => return,
        };
        if has_failed
            && let Domain::Process(role) = &o.about
            && super::exit::unexpected(role, o.incarnation, view).is_none()
        {
            return; // its end was requested
        }
        let known = view.proc_of(&o.about).map(|proc| proc.incarnation);
        let incarnation = o.incarnation.or(known);
        self.report(&Report { about: &o.about, incarnation, error, stderr_tail, has_failed }, view, out);
    }

    fn snapshot(&self) -> Option<Bytes> {
        saved::save(SNAPSHOT_VERSION, &self.state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), DecodeError> {
        self.state = saved::load(SNAPSHOT_VERSION, saved)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
