//! Heartbeats of external processes, from their scheduling state, and their processor time.
//!
//! This module reads `/proc` and detects no faults: a detector decides whether silence is one.

use super::exit::Key;
use super::registry::{Process, Shared, Watching};
use crate::job::{Domain, Name, ProcId, Role};
use crate::launch::activity::cpu_time;
use crate::launch::interval::Ticks;
use crate::launch::lifeline_reader::{self, News, PageReader};
use crate::trace::{Fact, PROCESS_STATE, Probe, ProbeResult, Signal, SourceError, SourceInfo, TraceBatch, TraceSource};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Processor time of a rank since the last figure, as a percentage of one processor.
const CPU_PERCENT: Name = Name::new("process.cpu_percent");
/// Interval of that figure.
const CPU_EVERY: Duration = Duration::from_secs(10);

/// Trace source of the heartbeats of a job's external processes. Made by
/// [`ExternalProcs::states`](super::ExternalProcs::states).
///
/// A rank with a lifeline page reports its own heartbeats and steps. For any other rank, each sample in which the
/// process is neither stopped nor ended counts as a heartbeat: it shows that the process could run, not that its
/// program makes progress. A stopped process (SIGSTOP, a debugger) has no heartbeats.
///
/// `process.cpu_percent` is reported about every ten seconds: a rank that busy-waits in a collective uses a whole
/// processor, a rank that sleeps none.
///
/// # The question `process-state`
/// The answer has the format of the answer of [`Heartbeats`](crate::launch::Heartbeats#the-question-process-state).
#[derive(Debug)]
pub struct ExternalStates {
    shared: Arc<Shared>,
    ticks: Ticks,
    seen: BTreeMap<ProcId, Seen>,
}

/// The last values read from one process.
#[derive(Debug)]
struct Seen {
    page: Option<PageReader>,
    cpu: Option<(Instant, Duration)>,
}

impl ExternalStates {
    pub(super) fn new(shared: Arc<Shared>, every: Duration) -> ExternalStates {
        ExternalStates { shared, ticks: Ticks::new(every), seen: BTreeMap::new() }
    }

    /// Returns the new facts about all processes.
    fn read(&mut self) -> Vec<Fact> {
        let running = self.shared.running();
        self.seen.retain(|proc, _| running.iter().any(|process| process.proc == *proc));
        let mut facts = Vec::new();
        for process in &running {
            let new = || Seen { page: open_page(process), cpu: None };
            self.seen.entry(process.proc.clone()).or_insert_with(new).read(process, &mut facts);
        }
        facts.sort_by_key(|fact| std::cmp::Reverse(fact.age)); // oldest first, as a batch requires
        facts
    }
}

impl Seen {
    fn read(&mut self, process: &Process, facts: &mut Vec<Fact>) {
        let Some(stat) = process.key.stat() else { return };
        let about = |signal| {
            Fact::new(Domain::Process(process.proc.role.clone()), signal).with_incarnation(process.proc.incarnation)
        };
        match &mut self.page {
            // The page's generation belongs to the job's own launcher, and is not used as a fence here.
            Some(page) => {
                page.look_if_silent();
                facts.extend(page.news().map(|News { age, signal, .. }| about(signal).with_age(age)));
            }
            None if matches!(stat.state, 'T' | 't' | 'Z' | 'X' | 'x') => {}
            None => facts.push(about(Signal::Heartbeat)),
        }
        let now = Instant::now();
        if self.cpu.is_some_and(|(at, _)| now.duration_since(at) < CPU_EVERY) {
            return;
        }
        let Some(used) = cpu_time(process.key.pid) else { return };
        if let Some((at, before)) = self.cpu {
            let value = 100.0 * used.saturating_sub(before).as_secs_f64() / now.duration_since(at).as_secs_f64();
            facts.push(about(Signal::Metric { name: CPU_PERCENT, value }));
        }
        self.cpu = Some((now, used));
    }
}

fn open_page(process: &Process) -> Option<PageReader> {
    PageReader::open(process.page.as_ref()?, u32::try_from(process.key.pid).ok()?)
}

