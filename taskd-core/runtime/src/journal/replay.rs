//! Replay of the logs through a kernel: the same inputs must give the same commands, byte for byte.
//!
//! The replay never reconstructs missing inputs. It cannot follow the kernel across them; it reports the break and
//! continues from the next known state.
//!
//! A kernel's state is known at its first input, at every snapshot that contains the states of all detectors, and where
//! a supervisor took over. There the replay rebuilds the state in the same way as that supervisor, from the same
//! snapshot and the same steps, so it is exact even with detectors that start cold.

use super::error::Problems;
use super::form;
use super::history::{History, Life};
use super::{Difference, Entry, JournalError, MissingInputs, Problem, Step};
use crate::job::{JobTime, Name, Seq};
use crate::kernel::text;
use crate::kernel::{Command, Kernel, Plugins, RestoreError, Snapshot};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Most characters printed of two commands that differ only in detail.
const DETAIL_CHARS_MAX: usize = 2000;

/// Maximum number of breaks in the log (ranges of inputs without a record) that a [`ReplayReport`] lists.
pub const MISSING_MAX: usize = 100;

/// Point in a job's logs at which a replay starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayFrom {
    /// The replay starts at the decision kernel's first input. If the logs lack this input, the replay reports it as
    /// missing and continues as with `Snapshot`.
    Start,
    /// The replay starts at the oldest snapshot of the decision kernel that contains the state of all detectors.
    Snapshot,
}

/// A step of the decision kernel whose commands in a replay differ from those in the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Divergence {
    /// Number of the input that the step processed.
    pub seq: Seq,
    /// Job time at which the step was processed.
    pub now: JobTime,
    /// Input of the step, as one line of text.
    pub input: String,
    /// Commands that the log contains for the step.
    pub logged: Vec<Command>,
    /// Commands that the replay gave for the step.
    pub replayed: Vec<Command>,
}

/// Result of replaying a job's log through a new decision kernel.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ReplayReport {
    /// Number of steps that were replayed.
    pub steps: u64,
    /// Number of steps whose commands were compared with the log.
    pub compared: u64,
    /// Number of the input of the last replayed step.
    pub upto: Seq,
    /// The first step whose commands differ from the log. The replay ends there, because later steps would start from
    /// another state.
    pub first_difference: Option<Divergence>,
    /// The first [`MISSING_MAX`] ranges of inputs that the log lacks, so that the replay could not follow the decision
    /// kernel's state across them.
    pub missing: Vec<MissingInputs>,
    /// Total number of ranges of inputs that the log lacks, so that the replay could not follow the decision kernel's
    /// state across them. It includes ranges beyond the limit of `missing`.
    pub breaks: u64,
    /// Differences between the plugins of the replay and those with which the log was written.
    pub differences: Vec<Difference>,
    /// Problems of the log files that were read.
    pub problems: Vec<Problem>,
}

/// Replays the inputs of the latest life in `dir` (a chain of supervisor starts, each of which continued from the
/// previous one) through a new decision kernel, and compares its commands with the log. `plugins` is called for
/// every kernel that is built, and must return new plugins each time.
///
/// # Errors
/// Returns [`JournalError`] if there is no readable log. A damaged, torn or incomplete log is not an error: it is read
/// as far as possible, and the report describes the problems.
pub fn replay(
    dir: &Path,
    from: ReplayFrom,
    mut plugins: impl FnMut() -> Plugins,
) -> Result<ReplayReport, JournalError> {
    let history = History::open(dir)?;
    let life = history.latest_in(dir)?;
    let mut report = follow(life, from, &mut plugins, &mut |_| ());
    report.differences = differences(life, &plugins());
    report.problems.splice(0..0, history.problems().iter().cloned());
    Ok(report)
}

/// Notification to an observer of a replay.
pub(super) enum Moment<'a> {
    /// The kernel is about to process a step.
    Before(&'a Kernel, &'a Step),
    /// The kernel has processed the step.
    After(&'a Kernel, &'a Step),
    /// The replay starts, or continues after a break, from a known state.
    Resumed(&'a Kernel),
}

