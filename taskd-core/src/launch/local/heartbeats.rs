//! Heartbeats and steps, read from the pages of all ranks with one timer.
//!
//! It reads shared memory, and `/proc` only when it is asked about somebody. It judges nothing: whether silence is a
//! fault is for a detector to say.

use super::history::History;
use crate::job::{Domain, Generation, ProcId};
use crate::launch::guard::proc_fs::Stat;
use crate::launch::guard::wire::ProcReport;
use crate::trace::{Ask, Exhibit, Fact, PROCESS_STATE, Signal, SourceError, SourceInfo, TraceBatch, TraceSource};
use crate::worker::page::{Fields, Page};
use async_trait::async_trait;
use rustix::process::Pid;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior};

/// What every rank of a [`LocalLauncher`](super::LocalLauncher) says in its page: heartbeats and completed steps.
///
/// Made by [`LocalLauncher::heartbeats`](super::LocalLauncher::heartbeats).
///
/// # The question `process-state`
/// The answer is an [`Exhibit::Text`] of words `name=value`:
/// `state=S wchan=futex_do_wait beat_age_ms=120 step=17 step_age_ms=340`.
/// - `state`: the letter of `/proc/PID/stat`; `T` is a stopped process, `D` one in uninterruptible sleep.
/// - `wchan`: the kernel function in which the main thread sleeps; `0` where it runs or it may not be read.
/// - `beat_age_ms`, `step`, `step_age_ms`: from the page; `-` where there is none yet.
#[derive(Debug)]
pub struct Heartbeats {
    history: Arc<History>,
    every: Duration,
    timer: Option<Interval>,
    seen: BTreeMap<ProcId, Seen>,
}

/// One rank's page and what was last read from it.
#[derive(Debug)]
struct Seen {
    page: Page,
    beat_at: u64,
    step: (u64, u64),
}

impl Heartbeats {
    pub(super) fn new(history: Arc<History>, every: Duration) -> Heartbeats {
        Heartbeats { history, every: every.max(Duration::from_millis(1)), timer: None, seen: BTreeMap::new() }
    }

    /// What is new in all pages.
    fn read(&mut self) -> Vec<Fact> {
        let running = self.history.running();
        self.seen.retain(|proc, _| running.iter().any(|report| report.proc == *proc));
        for report in running.into_iter().filter(|report| !self.seen.contains_key(&report.proc)).collect::<Vec<_>>() {
            if let Some(page) = open_page(&report) {
                self.seen.insert(report.proc, Seen { page, beat_at: 0, step: (0, 0) });
            }
        }
        let now = monotonic_nanos();
        let mut facts = Vec::new();
        for (proc, seen) in &mut self.seen {
            seen.read(proc, now, &mut facts);
        }
        facts.sort_by_key(|fact| std::cmp::Reverse(fact.age)); // oldest first, as a batch is to be
        facts
    }
}

impl Seen {
    fn read(&mut self, proc: &ProcId, now: u64, facts: &mut Vec<Fact>) {
        let page: &Fields = &self.page;
        let beat_at = page.beat_at.load(Ordering::Acquire);
        let step_at = page.step_at.load(Ordering::Acquire);
        let step = (page.step.load(Ordering::Acquire), step_at);
        let generation = Generation(page.generation.load(Ordering::Acquire));
        let mut tell = |at: u64, signal: Signal| {
            let fact = Fact::new(Domain::Process(proc.role.clone()), signal).of(proc.incarnation).within(generation);
            facts.push(fact.aged(Duration::from_nanos(now.saturating_sub(at))));
        };
        if step != self.step && step_at != 0 {
            tell(step_at, Signal::Progress { step: step.0 });
        }
        if beat_at != self.beat_at {
            tell(beat_at, Signal::Heartbeat);
        }
        (self.beat_at, self.step) = (beat_at, step);
    }
}

fn open_page(report: &ProcReport) -> Option<Page> {
    Page::open_to_read(report.page.as_ref()?).ok().filter(|page| page.pid.load(Ordering::Acquire) == report.pid)
}

#[async_trait]
impl TraceSource for Heartbeats {
    fn info(&self) -> SourceInfo {
        SourceInfo::new("heartbeats").with_answer(PROCESS_STATE)
    }

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        loop {
            let timer = self.timer.get_or_insert_with(|| {
                let mut timer = tokio::time::interval(self.every);
                timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
                timer
            });
            timer.tick().await; // cancel-safe, and what is read below is returned without a further await
            let facts = self.read();
            if !facts.is_empty() {
                return Some(Ok(TraceBatch::of(facts)));
            }
        }
    }

    async fn collect(&mut self, ask: &Ask, about: &Domain) -> Result<Exhibit, SourceError> {
        let Domain::Process(role) = about else { return Err(SourceError::Unsupported) };
        if ask.what != PROCESS_STATE {
            return Err(SourceError::Unsupported);
        }
        let running = self.history.running();
        let latest = running.iter().filter(|report| report.proc.role == *role).max_by_key(|r| r.proc.incarnation);
        Ok(match latest.map(|report| (report, process_state(report))) {
            Some((_, Some(text))) => Exhibit::Text(text),
            Some((report, None)) => Exhibit::Unavailable(format!("{} has ended", report.proc)),
            None => Exhibit::Unavailable(format!("{role} does not run here")),
        })
    }
}

/// The answer to `process-state`; `None` when the process is gone.
fn process_state(report: &ProcReport) -> Option<String> {
    let pid = i32::try_from(report.pid).ok().and_then(Pid::from_raw)?;
    let stat = Stat::read(pid).filter(|stat| stat.start_time == report.start_time)?;
    let wchan = std::fs::read_to_string(format!("/proc/{}/wchan", report.pid)).unwrap_or_default();
    let wchan = if wchan.is_empty() { "0" } else { wchan.trim() };
    let now = monotonic_nanos();
    let age_ms = |at: u64| match at {
        0 => "-".to_owned(),
        at => (now.saturating_sub(at) / 1_000_000).to_string(),
    };
    let page = open_page(report);
    let read = |field: fn(&Fields) -> u64| page.as_deref().map_or(0, field);
    let beat_age = age_ms(read(|page| page.beat_at.load(Ordering::Acquire)));
    let step_age = age_ms(read(|page| page.step_at.load(Ordering::Acquire)));
    let step = page.as_deref().and_then(Fields::last_step).map_or("-".to_owned(), |step| step.to_string());
    Some(format!("state={} wchan={wchan} beat_age_ms={beat_age} step={step} step_age_ms={step_age}", stat.state))
}

fn monotonic_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
