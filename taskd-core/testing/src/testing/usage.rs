//! What a test costs: processor time of a thread, memory of the process.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Returns the processor time that the calling thread has used.
#[must_use]
pub fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Returns the largest resident memory of the process since the last call, in KiB; `None` if the kernel does not report
/// it.
#[must_use]
pub fn peak_memory_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib = line.trim().trim_end_matches("kB").trim().parse().ok();
    drop(std::fs::write("/proc/self/clear_refs", "5")); // else the next call returns the larger one of both
    kib
}
