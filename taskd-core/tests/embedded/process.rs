//! What of a process belongs to its program, and not to a library in it.

use crate::support::children_of;
use std::collections::BTreeMap;

/// Everything that must be as it was when a library has gone, in words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Process(BTreeMap<&'static str, Vec<String>>);

const THREADS: &str = "threads";

impl Process {
    pub(crate) fn now() -> Process {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let lines = |names: &[&str]| {
            status.lines().filter(|line| names.iter().any(|name| line.starts_with(name))).map(str::to_owned).collect()
        };
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
        let environment = std::env::vars_os().map(|(name, value)| format!("{} {}", name.display(), value.display()));
        Process(BTreeMap::from([
            (THREADS, threads()),
            ("descriptors", descriptors()),
            ("children", children_of(std::process::id()).iter().map(ToString::to_string).collect()),
            ("signals", lines(&["SigBlk:", "SigIgn:", "SigCgt:"])),
            ("limits", limits.lines().map(str::to_owned).collect()),
            ("environment", environment.collect()),
            ("directory", vec![std::env::current_dir().unwrap().display().to_string()]),
            ("umask", lines(&["Umask:"])),
        ]))
    }

    /// What is otherwise than it was.
    pub(crate) fn differences(&self, before: &Process) -> Vec<String> {
        let differs = |(what, now): (&&'static str, &Vec<String>)| {
            let of = |these: &[String], others: &[String]| -> Vec<String> {
                these.iter().filter(|line| !others.contains(line)).cloned().collect()
            };
            let (came, gone) = (of(now, &before.0[what]), of(&before.0[what], now));
            // A thread of the host's own that was idle may have ended: tokio keeps those of its pool for ten seconds.
            let is_other = if *what == THREADS { !came.is_empty() } else { *now != before.0[what] };
            is_other.then(|| format!("{what}: {came:?} in place of {gone:?}"))
        };
        self.0.iter().filter_map(differs).collect()
    }

    /// Resident memory in KiB.
    pub(crate) fn resident_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

/// Their numbers; a thread gets its name a little after its start.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let mut threads: Vec<String> = tasks.map(|task| task.unwrap().file_name().display().to_string()).collect();
    threads.sort();
    threads
}

/// Number and target of each, without that of the listing itself.
fn descriptors() -> Vec<String> {
    let of = |entry: std::fs::DirEntry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        Some(format!("{} {}", entry.file_name().display(), target.display()))
    };
    let mut found: Vec<String> = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|e| of(e.unwrap())).collect();
    found.retain(|line| !line.ends_with(&format!("/proc/{}/fd", std::process::id())));
    found.sort();
    found
}
