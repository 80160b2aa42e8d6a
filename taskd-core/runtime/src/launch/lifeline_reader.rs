//! Reads a rank's lifeline page and answers the `process-state` probe.
//!
//! A process whose heartbeat is late is examined once a second, so that the answer can say whether it runs. This module
//! writes to no page; detectors draw the conclusions.

use super::activity::{Activity, HostLoad};
use crate::job::Generation;
use crate::proc_fs::{Stat, is_running};
use crate::trace::Signal;
use crate::worker::page::{Fields, Page};
use rustix::process::Pid;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Age of the last heartbeat from which the process itself is examined, to find out whether it runs.
const LOOKED_AT_FROM: Duration = Duration::from_secs(1);
/// Minimum time between two examinations of one process.
const LOOKS_APART: Duration = Duration::from_secs(1);
/// Minimum time between two examinations without activity before the process counts as not running.
const LOOKS_SPAN: Duration = Duration::from_millis(50);

/// One rank's page and the values last read from it.
#[derive(Debug)]
pub(super) struct PageReader {
    page: Page,
    beat_at: u64,
    step: (u64, u64),
    looks: Looks,
}

/// Observations of a process while its heartbeat is late.
#[derive(Clone, Copy, Debug, Default)]
struct Looks {
    /// Time of the first observation of the process, by the monotonic clock, in nanoseconds.
    first_at: Option<u64>,
    /// The last observation of the process, and its time.
    last: Option<(u64, Activity)>,
    /// Time at which the process was last seen to run, or to want to run.
    ran_at: Option<u64>,
}

impl Looks {
    fn look(&mut self, pid: i32) -> Option<Activity> {
        let now = monotonic_nanos();
        let activity = Activity::read(pid)?;
        if activity.is_since(self.last.as_ref().map(|(_, last)| last)) {
            self.ran_at = Some(now);
        }
        self.first_at.get_or_insert(now);
        self.last = Some((now, activity));
        Some(activity)
    }

    /// Observes the process for long enough to decide whether it runs: one first observation a moment ago decides
    /// nothing.
    async fn look_long_enough(&mut self, pid: i32) -> Option<Activity> {
        let activity = self.look(pid)?;
        let seen_for = monotonic_nanos().saturating_sub(self.first_at.unwrap_or_default());
        if self.ran_at.is_some() || seen_for >= nanos(LOOKS_SPAN) {
            return Some(activity);
        }
        tokio::time::sleep(LOOKS_SPAN).await;
        self.look(pid)
    }

    /// Returns how long ago the process last ran, in milliseconds: `-` if it was not seen running, `?` if the system
    /// does not show it.
    fn ran_age_ms(&self) -> String {
        match (self.ran_at, self.last) {
            (Some(at), _) => (monotonic_nanos().saturating_sub(at) / 1_000_000).to_string(),
            (None, Some((_, last))) if last.is_whole() => "-".to_owned(),
            _ => "?".to_owned(),
        }
    }
}

/// A new value in a page.
#[derive(Debug)]
pub(super) struct News {
    pub(super) age: Duration,
    pub(super) signal: Signal,
    /// The rank's world, as written in the page.
    pub(super) generation: Generation,
}

impl PageReader {
    /// Opens the page of a process; `None` if there is none, or if it belongs to another process.
    pub(super) fn open(path: &Path, pid: u32) -> Option<PageReader> {
        let page = Page::open_to_read(path).ok().filter(|page| page.is_of(pid))?;
        Some(PageReader { page, beat_at: 0, step: (0, 0), looks: Looks::default() })
    }

    /// Observes the process if its heartbeat is late, so that a later probe can report since when it has not run.
    pub(super) fn look_if_silent(&mut self) {
        let (now, beat_at) = (monotonic_nanos(), self.page.beat_at.load(Ordering::Acquire));
        let is_over = |since: u64, bound: Duration| now.saturating_sub(since) >= nanos(bound);
        if beat_at == 0 || !is_over(beat_at, LOOKED_AT_FROM) {
            self.looks = Looks::default();
        } else if self.looks.last.is_none_or(|(at, _)| is_over(at, LOOKS_APART))
            && let Ok(pid) = i32::try_from(self.page.pid.load(Ordering::Acquire))
        {
            self.looks.look(pid);
        }
    }