/// Follows the kernel of a life through the log.
pub(super) fn follow(
    life: &Life,
    from: ReplayFrom,
    plugins: &mut dyn FnMut() -> Plugins,
    show: &mut dyn FnMut(Moment<'_>),
) -> ReplayReport {
    let report = ReplayReport::default();
    let problems = Problems::default();
    let mut replay = Replay { life, takeovers: life.takeovers(), plugins, report, problems, from: Seq(0) };
    let mut kernel = match from {
        ReplayFrom::Start => Some(Kernel::new((replay.plugins)())),
        ReplayFrom::Snapshot => replay.next_known_state().or_else(|| Some(Kernel::new((replay.plugins)()))),
    };
    while let Some(known) = kernel {
        replay.from = known.seq();
        show(Moment::Resumed(&known));
        kernel = match replay.run(known, show) {
            End::OfLog | End::Diverged => None,
            End::Missing => replay.next_known_state(),
        };
    }
    ReplayReport { problems: replay.problems.as_slice().to_vec(), ..replay.report }
}

/// Returns the differences between plugins and those with which the starts of a life were logged.
pub(super) fn differences(life: &Life, plugins: &Plugins) -> Vec<Difference> {
    let mut differences = Vec::new();
    for difference in life.starts().flat_map(|(_, _, header)| header.differences_in_replay(plugins)) {
        if !differences.contains(&difference) {
            differences.push(difference);
        }
    }
    differences
}

struct Replay<'a> {
    life: &'a Life,
    takeovers: BTreeMap<Seq, Option<Seq>>,
    plugins: &'a mut dyn FnMut() -> Plugins,
    report: ReplayReport,
    problems: Problems,
    /// Number of the last input in the current known state. After a break, the last input that the next state must
    /// contain.
    from: Seq,
}

enum End {
    OfLog,
    Missing,
    Diverged,
}

impl Replay<'_> {
    /// Follows a kernel until the log ends, inputs are missing, or a step differs.
    fn run(&mut self, mut kernel: Kernel, show: &mut dyn FnMut(Moment<'_>)) -> End {
        let mut steps = self.life.steps(kernel.seq());
        let end = steps.by_ref().try_for_each(|entry| self.one(&mut kernel, entry, show)).err();
        self.problems.extend(&steps.all_problems());
        end.unwrap_or(End::OfLog)
    }

    fn one(&mut self, kernel: &mut Kernel, entry: Entry, show: &mut dyn FnMut(Moment<'_>)) -> Result<(), End> {
        let step = match entry {
            Entry::Step(step @ Step { input: Some(_), .. }) => step,
            Entry::Step(Step { seq, .. }) => return Err(self.broken(seq, seq, "its observations are not in the log")),
            Entry::Missing(MissingInputs { from, to, why }) => return Err(self.broken(from, to, &why)),
        };
        self.take_over(kernel, step.seq)?;
        show(Moment::Before(kernel, &step));
        let divergence = take(kernel, &step);
        show(Moment::After(kernel, &step));
        self.report.steps += 1;
        self.report.compared += u64::from(step.commands.is_some());
        self.report.upto = step.seq;
        self.report.first_difference = divergence;
        if self.report.first_difference.is_some() { Err(End::Diverged) } else { Ok(()) }
    }

    /// Replaces the kernel before the step `next`, if a supervisor continued there with a state that it had rebuilt.
    fn take_over(&mut self, kernel: &mut Kernel, next: Seq) -> Result<(), End> {
        let after = kernel.seq();
        let Some(Some(base)) = self.takeovers.get(&after).copied() else { return Ok(()) };
        match self.taken_over(base, after) {
            Some(rebuilt) => *kernel = rebuilt,
            None if kernel.snapshot().is_complete() => {} // a complete state does not depend on how it was reached
            None => {
                let why = format!("the snapshot of {base}, from which this start continued, is missing");
                return Err(self.broken(next, next, &why));
            }
        }
        Ok(())
    }

    fn broken(&mut self, from: Seq, to: Seq, why: &str) -> End {
        self.from = to;
        self.report.breaks += 1;
        if self.report.missing.len() < MISSING_MAX {
            self.report.missing.push(MissingInputs { from, to, why: why.to_owned() });
        }
        End::Missing
    }

    /// Returns a kernel in the first known state at or after `from`.
    fn next_known_state(&mut self) -> Option<Kernel> {
        let from = self.from;
        let snapshots = self.life.snapshots().filter(|seq| *seq >= from).map(|seq| (seq, None));
        let takeovers = self.takeovers.iter().filter_map(|(after, base)| Some((*after, Some((*base)?))));
        let mut places: Vec<_> = snapshots.chain(takeovers.filter(|(after, _)| *after >= from)).collect();
        places.sort_unstable();
        places.into_iter().find_map(|(seq, base)| match base {
            Some(base) => self.taken_over(base, seq),
            None => {
                let snapshot = self.life.snapshot(seq).ok().flatten().filter(Snapshot::is_complete)?;
                Kernel::restore((self.plugins)(), &snapshot).ok().map(|(kernel, _)| kernel)
            }
        })
    }

    /// Rebuilds the state with which a supervisor continued after this input, in the same way.
    fn taken_over(&mut self, base: Seq, after: Seq) -> Option<Kernel> {
        let snapshot = self.life.snapshot(base).ok().flatten()?;
        let steps = self.life.steps(base).map_while(|entry| match entry {
            Entry::Step(step) => Some(step),
            Entry::Missing(_) => None,
        });
        let rebuilt = rebuild((self.plugins)(), Some(&snapshot), steps.take_while(|s| s.seq <= after)).ok()?;
        (rebuilt.kernel.seq() == after).then_some(rebuilt.kernel)
    }
}

/// Result of [`Recovered::resume`](super::Recovered::resume): the decision kernel, rebuilt in the state that a log
/// records.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rebuilt {
    /// The rebuilt decision kernel, ready for its next [`Input::Start`](crate::kernel::Input::Start).
    pub kernel: Kernel,
    /// Names of the detectors that start without state, because the snapshot contains no state of these detectors.
    pub cold: Vec<Name>,
    /// The first step after the snapshot whose replayed commands differ from those in the log. The supervisor has
    /// carried out the logged commands. The rebuilt kernel may not know of them, and learns their effect from its
    /// launcher's first listing of processes.
    pub divergence: Option<Divergence>,
}

