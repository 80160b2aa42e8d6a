//! The processes that ranks have started, identified by their command lines: environment, session and parent are not
//! used.
//!
//! It only looks for them, and kills those that are left at the end of the run.

use rustix::process::{Pid, Signal};
use std::collections::BTreeSet;
use std::fs;

/// The kinds in `children.py`, in the same order.
const KINDS: [&str; 13] = [
    "child",
    "group",
    "session",
    "bare",
    "orphan",
    "daemon",
    "stopped",
    "deaf",
    "other-user",
    "namespace",
    "headless",
    "undumpable",
    "chain",
];

/// A process that a rank has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) pid: i32,
    pub(crate) kind: &'static str,
    /// Process id of the rank.
    pub(crate) of: i32,
}

/// Returns all living children of the run with this number, one entry for each process.
pub(crate) fn living(number: u32) -> Vec<Child> {
    let listed = fs::read_dir("/proc").into_iter().flatten();
    let pids = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| child(pid, &command_line(pid), number)).collect()
}

/// Returns the children of ranks that are not among `ranks`.
pub(crate) fn left(children: Vec<Child>, ranks: &BTreeSet<i32>) -> Vec<Child> {
    children.into_iter().filter(|child| !ranks.contains(&child.of)).collect()
}

/// Kills all of `children`.
pub(crate) fn kill(children: &[Child]) {
    for pid in children.iter().filter_map(|child| Pid::from_raw(child.pid)) {
        let _ = rustix::process::kill_process(pid, Signal::KILL); // an error means that it has ended
    }
}

/// Returns the command line of a process, if its first thread has ended from another of its threads.
fn command_line(pid: i32) -> Vec<u8> {
    let own = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if !own.is_empty() {
        return own;
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_threads = threads.filter_map(|thread| fs::read(thread.path().join("cmdline")).ok());
    of_threads.into_iter().find(|line| !line.is_empty()).unwrap_or_default()
}

fn child(pid: i32, command_line: &[u8], number: u32) -> Option<Child> {
    let mut words = command_line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    words.find(|word| *word == format!("1000000.{number}"))?;
    let which = words.next()?;
    let (kind, of) = which.strip_prefix("0.")?.split_at_checked(2)?;
    Some(Child { pid, kind: KINDS.get(kind.parse::<usize>().ok()?)?, of: of.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_known_by_two_words_of_its_command_line() {
        let line = b"sleep\x001000000.7\x000.050000001234\0";
        assert_eq!(child(9, line, 7), Some(Child { pid: 9, kind: "daemon", of: 1234 }));
        assert_eq!(child(9, line, 8), None);
        for other in [
            &b"sleep\x001000000.7\0"[..],
            b"1000000.7\x000.99",
            b"1000000.7\x00x",
            b"1000000.7\x000.\xc3\xa9\xc3\xa9",
            b"",
        ] {
            assert_eq!(child(9, other, 7), None, "{other:?}");
        }
    }

    #[test]
    fn both_sides_have_the_same_kinds() {
        let script = include_str!("../../../python/children.py");
        let named = script.lines().filter_map(|line| line.strip_prefix("    (\"")?.split_once('"'));
        assert_eq!(named.map(|(name, _)| name).collect::<Vec<_>>(), KINDS);
    }
}
