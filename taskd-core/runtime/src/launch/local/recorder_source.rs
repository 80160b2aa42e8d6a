//! The source of training records, read from the shared memory of all ranks with one timer.
//!
//! It consumes the records, passes them to the sinks, and reports the training facts in them. Detectors draw the
//! conclusions.

use super::history::History;
use crate::job::{Domain, Incarnation, Name, Rank, Role};
use crate::launch::guard::wire::ProcReport;
use crate::launch::interval::Ticks;
use crate::trace::drain::Calendar;
use crate::trace::rank_drain::RankDrain;
use crate::trace::recorder::Clock;
use crate::trace::reduce::{Observer, PENDING_AFTER};
use crate::trace::switches::TraceControl;
use crate::trace::{
    COLLECTIVES, Fact, Origin, Probe, ProbeResult, SourceError, SourceInfo, TraceBatch, TraceSink, TraceSource,
};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

const NAME: Name = Name::new("recordings");
/// Maximum number of reads of one process in one round while it has more records.
const LOOKS_MAX: u32 = 256;

/// Trace source that reads the trace records of a [`LocalLauncher`](super::LocalLauncher)'s ranks, and reports the
/// ranks' steps, the collectives that are in progress for long, and the number of lost records.
///
/// Created by [`LocalLauncher::recordings`](super::LocalLauncher::recordings). Every round consumes each rank's
/// records from its shared memory, passes them to the [sinks](Self::sink) and reduces them: see
/// [`reduce`](crate::trace::reduce). The source maps the memory in the first round that finds the process, and
/// keeps it mapped, so it reads the last records however the process ended.
///
/// It answers the probe [`COLLECTIVES`] (collectives in progress). It consumes the records first, so the answer is
/// current, also for a process that was stopped or has died.
pub struct RecorderSource {
    name: Name,
    history: Arc<History>,
    ticks: Ticks,
    observer: Observer,
    sinks: Vec<Box<dyn TraceSink>>,
    control: Option<TraceControl>,
    followed: BTreeMap<(Rank, Incarnation), RankDrain>,
    /// Facts that were not reported yet, each with its time by the monotonic clock, in nanoseconds.
    facts: Vec<(u64, Fact)>,
    errors: VecDeque<SourceError>,
}

impl RecorderSource {
    /// Creates a source that reads one rank: this process, whose recorder is in the file `page`. Meant for the
    /// conformance suite of trace sources.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    #[must_use]
    pub fn of_this_process(page: std::path::PathBuf) -> RecorderSource {
        use crate::launch::guard::wire::JobId;
        let (job, node) = (JobId("job".into()), crate::job::NodeId(Name::new("here")));
        let history = History::new(job, node, 8);
        let (proc, pid) = (crate::job::ProcId::rank(0, 1), std::process::id());
        history.learn(ProcReport { proc, pid, start_time: 1, phase: crate::launch::Phase::Running, page: Some(page) });
        RecorderSource::new(Arc::new(history))
    }

    pub(super) fn new(history: Arc<History>) -> RecorderSource {
        RecorderSource {
            name: NAME,
            history,
            ticks: Ticks::new(Duration::from_millis(100)),
            observer: Observer::new(PENDING_AFTER),
            sinks: Vec::new(),
            control: None,
            followed: BTreeMap::new(),
            facts: Vec::new(),
            errors: VecDeque::new(),
        }
    }

    /// Sets the name of this trace source. Default: `recordings`. A runtime over several hosts has one source per host,
    /// and each needs a name of its own.
    #[must_use]
    pub fn named(mut self, name: impl Into<Name>) -> RecorderSource {
        self.name = name.into();
        self
    }

    /// Sets the time between two rounds of reading. Default: 100 ms. A rank's ring buffer must be able to hold the
    /// records of that time.
    #[must_use]
    pub fn every(mut self, every: Duration) -> RecorderSource {
        self.ticks = Ticks::new(every);
        self
    }

    /// Sets the time after which the source reports a collective that is still in progress. Default: [`PENDING_AFTER`].
    #[must_use]
    pub fn pending_after(mut self, pending_after: Duration) -> RecorderSource {
        self.observer = Observer::new(pending_after);
        self
    }

    /// Adds a sink: a consumer that receives every batch of records that the source reads. Several sinks can be added.
    #[must_use]
    pub fn sink(mut self, sink: impl TraceSink + 'static) -> RecorderSource {
        self.sinks.push(Box::new(sink));
        self
    }

    /// Attaches each rank's recorder to this trace control when the rank begins, and detaches it when its process has
    /// ended.
    #[must_use]
    pub fn control(mut self, control: TraceControl) -> RecorderSource {
        self.control = Some(control);
        self
    }

