//! Report of the descendants that are still alive when a process has ended by itself.
//!
//! This module kills nothing; the sweep does.

use super::Engine;
use crate::job::Termination;
use crate::launch::guard::procs::{Key, Tree};
use crate::launch::guard::streams::LAST_BYTES_MAX;
use crate::launch::guard::tree::{Census, Member};
use crate::redact::{SecretNames, shown_arguments};
use rustix::process::Pid;
use std::collections::BTreeSet;
use std::fs;

/// Maximum number of processes named in the report.
const NAMED_MAX: usize = 8;
/// Maximum number of characters shown of a command.
const COMMAND_CHARS_MAX: usize = 80;

impl Engine {
    /// Reports to the owner the living descendants of a process that ended without a request, such as those of a script
    /// that has put its program into the background. Also writes the report after the process's own output. To be
    /// called before the process group is killed: with its last process the output is closed.
    pub(super) fn report_survivors(&mut self, key: Key, how: Termination) {
        let Some(text) = self.survivors_of(key, how) else { return };
        self.drain(key, LAST_BYTES_MAX, |proc| &mut proc.stderr);
        if let Some(stream) = self.procs.get(key).and_then(|proc| proc.stderr.as_ref()) {
            stream.say(&self.logs, &format!("taskd: {text}\n"));
        }
        self.notice(&text);
    }

    fn survivors_of(&self, key: Key, how: Termination) -> Option<String> {
        let proc = self.procs.get(key).filter(|proc| proc.tree == Tree::Wanted && proc.kill_at.is_none())?;
        // Orphans are the guard's own children by now. A scan of all processes of the machine would delay the report of
        // the end.
        let census = match self.signals.as_ref().and_then(|_| children()) {
            Some(children) => Census::of(self.strangers_among(children)),
            None => Census::take(),
        };
        let census = census.without_dying();
        let family = self.signals.is_some().then(|| census.descendants(self.ground.parent));
        let mut left: Vec<Member> = self.members_of(key, &census, family.as_ref());
        left.retain(|member| !ends_with_its_parent(member.pid));
        let named = left
            .iter()
            .take(NAMED_MAX)
            .map(|member| format!("{} ({})", member.pid, command(member.pid, &proc.secrets)));
        let mut named = named.collect::<Vec<_>>().join(", ");
        if left.len() > NAMED_MAX {
            named += &format!(" and {} more", left.len() - NAMED_MAX);
        }
        let (count, proc) = (left.len(), &proc.report.proc);
        let (them, are) = if count == 1 {
            ("a process that it has started", "still runs and is")
        } else {
            ("processes that it has started", "still run and are")
        };
        let how_to = match how {
            Termination::Code(_) => "; start the program with exec, or have the script wait for it",
            Termination::Signal { .. } | Termination::Unknown => "",
        };
        (count > 0).then(|| format!("{proc} has ended ({how}), but {them} {are} killed: {named}{how_to}"))
    }

    /// Returns those of the guard's children that it has not started itself, as processes of the job or as standbys.
    fn strangers_among(&self, mut children: Vec<i32>) -> Vec<i32> {
        let known: BTreeSet<i32> = self
            .procs
            .iter()
            .filter(|(_, proc)| !proc.has_exited())
            .map(|(_, proc)| proc.pid.as_raw_nonzero().get())
            .collect();
        let is_standby = |pid| Pid::from_raw(pid).is_some_and(|pid| self.standbys.with(pid).is_some());
        children.retain(|pid| !known.contains(pid) && !is_standby(*pid));
        children
    }
}

/// Returns the children of this process's first thread, which starts the processes and adopts orphans. `None` if this
/// kernel does not list them.
fn children() -> Option<Vec<i32>> {
    let listed = fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id())).ok()?;
    Some(listed.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// Returns true for a helper of Python's `multiprocessing`, which ends by itself a moment after its parent.
fn ends_with_its_parent(pid: i32) -> bool {
    let line = command_line(pid);
    ["multiprocessing.resource_tracker", "multiprocessing.forkserver"].iter().any(|name| line.contains(name))
}

/// Returns the arguments of a process, each followed by a NUL.
fn command_line(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).into_owned()
}

/// Returns the beginning of a process's command line, without arguments that are secret by their name.
fn command(pid: i32, secrets: &SecretNames) -> String {
    let line = command_line(pid);
    shown_arguments(&line.trim_end_matches('\0').split('\0').collect::<Vec<_>>(), secrets)
        .join(" ")
        .trim()
        .chars()
        .take(COMMAND_CHARS_MAX)
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}
