//! Scheduling figures from `/proc`: whether a process runs, and whether its host has a processor for it.
//!
//! This module only reads: a detector draws conclusions from a process that does not run.

use std::fs;
use std::time::Duration;

/// Maximum number of threads examined per process. Further threads are ignored; the answer contains the number
/// examined.
const THREADS_MAX: usize = 4096;

/// Work done so far by all threads of a process, and the number of threads that want to run now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Activity {
    /// Threads in state `R`: running, or waiting for a processor.
    pub(super) runnable: u32,
    /// Threads in state `D`: waiting for a disk, a file server or a driver, and not for anything else.
    pub(super) uninterruptible: u32,
    /// Number of threads examined.
    pub(super) threads: u32,
    /// Processor time that the whole process has used, in nanoseconds.
    cpu_ns: u64,
    /// Time that its threads have waited for a processor, in nanoseconds (`/proc/PID/task/TID/schedstat`).
    delay_ns: u64,
    /// Number of times that one of its threads was scheduled on a processor.
    slices: u64,
}

impl Activity {
    /// Reads the current figures; `None` if the process is gone, or may not be examined.
    pub(super) fn read(pid: i32) -> Option<Activity> {
        let mut seen = Activity { cpu_ns: nanos(cpu_time(pid)?), ..Activity::default() };
        for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten().take(THREADS_MAX) {
            let file = |name| fs::read_to_string(thread.path().join(name)).ok(); // a thread may end meanwhile
            let Some(state) = file("stat").as_deref().and_then(state_of) else { continue };
            seen.threads += 1;
            seen.runnable += u32::from(state == 'R');
            seen.uninterruptible += u32::from(state == 'D');
            let [ran_ns, delay_ns, slices] = file("schedstat").as_deref().and_then(schedule_of).unwrap_or_default();
            let _ = ran_ns; // of live threads only: the process's own time includes ended threads
            seen.delay_ns = seen.delay_ns.saturating_add(delay_ns);
            seen.slices = seen.slices.saturating_add(slices);
        }
        Some(seen)
    }

    /// Returns true if the process runs, or would run if a processor or a disk were free: now, or at some time since
    /// `before`.
    pub(super) fn is_since(&self, before: Option<&Activity>) -> bool {
        let has_run = |before: &Activity| {
            (self.cpu_ns, self.delay_ns, self.slices) != (before.cpu_ns, before.delay_ns, before.slices)
        };
        self.runnable > 0 || self.uninterruptible > 0 || before.is_some_and(has_run)
    }

    /// Returns true if any activity of a thread would be visible. False where the kernel keeps no `schedstat`, so that
    /// only ticks are counted.
    pub(super) const fn is_whole(&self) -> bool {
        self.slices > 0
    }

    pub(super) const fn cpu_ms(&self) -> u64 {
        self.cpu_ns / 1_000_000
    }
}

/// Demand for processors on this host, as far as Linux reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HostLoad {
    /// Runnable threads in percent of the processors: 100 is one thread per processor. From `/proc/loadavg`.
    pub(super) load_percent: Option<u64>,
    /// Share of the last ten seconds in which a thread waited for a processor, in percent. From `/proc/pressure/cpu`,
    /// where the kernel provides it.
    pub(super) pressure_percent: Option<u64>,
}

impl HostLoad {
    pub(super) fn read() -> HostLoad {
        let file = |path| fs::read_to_string(path).ok();
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        let runnable = file("/proc/loadavg").as_deref().and_then(runnable_of);
        HostLoad {
            load_percent: runnable.map(|runnable| runnable.saturating_mul(100) / processors),
            pressure_percent: file("/proc/pressure/cpu").as_deref().and_then(pressure_of),
        }
    }
}

/// Returns the processor time that a process has used, with all its threads.
pub(super) fn cpu_time(pid: i32) -> Option<Duration> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = line.get(line.rfind(')')? + 1..)?.split_whitespace().skip(11); // 14: utime, 15: stime
    let ticks: u64 = fields.next()?.parse::<u64>().ok()?.checked_add(fields.next()?.parse().ok()?)?;
    Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second().max(1) as f64))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the state letter from a line of `/proc/PID/task/TID/stat`. It follows the name in parentheses; the name may
/// contain any character.
fn state_of(line: &str) -> Option<char> {
    line.get(line.rfind(')')? + 1..)?.trim_start().chars().next()
}

/// Returns the time on a processor and the time waiting for one, in nanoseconds, and the number of time slices.
fn schedule_of(line: &str) -> Option<[u64; 3]> {
    let mut numbers = line.split_whitespace().map(str::parse);
    Some([numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?])
}

/// Returns the number of runnable threads from the fourth word of `/proc/loadavg`: `running/all`.
fn runnable_of(line: &str) -> Option<u64> {
    line.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

/// Returns the percentage from the line `some avg10=12.34 ...` of a pressure file, without its fraction.
fn pressure_of(text: &str) -> Option<u64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let average = some.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?;
    average.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, Signal, kill_process};
    use std::process::{Child, Command, Stdio};

    fn sh(program: &str) -> Child {
        Command::new("sh").args(["-c", program]).stdin(Stdio::piped()).spawn().unwrap()
    }

    fn pid(child: &Child) -> i32 {
        child.id().try_into().unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Polls until the condition holds; returns false after a time limit.
    fn until(mut is_so: impl FnMut() -> bool) -> bool {
        (0..2_000).any(|_| {
            is_so() || {
                std::thread::yield_now();
                let _ = Command::new("true").status(); // takes a few milliseconds
                is_so()
            }
        })
    }

    #[test]
    fn a_process_that_computes_is_active_and_one_that_is_stopped_is_not() {
        let child = sh("while :; do :; done");
        let before = Activity::read(pid(&child)).unwrap();
        assert!(until(|| Activity::read(pid(&child)).unwrap().is_since(Some(&before))));
        kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
        assert!(until(|| {
            let stopped = Activity::read(pid(&child)).unwrap();
            (0..20).all(|_| {
                Command::new("true").status().is_ok() && !Activity::read(pid(&child)).unwrap().is_since(Some(&stopped))
            })
        }));
        end(child);
    }

    #[test]
    fn a_process_that_only_waits_is_not_active_until_it_has_run() {
        let mut child = sh("while read line; do :; done");
        let mut asleep = Activity::default();
        assert!(until(|| {
            asleep = Activity::read(pid(&child)).unwrap();
            (0..20).all(|_| {
                Command::new("true").status().is_ok() && !Activity::read(pid(&child)).unwrap().is_since(Some(&asleep))
            })
        }));
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"one line\n").unwrap();
        assert!(
            until(|| Activity::read(pid(&child)).unwrap().is_since(Some(&asleep))),
            "it was given a processor once"
        );
        end(child);
    }

    #[test]
    fn a_process_that_is_gone_has_no_activity_and_odd_lines_have_no_figures() {
        assert_eq!(Activity::read(i32::MAX), None);
        assert_eq!(state_of("12 (a) R b) S 1"), Some('S'));
        assert_eq!(
            (state_of("12"), schedule_of("1 2"), schedule_of("1 2 3 4"), runnable_of("0.1 0.2")),
            (None, None, Some([1, 2, 3]), None)
        );
        assert_eq!(runnable_of("0.50 0.40 0.30 7/123 999"), Some(7));
        let pressure =
            "some avg10=99.40 avg60=1.00 avg300=0.10 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!((pressure_of(pressure), pressure_of("full avg10=3.00")), (Some(99), None));
    }
}