    /// Begins to follow new processes, and returns the running ones.
    fn follow(&mut self) -> BTreeSet<(Rank, Incarnation)> {
        let mut running = BTreeSet::new();
        for report in self.history.reports() {
            let Some(rank) = report.proc.role.rank() else { continue };
            let key = (rank, report.proc.incarnation);
            if !report.phase.is_exited() {
                running.insert(key);
            }
            let is_known = self.followed.range(key..=(rank, Incarnation(u32::MAX))).next().is_some();
            if let Some(memory) = memory_of(&report).filter(|_| !is_known) {
                let origin = Origin { rank, incarnation: key.1, pid: report.pid };
                self.followed.insert(key, RankDrain::new(origin, memory));
            }
        }
        let over = self.followed.iter().filter(|(_, following)| following.is_over()).map(|(key, _)| *key);
        for (rank, incarnation) in over.collect::<Vec<_>>() {
            // The last process of a rank can still be probed.
            if self.followed.range((rank, incarnation.next())..=(rank, Incarnation(u32::MAX))).next().is_some() {
                self.followed.remove(&(rank, incarnation));
            }
        }
        running
    }

    /// Reads the records of one process once; returns true if there are more.
    fn look(&mut self, key: (Rank, Incarnation), has_ended: bool) -> bool {
        let Some(following) = self.followed.get_mut(&key).filter(|following| !following.is_over()) else {
            return false;
        };
        match following.look(has_ended, &mut self.observer, &mut self.sinks, self.control.as_ref()) {
            Ok(look) => {
                if let Some(calendar) = following.calendar() {
                    let facts = look.facts.into_iter().map(|timed| (calendar.nanos(timed.unix_nanos), timed.fact));
                    self.facts.extend(facts);
                }
                look.is_more
            }
            Err(error) => {
                let text = format!("the records of {} {} cannot be read any more: {error}", key.0, key.1);
                self.errors.push_back(SourceError::Failed(text));
                false
            }
        }
    }

    /// Reads the records of one process until there are no more.
    fn look_to_the_end(&mut self, key: (Rank, Incarnation), has_ended: bool) {
        for _ in 0..LOOKS_MAX {
            if !self.look(key, has_ended) {
                return;
            }
        }
    }

    /// Reads the records of all processes once. If the call is dropped, the remaining ones are read in the next round.
    async fn round(&mut self) {
        let running = self.follow();
        for key in self.followed.keys().copied().collect::<Vec<_>>() {
            self.look_to_the_end(key, !running.contains(&key));
            tokio::task::yield_now().await; // many ranks take long, and other tasks wait for this thread
        }
    }

    /// Returns the facts to report, oldest first.
    fn take_facts(&mut self) -> Vec<Fact> {
        let now = Clock::Monotonic.ticks();
        self.facts.sort_by_key(|(at, _)| *at);
        let facts = std::mem::take(&mut self.facts);
        facts.into_iter().map(|(at, fact)| fact.with_age(Duration::from_nanos(now.saturating_sub(at)))).collect()
    }
}

/// Opens the memory that a process shares with its guard.
fn memory_of(report: &ProcReport) -> Option<File> {
    File::options().read(true).write(true).open(report.page.as_ref()?).ok()
}

#[async_trait]
impl TraceSource for RecorderSource {
    fn info(&self) -> SourceInfo {
        SourceInfo::new(self.name.clone()).with_probe(COLLECTIVES)
    }

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        loop {
            if let Some(error) = self.errors.pop_front() {
                return Some(Err(error));
            }
            if !self.facts.is_empty() {
                return Some(Ok(TraceBatch::of(self.take_facts())));
            }
            self.ticks.next().await;
            self.round().await; // its results are kept in `self`
        }
    }

    async fn collect(&mut self, ask: &Probe, about: &Domain) -> Result<ProbeResult, SourceError> {
        let Domain::Process(Role::Rank(rank)) = about else { return Err(SourceError::Unsupported) };
        if ask.what != COLLECTIVES {
            return Err(SourceError::Unsupported);
        }
        let running = self.follow();
        let of_rank = (*rank, Incarnation(0))..=(*rank, Incarnation(u32::MAX));
        for key in self.followed.range(of_rank.clone()).map(|(key, _)| *key).collect::<Vec<_>>() {
            self.look_to_the_end(key, !running.contains(&key));
        }
        let latest = self.followed.range(of_rank).next_back().map(|(_, following)| following);
        let now = latest.and_then(RankDrain::calendar).map(Calendar::now);
        let positions = now.and_then(|now| self.observer.positions(*rank, now));
        let nothing = || SourceError::Unavailable(format!("{rank} has recorded nothing here"));
        positions.map(ProbeResult::Groups).ok_or_else(nothing)
    }

    /// Passes the records since the last round to the sinks.
    async fn close(&mut self) {
        self.round().await;
    }
}

impl fmt::Debug for RecorderSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recordings").field("name", &self.name).field("followed", &self.followed).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
