//! Reading what a rank says in its lifeline page, and answering in what state its process is.
//!
//! It writes to no page and judges nothing.

use super::guard::proc_fs::Stat;
use crate::job::Generation;
use crate::trace::Signal;
use crate::worker::page::{Fields, Page};
use rustix::process::Pid;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// One rank's page and what was last read from it.
#[derive(Debug)]
pub(super) struct PageReader {
    page: Page,
    beat_at: u64,
    step: (u64, u64),
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
        let page = Page::open_to_read(path).ok().filter(|page| page.pid.load(Ordering::Acquire) == pid)?;
        Some(PageReader { page, beat_at: 0, step: (0, 0) })
    }

    /// What is new since the last time.
    pub(super) fn news(&mut self) -> impl Iterator<Item = News> {
        let page: &Fields = &self.page;
        let beat_at = page.beat_at.load(Ordering::Acquire);
        let step_at = page.step_at.load(Ordering::Acquire);
        let step = (page.step.load(Ordering::Acquire), step_at);
        let generation = Generation(page.generation.load(Ordering::Acquire));
        let now = monotonic_nanos();
        let news = |at: u64, signal| News { age: Duration::from_nanos(now.saturating_sub(at)), signal, generation };
        let stepped = (step != self.step && step_at != 0).then(|| news(step_at, Signal::Progress { step: step.0 }));
        let beaten = (beat_at != self.beat_at).then(|| news(beat_at, Signal::Heartbeat));
        (self.beat_at, self.step) = (beat_at, step);
        stepped.into_iter().chain(beaten)
    }
}

/// The answer to [`PROCESS_STATE`](crate::trace::PROCESS_STATE); `None` when the process is gone.
pub(super) fn process_state(pid: i32, start_time: u64, reader: Option<&PageReader>) -> Option<String> {
    let stat = Stat::read(Pid::from_raw(pid)?).filter(|stat| stat.start_time == start_time)?;
    let wchan = std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    let wchan = if wchan.is_empty() { "0" } else { wchan.trim() };
    let now = monotonic_nanos();
    let age_ms = |at: u64| match at {
        0 => "-".to_owned(),
        at => (now.saturating_sub(at) / 1_000_000).to_string(),
    };
    let page: Option<&Fields> = reader.map(|reader| &*reader.page);
    let beat_age = age_ms(page.map_or(0, |page| page.beat_at.load(Ordering::Acquire)));
    let step_age = age_ms(page.map_or(0, |page| page.step_at.load(Ordering::Acquire)));
    let step = page.and_then(Fields::last_step).map_or("-".to_owned(), |step| step.to_string());
    let lifeline = page.map_or("-", Fields::state_name);
    let process = format!("state={} wchan={wchan}", stat.state);
    Some(format!("{process} beat_age_ms={beat_age} step={step} step_age_ms={step_age} lifeline={lifeline}"))
}

fn monotonic_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
