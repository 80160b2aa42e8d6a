//! What a process leaves alive when it ends by itself: the descendants that live on are reported to the owner.
//!
//! It kills nothing; the sweep does.

use super::Engine;
use crate::job::Termination;
use crate::launch::guard::procs::{Key, Tree};
use crate::launch::guard::streams::LAST_BYTES_MAX;
use crate::launch::guard::tree::{Census, Member};
use crate::secrets::{SecretNames, shown_arguments};
use rustix::process::Pid;
use std::collections::BTreeSet;
use std::fs;

/// Most processes that are named.
const NAMED_MAX: usize = 8;
/// Most characters of a command that are shown.
const COMMAND_CHARS_MAX: usize = 80;

impl Engine {
    /// Reports to the owner which descendants of a process live when it has ended without a request: those of a script that
    /// has put its program into the background. Writes it behind what the process has printed, too. To be called before its group
    /// is killed: with the last of them its output is closed.
    pub(super) fn tell_of_survivors(&mut self, key: Key, how: Termination) {
        let Some(text) = self.survivors_of(key, how) else { return };
        self.drain(key, LAST_BYTES_MAX, |proc| &mut proc.stderr);
        if let Some(stream) = self.procs.get(key).and_then(|proc| proc.stderr.as_ref()) {
            stream.say(&self.logs, &format!("taskd: {text}\n"));
        }
        self.notice(&text);
    }

    fn survivors_of(&self, key: Key, how: Termination) -> Option<String> {
        let proc = self.procs.get(key).filter(|proc| proc.tree == Tree::Wanted && proc.kill_at.is_none())?;
        // Orphans are the guard's own children by now. Looking at all processes of the machine would hold up the news of the end.
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
            ("a process that it has started", "lives on and is")
        } else {
            ("processes that it has started", "live on and are")
        };
        let how_to = match how {
            Termination::Code(_) => "; start the program with exec, or have the script wait for it",
            Termination::Signal { .. } | Termination::Unknown => "",
        };
        (count > 0).then(|| format!("{proc} has ended ({how}), but {them} {are} killed: {named}{how_to}"))
    }

    /// Those of the guard's children that it has not started itself, as processes of the job or as standbys for them.
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

/// The children of this process's first thread, which is the one that starts processes and is given orphans. `None`: this kernel does
/// not list them.
fn children() -> Option<Vec<i32>> {
    let listed = fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id())).ok()?;
    Some(listed.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// Whether it is a helper of Python's `multiprocessing`, which ends by itself a moment after its parent.
fn ends_with_its_parent(pid: i32) -> bool {
    let line = command_line(pid);
    ["multiprocessing.resource_tracker", "multiprocessing.forkserver"].iter().any(|name| line.contains(name))
}

/// Its arguments, each with a NUL behind it.
fn command_line(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).into_owned()
}

/// The beginning of a process's command line, without what is a secret by its name.
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
