//! What a rank does instead of the collective call: it computes, is blocked in a system call, or sleeps.
//!
//! Only looks at which the rank was missing count. This module sends no probes and blames no rank.

use crate::detect::Evidence;
use crate::detect::exit::one_line;
use crate::detect::silence::Found;
use crate::job::{JobTime, Rank};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Share of the time between two looks, in percent, from which processor time means that the process computes. A
/// heartbeat thread needs less than 1 %.
const BUSY_PERCENT: u128 = 10;

/// Things that a sleeping main thread waits for, by the beginning of the Linux function in which it sleeps.
const SLEEPS: [(&str, &str); 12] = [
    ("futex", "a lock or another thread"),
    ("do_wait", "a child process"),
    ("wait_woken", "the network or a terminal"),
    ("do_sys_poll", "input, such as that of a worker process"),
    ("do_poll", "input, such as that of a worker process"),
    ("poll_schedule", "input, such as that of a worker process"),
    ("do_epoll_wait", "input, such as that of a worker process"),
    ("ep_poll", "input, such as that of a worker process"),
    ("pipe_read", "a pipe"),
    ("anon_pipe_read", "a pipe"),
    ("hrtimer_nanosleep", "a timer"),
    ("do_nanosleep", "a timer"),
];

/// A process as one look has found it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sighting {
    /// Linux state of the main thread.
    state: Option<char>,
    /// Linux function in which the main thread sleeps.
    wchan: Option<String>,
    /// Number of threads that run or wait for a processor.
    runnable: u32,
    /// Processor time that the process has used, in milliseconds.
    cpu_ms: Option<u64>,
}

impl Sighting {
    pub(super) fn of(found: &Found<'_>) -> Sighting {
        let wchan = found.wchan.map(one_line);
        Sighting { state: found.state, wchan, runnable: found.runnable, cpu_ms: found.cpu_ms }
    }
}

/// What a process has done without a break, as far as the looks show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Doing {
    /// It computes, or would if a processor were free.
    Busy,
    /// Its main thread waits for a disk, a file server or a driver (state `D`), and no thread computes.
    Blocked,
    /// Its main thread sleeps, and no thread computes.
    Sleeps,
    /// Not known.
    Unknown,
}

/// The activity of a missing rank, over several looks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Activity {
    doing: Doing,
    /// Time of the first look since which the process has done nothing else.
    since: JobTime,
    /// Time of the latest look.
    at: JobTime,
    last: Sighting,
    /// Processor time between the latest two looks, and the time between them, if known.
    used: Option<(Duration, Duration)>,
}

impl Activity {
    /// Starts with the first look at which the rank is missing.
    pub(super) fn new(sighting: Sighting, at: JobTime) -> Activity {
        Activity { doing: sighting.doing(None), since: at, at, last: sighting, used: None }
    }

    /// Adds the next look.
    pub(super) fn add(&mut self, sighting: Sighting, at: JobTime) {
        let cpu = sighting.cpu_ms.zip(self.last.cpu_ms).map(|(now, before)| now.saturating_sub(before));
        self.used = cpu.map(|ms| (Duration::from_millis(ms), at.since(self.at)));
        let doing = sighting.doing(self.used);
        if doing != self.doing {
            (self.doing, self.since) = (doing, at);
        }
        (self.last, self.at) = (sighting, at);
    }

    /// Returns the time for which the process has been blocked, without computing in between.
    pub(super) fn blocked_for(&self) -> Duration {
        if self.doing == Doing::Blocked { self.at.since(self.since) } else { Duration::ZERO }
    }

    /// Describes the activity; `None` if it is not known.
    pub(super) fn evidence(&self, rank: Rank) -> Option<Evidence> {
        let place = self.last.wchan.as_ref().map(|wchan| format!(", in {wchan}")).unwrap_or_default();
        let seconds = self.at.since(self.since).as_secs_f64();
        let state = self.last.state.unwrap_or('?');
        let (what, text) = match (&self.doing, self.used) {
            (Doing::Busy, Some((used, of))) if !used.is_zero() => {
                let (used, of) = (used.as_secs_f64(), of.as_secs_f64());
                (
                    "hang_busy",
                    format!("{rank} is busy: its process has used {used:.2} s of processor time in {of:.2} s"),
                )
            }
            (Doing::Busy, _) => ("hang_busy", format!("{rank} is busy: its process runs, or waits for a processor")),
            (Doing::Blocked, _) => {
                let text = format!(
                    "{rank} is blocked: its process waits for a disk, a file server or a driver (state D{place}), and has \
                     computed nothing for {seconds:.1} s"
                );
                ("hang_blocked", text)
            }
            (Doing::Sleeps, _) => {
                let reason = self.last.sleeps_for().map(|reason| format!(" for {reason}")).unwrap_or_default();
                let text = format!(
                    "{rank} is stuck alone: its main thread waits{reason} (state {state}{place}), and its process has \
                     computed nothing for {seconds:.1} s"
                );
                ("hang_sleeps", text)
            }
            (Doing::Unknown, _) => return None,
        };
        Some(Evidence::text(what, text))
    }
}

impl Sighting {
    fn doing(&self, used: Option<(Duration, Duration)>) -> Doing {
        let computes = used.is_some_and(|(used, of)| used.as_nanos() * 100 >= of.as_nanos() * BUSY_PERCENT);
        match self.state {
            Some('R') => Doing::Busy,
            Some(_) if self.runnable > 0 || computes && used.is_some_and(|(used, _)| !used.is_zero()) => Doing::Busy,
            Some('D') => Doing::Blocked,
            Some('S' | 'I') => Doing::Sleeps,
            _ => Doing::Unknown,
        }
    }

    fn sleeps_for(&self) -> Option<&'static str> {
        let wchan = self.wchan.as_deref()?;
        SLEEPS.iter().find(|(begin, _)| wchan.starts_with(begin)).map(|(_, reason)| *reason)
    }
}

#[cfg(test)]
mod tests;
