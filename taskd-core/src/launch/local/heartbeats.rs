//! Heartbeats and steps, read from the pages of all ranks with one timer.
//!
//! It reads shared memory, and `/proc` only when it is asked about somebody. It judges nothing: whether silence is a
//! fault is for a detector to say.

use super::history::History;
use crate::job::{Domain, Name, ProcId};
use crate::launch::guard::wire::ProcReport;
use crate::launch::pages::{self, News, PageReader};
use crate::launch::ticks::Ticks;
use crate::trace::{Ask, Exhibit, Fact, PROCESS_STATE, SourceError, SourceInfo, TraceBatch, TraceSource};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const NAME: Name = Name::new("heartbeats");

/// What every rank of a [`LocalLauncher`](super::LocalLauncher) says in its page: heartbeats and completed steps.
///
/// Made by [`LocalLauncher::heartbeats`](super::LocalLauncher::heartbeats).
///
/// # The question `process-state`
/// The answer is an [`Exhibit::Text`] of words `name=value`:
/// `state=S wchan=futex_do_wait beat_age_ms=120 step=17 step_age_ms=340 lifeline=held threads=9 runnable=0 uninterruptible=0
/// cpu_ms=8120 ran_age_ms=40 host_load_percent=150 host_cpu_pressure_percent=12`.
/// - `state`: the letter of `/proc/PID/stat`; `T` is a stopped process, `D` one in uninterruptible sleep.
/// - `wchan`: the kernel function in which the main thread sleeps; `0` where it runs or it may not be read.
/// - `beat_age_ms`, `step`, `step_age_ms`: from the page; `-` where there is none yet.
/// - `lifeline`: `held`, `never-taken` (the program has none of our lines, or stands behind a script that does not exec it),
///   `unavailable` (its system releases no lock of a process that dies, as under qemu-user: its death is known from its exit) or
///   `given-up`.
/// - `threads`, and how many of them are `runnable` (state `R`) and `uninterruptible` (state `D`).
/// - `cpu_ms`: processor time that the process has used; `ran_age_ms`: how long ago one of its threads was last seen to run, or
///   to want to, since its heartbeat stays away: `-` where none was, `?` where the system would not show it.
/// - `host_load_percent`: what could run on the host, in percent of its processors (`/proc/loadavg`);
///   `host_cpu_pressure_percent`: for which part of ten seconds something waited for one (`/proc/pressure/cpu`); `-` where the
///   system does not say.
#[derive(Debug)]
pub struct Heartbeats {
    name: Name,
    history: Arc<History>,
    ticks: Ticks,
    seen: BTreeMap<ProcId, PageReader>,
}

impl Heartbeats {
    pub(super) fn new(history: Arc<History>, every: Duration) -> Heartbeats {
        Heartbeats { name: NAME, history, ticks: Ticks::new(every), seen: BTreeMap::new() }
    }

    /// Gives it another name than `heartbeats`: a runtime over several hosts has one for each.
    #[must_use]
    pub fn named(mut self, name: impl Into<Name>) -> Heartbeats {
        self.name = name.into();
        self
    }

    /// What is new in all pages.
    fn read(&mut self) -> Vec<Fact> {
        let running = self.history.running();
        let here: BTreeSet<&ProcId> = running.iter().map(|report| &report.proc).collect();
        self.seen.retain(|proc, _| here.contains(proc));
        for report in running.into_iter().filter(|report| !self.seen.contains_key(&report.proc)).collect::<Vec<_>>() {
            if let Some(reader) = reader(&report) {
                self.seen.insert(report.proc, reader);
            }
        }
        let mut facts = Vec::new();
        for (proc, seen) in &mut self.seen {
            seen.look_if_silent();
            for News { age, signal, generation } in seen.news() {
                let fact = Fact::new(Domain::Process(proc.role.clone()), signal);
                facts.push(fact.of(proc.incarnation).within(generation).aged(age));
            }
        }
        facts.sort_by_key(|fact| std::cmp::Reverse(fact.age)); // oldest first, as a batch is to be
        facts
    }

    /// The answer to `process-state`; `None` when the process is gone.
    async fn process_state(&mut self, report: &ProcReport) -> Option<String> {
        let pid = i32::try_from(report.pid).ok()?;
        let mut other = if self.seen.contains_key(&report.proc) { None } else { reader(report) };
        let seen = self.seen.get_mut(&report.proc).or(other.as_mut());
        pages::process_state(pid, report.start_time, seen).await
    }
}

fn reader(report: &ProcReport) -> Option<PageReader> {
    PageReader::open(report.page.as_ref()?, report.pid)
}

#[async_trait]
impl TraceSource for Heartbeats {
    fn info(&self) -> SourceInfo {
        SourceInfo::new(self.name.clone()).with_answer(PROCESS_STATE)
    }

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        loop {
            self.ticks.next().await; // cancel-safe, and what is read below is returned without a further await
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
        let Some(report) = latest else {
            return Err(SourceError::Unavailable(format!("{role} does not run here"))); // another host's source may know
        };
        Ok(match self.process_state(report).await {
            Some(text) => Exhibit::Text(text),
            None => Exhibit::Unavailable(format!("{} has ended", report.proc)),
        })
    }
}
