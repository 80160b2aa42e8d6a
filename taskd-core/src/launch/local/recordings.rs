//! What ranks record, read from the memory of all with one timer.
//!
//! It takes records out, hands them to whoever keeps them, and tells what they say of training. It judges nothing.

use super::history::History;
use crate::job::{Domain, Incarnation, Name, Rank, Role};
use crate::launch::guard::wire::ProcReport;
use crate::launch::ticks::Ticks;
use crate::trace::drain::Calendar;
use crate::trace::following::Following;
use crate::trace::recorder::Clock;
use crate::trace::reduce::Observer;
use crate::trace::switches::TraceControl;
use crate::trace::{
    Ask, COLLECTIVES, Exhibit, Fact, Origin, SourceError, SourceInfo, TraceBatch, TraceSink, TraceSource,
};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

const NAME: Name = Name::new("recordings");
/// So often at most a process is looked at again in one round because there was more.
const LOOKS_MAX: u32 = 256;

/// What the ranks of a [`LocalLauncher`](super::LocalLauncher) record: their steps, collectives that are under way for
/// long, and losses.
///
/// Made by [`LocalLauncher::recordings`](super::LocalLauncher::recordings). Every round it takes the records of each rank out
/// of its memory, hands them to the [sinks](Self::sink) and reduces them: see [`reduce`](crate::trace::reduce). It holds the
/// memory from when it first sees a process, so what a process recorded last is had however it ended.
///
/// It answers [`COLLECTIVES`]: records are taken first, so the answer is as of now, also for a process that was stopped or
/// has died.
pub struct Recordings {
    name: Name,
    history: Arc<History>,
    ticks: Ticks,
    observer: Observer,
    sinks: Vec<Box<dyn TraceSink>>,
    control: Option<TraceControl>,
    followed: BTreeMap<(Rank, Incarnation), Following>,
    /// Facts that were not told yet, each with the moment when it was by the monotonic clock, in nanoseconds.
    facts: Vec<(u64, Fact)>,
    errors: VecDeque<SourceError>,
}

impl Recordings {
    pub(super) fn new(history: Arc<History>) -> Recordings {
        Recordings {
            name: NAME,
            history,
            ticks: Ticks::new(Duration::from_millis(100)),
            observer: Observer::new(Duration::from_secs(1)),
            sinks: Vec::new(),
            control: None,
            followed: BTreeMap::new(),
            facts: Vec::new(),
            errors: VecDeque::new(),
        }
    }

    /// Gives it another name than `recordings`: a runtime over several hosts has one for each.
    #[must_use]
    pub fn named(mut self, name: impl Into<Name>) -> Recordings {
        self.name = name.into();
        self
    }

    /// The time between two rounds; 100 ms unless told. A rank's ring has to hold what it records in that time.
    #[must_use]
    pub fn every(mut self, every: Duration) -> Recordings {
        self.ticks = Ticks::new(every);
        self
    }

    /// From when on a collective that is under way is told; a second unless told.
    #[must_use]
    pub fn pending_after(mut self, pending_after: Duration) -> Recordings {
        self.observer = Observer::new(pending_after);
        self
    }

    /// Hands every batch of records to this one, too.
    #[must_use]
    pub fn sink(mut self, sink: impl TraceSink + 'static) -> Recordings {
        self.sinks.push(Box::new(sink));
        self
    }

    /// Puts each rank's recorder under this control when it begins, and takes it off when its process has ended.
    #[must_use]
    pub fn control(mut self, control: TraceControl) -> Recordings {
        self.control = Some(control);
        self
    }

    /// Begins to follow processes that are new, and returns those that run.
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
                self.followed.insert(key, Following::new(origin, memory));
            }
        }
        let over = self.followed.iter().filter(|(_, following)| following.is_over()).map(|(key, _)| *key);
        for (rank, incarnation) in over.collect::<Vec<_>>() {
            // The last one of a rank can still be asked about.
            if self.followed.range((rank, incarnation.next())..=(rank, Incarnation(u32::MAX))).next().is_some() {
                self.followed.remove(&(rank, incarnation));
            }
        }
        running
    }

    /// One look at one process; true: there is more.
    fn look(&mut self, key: (Rank, Incarnation), has_ended: bool) -> bool {
        let Some(following) = self.followed.get_mut(&key).filter(|following| !following.is_over()) else {
            return false;
        };
        match following.look(has_ended, &mut self.observer, &mut self.sinks, self.control.as_ref()) {
            Ok(look) => {
                if let Some(calendar) = following.calendar() {
                    let facts = look.facts.into_iter().map(|told| (calendar.nanos(told.unix_nanos), told.fact));
                    self.facts.extend(facts);
                }
                look.is_more
            }
            Err(error) => {
                let text = format!("the records of {} {} cannot be had any more: {error}", key.0, key.1);
                self.errors.push_back(SourceError::Failed(text));
                false
            }
        }
    }

    /// All looks at one process.
    fn look_to_the_end(&mut self, key: (Rank, Incarnation), has_ended: bool) {
        for _ in 0..LOOKS_MAX {
            if !self.look(key, has_ended) {
                return;
            }
        }
    }

    /// One round over all processes. A dropped call leaves the others to the next round.
    async fn round(&mut self) {
        let running = self.follow();
        for key in self.followed.keys().copied().collect::<Vec<_>>() {
            self.look_to_the_end(key, !running.contains(&key));
            tokio::task::yield_now().await; // many ranks take their time, and others wait for this thread
        }
    }

    /// What is to be told, oldest first.
    fn told(&mut self) -> Vec<Fact> {
        let now = Clock::Monotonic.ticks();
        self.facts.sort_by_key(|(at, _)| *at);
        let facts = std::mem::take(&mut self.facts);
        facts.into_iter().map(|(at, fact)| fact.aged(Duration::from_nanos(now.saturating_sub(at)))).collect()
    }
}

/// The memory that a process shares with its guard.
fn memory_of(report: &ProcReport) -> Option<File> {
    File::options().read(true).write(true).open(report.page.as_ref()?).ok()
}

#[async_trait]
impl TraceSource for Recordings {
    fn info(&self) -> SourceInfo {
        SourceInfo::new(self.name.clone()).with_answer(COLLECTIVES)
    }

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        loop {
            if let Some(error) = self.errors.pop_front() {
                return Some(Err(error));
            }
            if !self.facts.is_empty() {
                return Some(Ok(TraceBatch::of(self.told())));
            }
            self.ticks.next().await;
            self.round().await; // what it finds is kept in `self`
        }
    }

    async fn collect(&mut self, ask: &Ask, about: &Domain) -> Result<Exhibit, SourceError> {
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
        let now = latest.and_then(Following::calendar).map(Calendar::now);
        let positions = now.and_then(|now| self.observer.positions(*rank, now));
        let nothing = || SourceError::Unavailable(format!("{rank} has recorded nothing here"));
        positions.map(Exhibit::Groups).ok_or_else(nothing)
    }

    /// What was recorded since the last round goes to the sinks.
    async fn close(&mut self) {
        self.round().await;
    }
}

impl fmt::Debug for Recordings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recordings").field("name", &self.name).field("followed", &self.followed).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
