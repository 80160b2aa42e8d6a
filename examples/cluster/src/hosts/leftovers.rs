//! Removes the hosts of programs that were killed, which never dropped theirs.

use super::network::{ip, pids};
use super::{PREFIX, quota};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;

/// The directory in which the system keeps the names of network namespaces.
const NAMESPACES: &str = "/run/netns";

pub(super) fn remove_those_of_killed_programs() {
    for namespace in names_in(Path::new(NAMESPACES)) {
        for pid in pids(&namespace).unwrap_or_default() {
            kill(pid, Signal::KILL);
        }
        let _ = ip(&["netns", "del", &namespace]);
    }
    quota::remove_groups(is_leftover);
    let temporary = std::env::temp_dir();
    for dir in names_in(&temporary) {
        let _ = std::fs::remove_dir_all(temporary.join(dir));
    }
}

/// Sends a signal, unless the process has ended.
pub(super) fn kill(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_leftover(name)).collect()
}

/// Returns true if a program that has ended has given this name.
fn is_leftover(name: &str) -> bool {
    let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
    process.is_some_and(|process| !Path::new("/proc").join(process).exists())
}
