//! Heartbeats and steps, read from the pages of all ranks with one timer.
//!
//! This module reads shared memory, and `/proc` only to answer a probe of a process. A detector decides if silence is a
//! fault.

use super::history::History;
use crate::job::{Domain, Name, ProcId, Role};
use crate::launch::guard::wire::ProcReport;
use crate::launch::interval::Ticks;
use crate::launch::lifeline_reader::{self, News, PageReader};
use crate::launch::stacks::StackReaders;
use crate::proc_fs::is_running;
use crate::trace::{Fact, PROCESS_STATE, Probe, ProbeResult, STACKS, SourceError, SourceInfo, TraceBatch, TraceSource};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const NAME: Name = Name::new("heartbeats");

/// Trace source of heartbeats and completed steps, read from the shared memory page of every rank of a
/// [`LocalLauncher`](super::LocalLauncher).
///
/// Created by [`LocalLauncher::heartbeats`](super::LocalLauncher::heartbeats).
///
/// # The question `process-state`
/// The answer is an [`ProbeResult::Text`] of words `name=value`: `state=S wchan=futex_do_wait beat_age_ms=120
/// step=17 step_age_ms=340 lifeline=held threads=9 runnable=0 uninterruptible=0 cpu_ms=8120 ran_age_ms=40
/// host_load_percent=150 host_cpu_pressure_percent=12`.
/// - `state`: the letter of `/proc/PID/stat`; `T` is a stopped process, `D` one in uninterruptible sleep.
/// - `wchan`: the Linux kernel function in which the main thread sleeps; `0` if it runs or if the function may not
///   be read.
/// - `beat_age_ms`, `step`, `step_age_ms`: from the rank's memory page; `-` if it contains no value yet.
/// - `lifeline`: `held`, `never-taken` (the program contains no taskd lines, or runs below a script that does not
///   exec it), `unavailable` (the system does not release the locks of a process that dies, as under qemu-user: its
///   death is known from its exit) or `given-up`.
/// - `threads`, and how many of them are `runnable` (state `R`) and `uninterruptible` (state `D`).
/// - `cpu_ms`: processor time that the process has used; `ran_age_ms`: time since one of its threads was last seen
///   running or runnable since the heartbeat became late: `-` if none was, `?` if the system does not show it.
/// - `host_load_percent`: runnable threads on the host, in percent of its processors (`/proc/loadavg`);
///   `host_cpu_pressure_percent`: share of ten seconds in which a thread waited for a processor
///   (`/proc/pressure/cpu`); `-` if the system does not report it.
///
/// # The question `stacks`
/// The answer is a [`ProbeResult::Text`] with the Python functions in which the threads of the process are, read by
/// py-spy (from `TASKD_PY_SPY` or `PATH`) within 300 ms, without stopping the process. Otherwise it contains the Linux
/// functions in which they are, read from `/proc`, and the reason.
#[derive(Debug)]
pub struct Heartbeats {
    name: Name,
    history: Arc<History>,
    ticks: Ticks,
    seen: BTreeMap<ProcId, PageReader>,
    stacks: StackReaders,
}

impl Heartbeats {
    pub(super) fn new(history: Arc<History>, every: Duration) -> Heartbeats {
        Heartbeats {
            name: NAME,
            history,
            ticks: Ticks::new(every),
            seen: BTreeMap::new(),
            stacks: StackReaders::default(),
        }
    }

    /// Sets the name of this trace source. Default: `heartbeats`. A runtime over several hosts has one source per host,
    /// and each needs a name of its own.
    #[must_use]
    pub fn named(mut self, name: impl Into<Name>) -> Heartbeats {
        self.name = name.into();
        self
    }

    /// Returns all new facts from all pages.
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
                facts.push(fact.with_incarnation(proc.incarnation).with_generation(generation).with_age(age));
            }
        }
        facts.sort_by_key(|fact| std::cmp::Reverse(fact.age)); // a batch must be ordered oldest first
        facts
    }

    /// Answers the probe `process-state`; `None` if the process is gone.
    async fn process_state(&mut self, report: &ProcReport) -> Option<String> {
        let pid = i32::try_from(report.pid).ok()?;
        let mut other = if self.seen.contains_key(&report.proc) { None } else { reader(report) };
        let seen = self.seen.get_mut(&report.proc).or(other.as_mut());
        lifeline_reader::process_state(pid, report.start_time, seen).await
    }
}

fn reader(report: &ProcReport) -> Option<PageReader> {
    PageReader::open(report.page.as_ref()?, report.pid)
}

#[async_trait]
impl TraceSource for Heartbeats {
    fn info(&self) -> SourceInfo {
        SourceInfo::new(self.name.clone()).with_probe(PROCESS_STATE).with_probe(STACKS)
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

    async fn collect(&mut self, ask: &Probe, about: &Domain) -> Result<ProbeResult, SourceError> {
        let Domain::Process(role) = about else { return Err(SourceError::Unsupported) };
        if ask.what != PROCESS_STATE && ask.what != STACKS {
            return Err(SourceError::Unsupported);
        }
        let running = self.history.running();
        let latest = running.iter().filter(|report| report.proc.role == *role).max_by_key(|r| r.proc.incarnation);
        let Some(report) = latest else {
            return Err(SourceError::Unavailable(format!("{role} does not run here"))); // another host may
        };
        if ask.what == STACKS {
            let Heartbeats { seen, stacks, .. } = self;
            let latest = |role: &Role| {
                let of_role = running.iter().filter(|report| report.proc.role == *role);
                let report = of_role.max_by_key(|report| report.proc.incarnation)?;
                let pid = i32::try_from(report.pid).ok()?;
                let (pid, start_time) = lifeline_reader::rank_of(pid, report.start_time, seen.get(&report.proc));
                is_running((u32::try_from(pid).ok()?, start_time)).then_some(pid)
            };
            return Ok(stacks.answer(ask, role, latest).await);
        }
        Ok(match self.process_state(report).await {
            Some(text) => ProbeResult::Text(text),
            None => ProbeResult::Unavailable(format!("{} has ended", report.proc)),
        })
    }
}
