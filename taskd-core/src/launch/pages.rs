//! Reading what a rank says in its lifeline page, and answering in what state its process is.
//!
//! A process whose heartbeat stays away is looked at once a second, so that the answer says whether it runs. It writes to no page
//! and judges nothing.

use super::activity::{Activity, HostLoad};
use super::guard::proc_fs::{Stat, is_running};
use crate::job::Generation;
use crate::trace::Signal;
use crate::worker::page::{Fields, Page};
use rustix::process::Pid;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A process whose last heartbeat is older than this is looked at, to know whether it runs.
const LOOKED_AT_FROM: Duration = Duration::from_secs(1);
/// No process is looked at more often than this.
const LOOKS_APART: Duration = Duration::from_secs(1);
/// Of a process that was not seen to run, looks that lie so far apart say that it does not.
const LOOKS_SPAN: Duration = Duration::from_millis(50);

/// One rank's page and what was last read from it.
#[derive(Debug)]
pub(super) struct PageReader {
    page: Page,
    beat_at: u64,
    step: (u64, u64),
    looks: Looks,
}

/// What was seen of a process while its heartbeat stayed away.
#[derive(Clone, Copy, Debug, Default)]
struct Looks {
    /// The time of the first look, by the monotonic clock in nanoseconds.
    first_at: Option<u64>,
    /// The last look and its time.
    last: Option<(u64, Activity)>,
    /// When it was last seen to run, or to want to.
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

    /// Looks at it for long enough to say whether it runs: a first look that was taken a moment ago says nothing.
    async fn look_long_enough(&mut self, pid: i32) -> Option<Activity> {
        let activity = self.look(pid)?;
        let seen_for = monotonic_nanos().saturating_sub(self.first_at.unwrap_or_default());
        if self.ran_at.is_some() || seen_for >= nanos(LOOKS_SPAN) {
            return Some(activity);
        }
        tokio::time::sleep(LOOKS_SPAN).await;
        self.look(pid)
    }

    /// How long ago it was last seen to run, in milliseconds: `-` where it was not, `?` where the system would not show it.
    fn ran_age_ms(&self) -> String {
        match (self.ran_at, self.last) {
            (Some(at), _) => (monotonic_nanos().saturating_sub(at) / 1_000_000).to_string(),
            (None, Some((_, last))) if last.is_whole() => "-".to_owned(),
            _ => "?".to_owned(),
        }
    }
}

/// Something new in a page.
#[derive(Debug)]
pub(super) struct News {
    pub(super) age: Duration,
    pub(super) signal: Signal,
    /// The world in which the rank was, as it says.
    pub(super) generation: Generation,
}

impl PageReader {
    /// The page of a process; `None` where there is none, or it is another's.
    pub(super) fn open(path: &Path, pid: u32) -> Option<PageReader> {
        let page = Page::open_to_read(path).ok().filter(|page| page.is_of(pid))?;
        Some(PageReader { page, beat_at: 0, step: (0, 0), looks: Looks::default() })
    }

    /// Looks at the process if its heartbeat stays away: whoever asks later is to know since when it does not run.
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

    /// What is new since the last time, of a rank whose process runs.
    ///
    /// Where a descendant of that process was the rank and has ended, the wrapper around it does something else: that is a sign
    /// of life as long as it runs, since no other comes any more.
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

/// The answer to [`PROCESS_STATE`](crate::trace::PROCESS_STATE); `None` when the process is gone. Of a wrapper the process that is
/// the rank counts.
pub(super) async fn process_state(pid: i32, start_time: u64, reader: Option<&mut PageReader>) -> Option<String> {
    let claimant = reader.as_ref().and_then(|reader| reader.page.claimant()).filter(|claimant| is_running(*claimant));
    let claimant = claimant.and_then(|(pid, start_time)| Some((i32::try_from(pid).ok()?, start_time)));
    let (pid, start_time) = claimant.unwrap_or((pid, start_time));
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

/// What a page says of heartbeat, step and lifeline.
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

    /// A process that naps for some milliseconds again and again, as a thread does that waits for an interpreter's lock.
    #[tokio::test]
    async fn a_look_that_was_taken_a_moment_ago_is_no_proof_that_a_process_does_not_run() {
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
