//! The logs once more through a kernel: the same inputs must give the same commands, byte for byte.
//!
//! It never repairs what is missing. Where inputs are gone a kernel cannot be followed; the replay says so and goes on
//! from the next state that is known for certain.
//!
//! A kernel's state is known for certain at its first input, at every snapshot that holds all detectors' states, and
//! where a supervisor took over: a replay rebuilds the state there in just the way in which that supervisor did, from
//! the same snapshot and the same steps, so it is exact also with detectors that start cold.

use super::error::Problems;
use super::form;
use super::history::{History, Life};
use super::{Difference, Entry, JournalError, Missing, Problem, Step, text};
use crate::job::{JobTime, Name, Seq};
use crate::kernel::{Command, Kernel, Plugins, RestoreError, Snapshot};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Longest print of two commands that differ only in detail, in characters.
const DETAIL_CHARS_MAX: usize = 2000;

/// Most places that a report names at which a kernel could not be followed.
pub const MISSING_MAX: usize = 100;

/// From where a replay follows a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayFrom {
    /// From the kernel's first input. Where that is not in the logs any more the replay says so and goes on as from
    /// `Snapshot`.
    Start,
    /// From the oldest state that was saved with all its detectors.
    Snapshot,
}

/// A step that did not come out as it stands in the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Divergence {
    /// Which.
    pub seq: Seq,
    /// When it was.
    pub now: JobTime,
    /// What the kernel was told, in one line.
    pub input: String,
    /// What it commanded then.
    pub logged: Vec<Command>,
    /// What it commands now.
    pub replayed: Vec<Command>,
}

/// What a replay found.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ReplayReport {
    /// Steps that were taken again.
    pub steps: u64,
    /// Steps whose commands were compared with those in the log.
    pub compared: u64,
    /// The last step that was taken.
    pub upto: Seq,
    /// The first step that came out otherwise. The replay ends there: what follows would rest on another state.
    pub first_difference: Option<Divergence>,
    /// Where the kernel could not be followed: at most the first [`MISSING_MAX`] of them.
    pub missing: Vec<Missing>,
    /// How many there were in all.
    pub breaks: u64,
    /// In what the plugins differ from those that the log was written with.
    pub differences: Vec<Difference>,
    /// What is wrong with the files.
    pub problems: Vec<Problem>,
}

/// Runs the latest life in `dir` through a new kernel. `plugins` is asked for fresh plugins whenever a kernel is built.
///
/// # Errors
/// [`JournalError`] when there is no log that can be read. A log that is damaged, cut or incomplete is no error: it is
/// read as far as it goes, which the report says.
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

/// What a follower of a replay sees.
pub(super) enum Moment<'a> {
    /// The kernel is about to take a step.
    Before(&'a Kernel, &'a Step),
    /// It has taken it.
    After(&'a Kernel, &'a Step),
    /// It could not be followed for a while, and goes on from a known state.
    Resumed(&'a Kernel),
}

/// Follows the kernel of a life through the log.
pub(super) fn follow(
    life: &Life,
    from: ReplayFrom,
    plugins: &mut dyn FnMut() -> Plugins,
    tell: &mut dyn FnMut(Moment<'_>),
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
        tell(Moment::Resumed(&known));
        kernel = match replay.run(known, tell) {
            End::OfLog | End::Diverged => None,
            End::Missing => replay.next_known_state(),
        };
    }
    ReplayReport { problems: replay.problems.as_slice().to_vec(), ..replay.report }
}

/// In what plugins differ from those with which the starts of a life were logged.
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
    /// The last input that is in the state from which it goes on, or must be.
    from: Seq,
}

enum End {
    OfLog,
    Missing,
    Diverged,
}