#[async_trait]
impl TraceSource for ExternalStates {
    fn info(&self) -> SourceInfo {
        SourceInfo::new("foreign-states").with_probe(PROCESS_STATE)
    }

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        loop {
            self.ticks.next().await; // cancel-safe, and the facts read below are returned without a further await
            if *self.shared.watching.borrow() == Watching::Dropped {
                return None;
            }
            let facts = self.read();
            if !facts.is_empty() {
                return Some(Ok(TraceBatch::of(facts)));
            }
        }
    }

    async fn collect(&mut self, ask: &Probe, about: &Domain) -> Result<ProbeResult, SourceError> {
        let Domain::Process(Role::Rank(rank)) = about else { return Err(SourceError::Unsupported) };
        if ask.what != PROCESS_STATE {
            return Err(SourceError::Unsupported);
        }
        let Some((process, runs)) = self.shared.latest(*rank) else {
            return Err(SourceError::Unavailable(format!("{rank} is not watched here")));
        };
        let Key { pid, start_time } = process.key;
        let known = self.seen.get_mut(&process.proc).and_then(|seen| seen.page.as_mut());
        let mut other = if known.is_some() { None } else { open_page(&process) };
        let page = known.or(other.as_mut());
        let text = if runs { lifeline_reader::process_state(pid, start_time, page).await } else { None };
        Ok(text.map_or_else(|| ProbeResult::Unavailable(format!("{} has ended", process.proc)), ProbeResult::Text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{NodeId, Rank};
    use crate::launch::external::discovery::Found;
    use crate::worker::page::Page;
    use rustix::fd::AsRawFd;
    use std::sync::atomic::Ordering;

    /// Makes a source with one rank, which is this test's own process.
    fn source(page: Option<std::path::PathBuf>) -> ExternalStates {
        let shared = Arc::new(Shared::new(NodeId(Name::new("here")), 1));
        let key = Key::of(std::process::id().try_into().unwrap()).unwrap();
        shared.admit(Found { rank: Rank(0), key, may_read: true, page, streams: [None, None] }).unwrap();
        ExternalStates::new(shared, Duration::from_millis(1))
    }

    fn signals(source: &mut ExternalStates) -> Vec<Signal> {
        source.read().into_iter().map(|fact| fact.signal).collect()
    }

    #[tokio::test]
    async fn a_lifeline_page_reports_heartbeats_and_steps_once() {
        let (memory, page) = Page::create(0, 1, 7, 0).unwrap();
        page.pid.store(std::process::id(), Ordering::Release);
        let mut source = source(Some(format!("/proc/self/fd/{}", memory.as_raw_fd()).into()));
        assert_eq!(signals(&mut source), [], "it has reported nothing yet");
        page.step.store(12, Ordering::Release);
        page.step_at.store(1, Ordering::Release);
        page.beat_at.store(2, Ordering::Release);
        assert_eq!(signals(&mut source), [Signal::Progress { step: 12 }, Signal::Heartbeat]);
        assert_eq!(signals(&mut source), [], "nothing is reported twice");
    }

    #[tokio::test]
    async fn a_page_of_another_process_is_none() {
        let (memory, page) = Page::create(0, 1, 7, 0).unwrap();
        page.pid.store(1, Ordering::Release);
        let mut source = source(Some(format!("/proc/self/fd/{}", memory.as_raw_fd()).into()));
        assert_eq!(signals(&mut source), [Signal::Heartbeat], "that it runs is all that is known");
    }

    #[tokio::test(start_paused = true)]
    async fn processor_time_is_reported_at_its_interval() {
        let mut source = source(None);
        assert_eq!(signals(&mut source).len(), 1, "there is nothing to compare with yet");
        tokio::time::advance(CPU_EVERY).await;
        let state = source.read();
        let is_sound = |value: f64| value.is_finite() && value >= 0.0;
        assert!(
            state.iter().any(|fact| matches!(&fact.signal, Signal::Metric { name, value } if *name == CPU_PERCENT && is_sound(*value))),
            "{state:?}"
        );
    }
}