    /// Returns the changes since the last call, for a rank whose process runs.
    ///
    /// If the rank was a descendant of that process and has ended, the wrapper around it has gone on to something else.
    /// The running wrapper then counts as the sign of life, since no heartbeat comes any more.
    pub(super) fn news(&mut self) -> impl Iterator<Item = News> {
        let page: &Fields = &self.page;
        let beat_at = page.beat_at.load(Ordering::Acquire);
        let step_at = page.step_at.load(Ordering::Acquire);
        let step = (page.step.load(Ordering::Acquire), step_at);
        let generation = Generation(page.generation.load(Ordering::Acquire));
        let now = monotonic_nanos();
        let news = |at: u64, signal| News { age: Duration::from_nanos(now.saturating_sub(at)), signal, generation };
        let stepped = (step != self.step && step_at != 0).then(|| news(step_at, Signal::Progress { step: step.0 }));
        let between = page.claimant().is_some_and(|claimant| !is_running(claimant));
        let beaten =
            (beat_at != self.beat_at || between).then(|| news(if between { now } else { beat_at }, Signal::Heartbeat));
        (self.beat_at, self.step) = (beat_at, step);
        stepped.into_iter().chain(beaten)
    }
}

/// Returns process id and start time of the rank: those of a descendant of the started process that took the lifeline,
/// if the started process is a wrapper around it.
pub(super) fn rank_of(pid: i32, start_time: u64, reader: Option<&PageReader>) -> (i32, u64) {
    let claimant = reader.and_then(|reader| reader.page.claimant()).filter(|claimant| is_running(*claimant));
    claimant.and_then(|(pid, start_time)| Some((i32::try_from(pid).ok()?, start_time))).unwrap_or((pid, start_time))
}

/// Answers [`PROCESS_STATE`](crate::trace::PROCESS_STATE); `None` if the process is gone. For a wrapper, the descendant
/// that is the rank counts.
pub(super) async fn process_state(pid: i32, start_time: u64, reader: Option<&mut PageReader>) -> Option<String> {
    let (pid, start_time) = rank_of(pid, start_time, reader.as_deref());
    let stat = Stat::read(Pid::from_raw(pid)?).filter(|stat| stat.start_time == start_time)?;
    let wchan = std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    let wchan = if wchan.is_empty() { "0" } else { wchan.trim() };
    let (mut none, reader) = (Looks::default(), reader);
    let (page, looks) = match reader {
        Some(reader) => (Some(&reader.page), &mut reader.looks),
        None => (None, &mut none),
    };
    let activity = looks.look_long_enough(pid).await?;
    let mut text = format!("state={} wchan={wchan}", stat.state);
    text += &page_words(page.map(|page| &**page));
    let known = |figure: Option<u64>| figure.map_or("-".to_owned(), |figure| figure.to_string());
    let Activity { runnable, uninterruptible, threads, .. } = activity;
    let _ = write!(text, " threads={threads} runnable={runnable} uninterruptible={uninterruptible}");
    let _ = write!(text, " cpu_ms={} ran_age_ms={}", activity.cpu_ms(), looks.ran_age_ms());
    let HostLoad { load_percent, pressure_percent } = HostLoad::read();
    let _ = write!(text, " host_load_percent={}", known(load_percent));
    let _ = write!(text, " host_cpu_pressure_percent={}", known(pressure_percent));
    Some(text)
}

/// Formats the heartbeat, the step and the state of the lifeline in a page as words `name=value`.
fn page_words(page: Option<&Fields>) -> String {
    let now = monotonic_nanos();
    let age_ms = |at: u64| match at {
        0 => "-".to_owned(),
        at => (now.saturating_sub(at) / 1_000_000).to_string(),
    };
    let beat_age = age_ms(page.map_or(0, |page| page.beat_at.load(Ordering::Acquire)));
    let step_age = age_ms(page.map_or(0, |page| page.step_at.load(Ordering::Acquire)));
    let step = page.and_then(Fields::last_step).map_or("-".to_owned(), |step| step.to_string());
    let lifeline = page.map_or("-", Fields::state_name);
    format!(" beat_age_ms={beat_age} step={step} step_age_ms={step_age} lifeline={lifeline}")
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn monotonic_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A process that sleeps for some milliseconds again and again, like a thread that waits for an interpreter lock.
    #[tokio::test]
    async fn a_short_observation_does_not_prove_that_a_process_is_idle() {
        let mut napping = Command::new("sh").args(["-c", "while :; do sleep 0.005; done"]).spawn().unwrap();
        let pid = i32::try_from(napping.id()).unwrap();
        let asleep = || {
            let mut looks = Looks::default();
            looks.look(pid)?;
            looks.ran_at.is_none().then_some(looks)
        };
        let mut looks = std::iter::repeat_with(asleep).take(100_000).flatten().next().expect("it is asleep at times");
        looks.look_long_enough(pid).await.unwrap();
        napping.kill().unwrap();
        napping.wait().unwrap();
        assert!(looks.ran_at.is_some(), "{looks:?}");
    }
}