/// Restores a snapshot and replays the steps after it. On an error, the plugins are returned.
pub(super) fn rebuild(
    plugins: Plugins,
    snapshot: Option<&Snapshot>,
    steps: impl Iterator<Item = Step>,
) -> Result<Rebuilt, (RestoreError, Plugins)> {
    let (mut kernel, cold) = match snapshot {
        Some(snapshot) => Kernel::restore(plugins, snapshot)?,
        None => (Kernel::new(plugins), Vec::new()),
    };
    let mut divergence = None;
    for step in steps {
        let came_out = take(&mut kernel, &step);
        divergence = divergence.or(came_out);
    }
    Ok(Rebuilt { kernel, cold, divergence })
}

/// Replays a step. Returns the divergence if its commands differ from the log.
fn take(kernel: &mut Kernel, step: &Step) -> Option<Divergence> {
    let input = step.input.as_ref()?;
    let replayed = kernel.step(step.now, input);
    let logged = step.commands.as_ref()?;
    if logged.is_empty() && replayed.is_empty() {
        return None;
    }
    (!form::same(logged, &replayed)).then(|| Divergence {
        seq: step.seq,
        now: step.now,
        input: text::input(input),
        logged: logged.clone(),
        replayed,
    })
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Divergence { seq, now, input, logged, replayed } = self;
        writeln!(f, "{seq} at {now} differs from the log: {input}")?;
        for (title, commands) in [("logged", logged), ("replayed", replayed)] {
            writeln!(f, "  {title}: {} commands", commands.len())?;
            commands.iter().try_for_each(|c| writeln!(f, "    {}", text::command(c)))?;
        }
        let same_lines = logged.iter().map(text::command).eq(replayed.iter().map(text::command));
        let differing = logged.iter().zip(replayed).find(|(old, new)| format!("{old:?}") != format!("{new:?}"));
        if let (true, Some((old, new))) = (same_lines, differing) {
            let short = |c: &Command| format!("{c:?}").chars().take(DETAIL_CHARS_MAX).collect::<String>();
            writeln!(f, "  in detail, logged:   {}\n  in detail, replayed: {}", short(old), short(new))?;
        }
        Ok(())
    }
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReplayReport { steps, compared, upto, first_difference, missing, breaks, differences, problems } = self;
        writeln!(f, "{steps} steps replayed up to {upto}, {compared} of them compared")?;
        differences.iter().try_for_each(|d| writeln!(f, "{d}"))?;
        problems.iter().try_for_each(|p| writeln!(f, "{p}"))?;
        missing.iter().try_for_each(|m| writeln!(f, "{m}"))?;
        if *breaks > missing.len() as u64 {
            writeln!(f, "and {} more breaks", breaks - missing.len() as u64)?;
        }
        match first_difference {
            Some(divergence) => divergence.fmt(f),
            None => writeln!(f, "the commands are the same"),
        }
    }
}
