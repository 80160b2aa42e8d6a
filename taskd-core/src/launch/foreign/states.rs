//! Signs of life of foreign processes: that Linux lets them run, and how much processor time they use.
//!
//! It reads `/proc` and judges nothing: whether silence is a fault is for a detector to say.

use super::book::{Process, Shared, Watching};
use super::ending::Key;
use crate::job::{Domain, Name, ProcId, Role};
use crate::launch::activity::cpu_time;
use crate::launch::pages::{self, News, PageReader};
use crate::launch::ticks::Ticks;
use crate::trace::{Ask, Exhibit, Fact, PROCESS_STATE, Signal, SourceError, SourceInfo, TraceBatch, TraceSource};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How much processor time a rank used, of one processor, since the figure before.
const CPU_PERCENT: Name = Name::new("process.cpu_percent");
/// How often that figure is told.
const CPU_EVERY: Duration = Duration::from_secs(10);

/// Signs of life of a job's foreign processes. Made by [`ForeignProcs::states`](super::ForeignProcs::states).
///
/// A rank that has a lifeline page tells by itself that it lives, and its steps. For the others a look at which Linux
/// would let the process run is a heartbeat: it says that nobody has stopped it, not that its program gets on. A process
/// that was stopped (SIGSTOP, a debugger) has none.
///
/// `process.cpu_percent` is told about once in ten seconds: a rank that waits in a collective and spins uses a whole
/// processor, one that sleeps none.
///
/// # The question `process-state`
/// The answer is that of [`Heartbeats`](crate::launch::Heartbeats#the-question-process-state).
#[derive(Debug)]
pub struct ForeignStates {
    shared: Arc<Shared>,
    ticks: Ticks,
    seen: BTreeMap<ProcId, Seen>,
}

/// What was last read of one process.
#[derive(Debug)]
struct Seen {
    page: Option<PageReader>,
    cpu: Option<(Instant, Duration)>,
}

impl ForeignStates {
    pub(super) fn new(shared: Arc<Shared>, every: Duration) -> ForeignStates {
        ForeignStates { shared, ticks: Ticks::new(every), seen: BTreeMap::new() }
    }

    /// What is new of all processes.
    fn read(&mut self) -> Vec<Fact> {
        let running = self.shared.running();
        self.seen.retain(|proc, _| running.iter().any(|process| process.proc == *proc));
        let mut facts = Vec::new();
        for process in &running {
            let new = || Seen { page: open_page(process), cpu: None };
            self.seen.entry(process.proc.clone()).or_insert_with(new).read(process, &mut facts);
        }
        facts.sort_by_key(|fact| std::cmp::Reverse(fact.age)); // oldest first, as a batch is to be
        facts
    }
}

impl Seen {
    fn read(&mut self, process: &Process, facts: &mut Vec<Fact>) {
        let Some(stat) = process.key.stat() else { return };
        let about = |signal| Fact::new(Domain::Process(process.proc.role.clone()), signal).of(process.proc.incarnation);
        match &mut self.page {
            // Its generation is its own launcher's, and no fence here.
            Some(page) => {
                page.look_if_silent();
                facts.extend(page.news().map(|News { age, signal, .. }| about(signal).aged(age)));
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
impl TraceSource for ForeignStates {
    fn info(&self) -> SourceInfo {
        SourceInfo::new("foreign-states").with_answer(PROCESS_STATE)
    }

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        loop {
            self.ticks.next().await; // cancel-safe, and what is read below is returned without a further await
            if *self.shared.watching.borrow() == Watching::Dropped {
                return None;
            }
            let facts = self.read();
            if !facts.is_empty() {
                return Some(Ok(TraceBatch::of(facts)));
            }
        }
    }

    async fn collect(&mut self, ask: &Ask, about: &Domain) -> Result<Exhibit, SourceError> {
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
        let text = if runs { pages::process_state(pid, start_time, page).await } else { None };
        Ok(text.map_or_else(|| Exhibit::Unavailable(format!("{} has ended", process.proc)), Exhibit::Text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{NodeId, Rank};
    use crate::launch::foreign::find::Found;
    use crate::worker::page::Page;
    use rustix::fd::AsRawFd;
    use std::sync::atomic::Ordering;

    /// A source over one rank, which is this test itself.
    fn source(page: Option<std::path::PathBuf>) -> ForeignStates {
        let shared = Arc::new(Shared::new(NodeId(Name::new("here")), 1));
        let key = Key::of(std::process::id().try_into().unwrap()).unwrap();
        shared.admit(Found { rank: Rank(0), key, may_read: true, page, streams: [None, None] }).unwrap();
        ForeignStates::new(shared, Duration::from_millis(1))
    }

    fn signals(source: &mut ForeignStates) -> Vec<Signal> {
        source.read().into_iter().map(|fact| fact.signal).collect()
    }

    #[tokio::test]
    async fn a_rank_with_a_page_says_itself_that_it_lives_and_what_it_has_done() {
        let (memory, page) = Page::create(0, 1, 7, 0).unwrap();
        page.pid.store(std::process::id(), Ordering::Release);
        let mut source = source(Some(format!("/proc/self/fd/{}", memory.as_raw_fd()).into()));
        assert_eq!(signals(&mut source), [], "it has not said anything yet");
        page.step.store(12, Ordering::Release);
        page.step_at.store(1, Ordering::Release);
        page.beat_at.store(2, Ordering::Release);
        assert_eq!(signals(&mut source), [Signal::Progress { step: 12 }, Signal::Heartbeat]);
        assert_eq!(signals(&mut source), [], "nothing is told twice");
    }

    #[tokio::test]
    async fn a_page_of_another_process_is_none() {
        let (memory, page) = Page::create(0, 1, 7, 0).unwrap();
        page.pid.store(1, Ordering::Release);
        let mut source = source(Some(format!("/proc/self/fd/{}", memory.as_raw_fd()).into()));
        assert_eq!(signals(&mut source), [Signal::Heartbeat], "that it runs is all that is known");
    }

    #[tokio::test(start_paused = true)]
    async fn processor_time_is_told_now_and_then() {
        let mut source = source(None);
        assert_eq!(signals(&mut source).len(), 1, "there is nothing to compare with yet");
        tokio::time::advance(CPU_EVERY).await;
        let told = source.read();
        let is_sound = |value: f64| value.is_finite() && value >= 0.0;
        assert!(
            told.iter().any(|fact| matches!(&fact.signal, Signal::Metric { name, value } if *name == CPU_PERCENT && is_sound(*value))),
            "{told:?}"
        );
    }
}
