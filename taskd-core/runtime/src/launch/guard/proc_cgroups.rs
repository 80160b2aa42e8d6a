//! The control group of each process of a job, below the control group of its guard. When the process ends, the guard
//! ends everything that the process has started by this group.
//!
//! A daemon has its own session, environment and parent; only its control group shows which rank has started it. A
//! process enters its group before it executes its program. A standby is moved while it waits, by a separate thread,
//! since Linux takes about ten milliseconds to move a process, and far less for those that follow immediately.

use super::cgroup::{self, ControlGroup};
use crate::proc_fs::Stat;
use rustix::process::Pid;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Stack size of the thread in bytes.
const STACK_BYTES: usize = 64 << 10;
/// Time limit for removing the remains of a standby; whatever is left then ends with the guard.
const REMOVED_WITHIN: Duration = Duration::from_secs(5);
/// Time that one check waits for a group to freeze, if it cannot be killed as a whole; the next check continues.
const FREEZES_WITHIN: Duration = Duration::from_millis(4);
/// Prefix of a group's directory name; a number follows.
const PREFIX: &str = "proc-";

/// The group of one process. Empty until the group is made, and if none can be made.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcCgroup(Arc<OnceLock<ControlGroup>>);

impl ProcCgroup {
    /// Returns the processes in the group, including the process itself.
    pub(super) fn processes(&self) -> Vec<Pid> {
        self.0.get().map(ControlGroup::processes).unwrap_or_default()
    }

    /// Kills all processes in the group, however fast they fork.
    pub(super) fn kill(&self) {
        self.0.get().into_iter().for_each(|group| group.kill(FREEZES_WITHIN));
    }

    /// Returns true if this process is in the group.
    pub(super) fn holds(&self, pid: Pid) -> bool {
        self.0.get().is_some_and(|group| group.holds(pid))
    }
}

/// All groups of a guard's processes.
#[derive(Debug)]
pub(super) struct ProcCgroups {
    guard: Arc<ControlGroup>,
    made: u64,
    /// Queue of the thread that does these tasks; `None` if the thread could not be started.
    tasks: Option<Sender<Task>>,
}

#[derive(Debug)]
enum Task {
    /// Makes a control group of this name for a running process, and moves the process into it.
    Move { group: ProcCgroup, name: String, process: (Pid, u64) },
    /// Kills all processes in a control group, and removes it.
    Remove(ProcCgroup),
}

impl ProcCgroups {
    pub(super) fn below(guard: ControlGroup) -> ProcCgroups {
        let guard = Arc::new(guard);
        let (tasks, received) = mpsc::channel();
        let above = Arc::clone(&guard);
        let thread = std::thread::Builder::new().name("taskd-cgroups".into()).stack_size(STACK_BYTES);
        let started = thread.spawn(move || do_tasks(&above, &received));
        ProcCgroups { guard, made: 0, tasks: started.is_ok().then_some(tasks) }
    }

    /// Returns the group of the guard itself, which contains all others.
    pub(super) fn of_guard(&self) -> &ControlGroup {
        &self.guard
    }

    /// Makes a group for a process that is about to start, and opens the file to which the process writes `0` to enter
    /// it.
    ///
    /// # Errors
    /// Fails if the group cannot be made.
    pub(super) fn make(&mut self) -> io::Result<(ProcCgroup, OwnedFd)> {
        let name = self.next_name();
        let group = self.guard.make_below(&name)?;
        match group.door() {
            Ok(door) => Ok((ProcCgroup(Arc::new(group.into())), door.into())),
            Err(error) => {
                let _ = fs::remove_dir(group.directory()); // an empty group does no harm
                Err(error)
            }
        }
    }

    /// Makes a group for a process that waits for a rank; the process is moved into it soon.
    pub(super) fn make_for(&mut self, process: (Pid, u64)) -> ProcCgroup {
        let group = ProcCgroup::default();
        let name = self.next_name();
        self.ask(Task::Move { group: group.clone(), name, process });
        group
    }

    /// Removes the group of an ended process, with all remaining processes.
    pub(super) fn remove(&self, group: ProcCgroup) {
        self.ask(Task::Remove(group));
    }

    fn next_name(&mut self) -> String {
        self.made += 1;
        format!("{PREFIX}{}", self.made)
    }

    fn ask(&self, task: Task) {
        let _ = self.tasks.as_ref().map(|tasks| tasks.send(task)); // else all are in the guard's group
    }
}

fn do_tasks(guard: &ControlGroup, tasks: &Receiver<Task>) {
    for task in tasks {
        match task {
            Task::Move { group, name, process } => {
                if let Ok(made) = moved(guard, &name, process) {
                    let _ = group.0.set(made); // no other code sets it
                }
            }
            Task::Remove(group) => _ = group.0.get().map(|group| group.remove(REMOVED_WITHIN)),
        }
    }
}

/// Makes a control group with this process in it.
fn moved(guard: &ControlGroup, name: &str, (pid, start_time): (Pid, u64)) -> io::Result<ControlGroup> {
    let group = guard.make_below(name)?;
    let is_same = || Stat::read(pid).is_some_and(|now| now.start_time == start_time);
    // The guard may reap the process at any time, and its pid may be reused: processes of other programs are not in the
    // guard's group.
    let is_ours = || guard.holds(pid) && is_same();
    let enter = || match is_ours() {
        true => group.door()?.write_all(pid.as_raw_nonzero().to_string().as_bytes()),
        false => Err(io::ErrorKind::NotFound.into()),
    };
    match enter() {
        Ok(()) => Ok(group),
        Err(error) => {
            let _ = fs::remove_dir(group.directory()); // an empty group does no harm
            Err(error)
        }
    }
}

/// Returns the control groups of a process, as Linux lists them, with its guard's group in place of its own.
pub(crate) fn without_own(groups: &str) -> String {
    let is_own = |above: &str, own: &str| {
        let is_numbered = own.strip_prefix(PREFIX).is_some_and(|number| number.parse::<u64>().is_ok());
        is_numbered && above.rsplit('/').next().is_some_and(|guard| guard.starts_with(cgroup::PREFIX))
    };
    let of_guard = |line: &'_ str| match line.rsplit_once('/') {
        Some((above, own)) if is_own(above, own) => above.to_owned(),
        _ => line.to_owned(),
    };
    groups.lines().map(of_guard).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::without_own;

    #[test]
    fn the_groups_of_a_guards_processes_count_as_one() {
        let list = |own: &str| format!("9:name=systemd:/\n4:memory:/box/proc-4\n0::/a/taskd-0f-17{own}\n");
        assert_eq!(without_own(&list("/proc-12")), without_own(&list("")));
        assert_eq!(without_own(&list("/proc-12")), without_own(&list("/proc-13")));
        assert!(without_own(&list("/proc-1")).contains("/box/proc-4"), "that is another's");
        for other in ["/other", "/proc-", "/proc-x", "/proc-1/below"] {
            assert!(without_own(&list(other)).ends_with(other), "{other}");
        }
    }
}