impl Replay<'_> {
    /// Follows a kernel as far as that goes.
    fn run(&mut self, mut kernel: Kernel, tell: &mut dyn FnMut(Moment<'_>)) -> End {
        let mut steps = self.life.steps(kernel.seq());
        let end = steps.by_ref().try_for_each(|entry| self.one(&mut kernel, entry, tell)).err();
        self.problems.extend(&steps.all_problems());
        end.unwrap_or(End::OfLog)
    }

    fn one(&mut self, kernel: &mut Kernel, entry: Entry, tell: &mut dyn FnMut(Moment<'_>)) -> Result<(), End> {
        let step = match entry {
            Entry::Step(step @ Step { input: Some(_), .. }) => step,
            Entry::Step(Step { seq, .. }) => return Err(self.broken(seq, seq, "its observations are not in the log")),
            Entry::Missing(Missing { from, to, why }) => return Err(self.broken(from, to, &why)),
        };
        self.take_over(kernel, step.seq)?;
        tell(Moment::Before(kernel, &step));
        let divergence = take(kernel, &step);
        tell(Moment::After(kernel, &step));
        self.report.steps += 1;
        self.report.compared += u64::from(step.commands.is_some());
        self.report.upto = step.seq;
        self.report.first_difference = divergence;
        if self.report.first_difference.is_some() { Err(End::Diverged) } else { Ok(()) }
    }

    /// Where a supervisor went on with what it had rebuilt, so does the replay, before the step `next`.
    fn take_over(&mut self, kernel: &mut Kernel, next: Seq) -> Result<(), End> {
        let after = kernel.seq();
        let Some(Some(base)) = self.takeovers.get(&after).copied() else { return Ok(()) };
        match self.taken_over(base, after) {
            Some(rebuilt) => *kernel = rebuilt,
            None if kernel.snapshot().is_complete() => {} // then every way to this state leads to the same one
            None => {
                let why = format!("the snapshot of {base}, with which this start went on, is gone");
                return Err(self.broken(next, next, &why));
            }
        }
        Ok(())
    }

    fn broken(&mut self, from: Seq, to: Seq, why: &str) -> End {
        self.from = to;
        self.report.breaks += 1;
        if self.report.missing.len() < MISSING_MAX {
            self.report.missing.push(Missing { from, to, why: why.to_owned() });
        }
        End::Missing
    }

    /// The first state at or behind `from` that is known for certain.
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

    /// The state with which a supervisor went on after this input, rebuilt as it did.
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

/// A kernel in the state that a log tells of.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rebuilt {
    /// The kernel, ready for its next [`Input::Start`](crate::kernel::Input::Start).
    pub kernel: Kernel,
    /// Detectors that started cold with the snapshot.
    pub cold: Vec<Name>,
    /// The first step after the snapshot that came out otherwise than it was logged. What was logged has happened: the
    /// kernel may not know of it, and finds out from its launcher's first listing.
    pub divergence: Option<Divergence>,
}

/// Restores a snapshot and takes the steps after it. The plugins come back with an error.
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

/// Takes a step, and says if it came out otherwise than it was logged.
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
        writeln!(f, "{seq} at {now} came out otherwise: {input}")?;
        for (title, commands) in [("then", logged), ("now", replayed)] {
            writeln!(f, "  {title}: {} commands", commands.len())?;
            commands.iter().try_for_each(|c| writeln!(f, "    {}", text::command(c)))?;
        }
        let same_lines = logged.iter().map(text::command).eq(replayed.iter().map(text::command));
        let differing = logged.iter().zip(replayed).find(|(old, new)| format!("{old:?}") != format!("{new:?}"));
        if let (true, Some((old, new))) = (same_lines, differing) {
            let short = |c: &Command| format!("{c:?}").chars().take(DETAIL_CHARS_MAX).collect::<String>();
            writeln!(f, "  in detail, then: {}\n  in detail, now:  {}", short(old), short(new))?;
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
            writeln!(f, "and {} breaks more", breaks - missing.len() as u64)?;
        }
        match first_difference {
            Some(divergence) => divergence.fmt(f),
            None => writeln!(f, "the commands are the same"),
        }
    }
}
