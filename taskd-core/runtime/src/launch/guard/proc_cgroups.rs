//! The control group of each process of a job, below the control group of its guard. When the process ends, the guard
//! ends everything that the process has started by this group.
//!
//! A daemon has its own session, environment and parent; only its control group shows which rank has started it. A
//! process enters its group before it executes its program. A standby is moved while it waits, by a separate thread,
//! since Linux takes about ten milliseconds to move a process, and far less for those that follow immediately. It is not
//! assigned a rank before: a daemon that the rank starts at once would be in no group but the guard's.

use super::cgroup::{self, ControlGroup};
use crate::proc_fs::Stat;
use rustix::event::EventfdFlags;
use rustix::process::Pid;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Stack size of the thread in bytes.
const STACK_BYTES: usize = 64 << 10;
/// Time limit for removing the remains of a standby; whatever is left then ends with the guard.
const REMOVED_WITHIN: Duration = Duration::from_secs(5);
/// Time that one check waits for a group to freeze, if it cannot be killed as a whole; the next check continues.
const FREEZES_WITHIN: Duration = Duration::from_millis(4);
/// Prefix of a group's directory name; a number follows.
const PREFIX: &str = "proc-";

/// The group of one process. Contains nothing until it is known whether the group can be made, then the group or `None`.
/// The default is no group.
#[derive(Clone, Debug)]
pub(super) struct ProcCgroup(Arc<OnceLock<Option<ControlGroup>>>);

impl Default for ProcCgroup {
    fn default() -> ProcCgroup {
        ProcCgroup(Arc::new(OnceLock::from(None)))
    }
}

impl ProcCgroup {
    /// Returns false while the process is still being moved into the group.
    pub(super) fn is_settled(&self) -> bool {
        self.0.get().is_some()
    }

    fn get(&self) -> Option<&ControlGroup> {
        self.0.get()?.as_ref()
    }

    /// Returns the processes in the group, including the process itself.
    pub(super) fn processes(&self) -> Vec<Pid> {
        self.get().map(ControlGroup::processes).unwrap_or_default()
    }

    /// Kills all processes in the group, however fast they fork.
    pub(super) fn kill(&self) {
        self.get().into_iter().for_each(|group| group.kill(FREEZES_WITHIN));
    }

    /// Returns true if this process is in the group.
    pub(super) fn holds(&self, pid: Pid) -> bool {
        self.get().is_some_and(|group| group.holds(pid))
    }
}

/// Lines of the standbys whose groups are settled since the guard's loop has last looked.
#[derive(Debug)]
pub(super) struct Settled {
    /// Readable while there are such lines.
    pub(super) ready: OwnedFd,
    lines: Mutex<Vec<u64>>,
}

impl Settled {
    fn new() -> io::Result<Arc<Settled>> {
        let ready = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Settled { ready, lines: Mutex::default() }))
    }

    pub(super) fn take(&self) -> Vec<u64> {
        let _ = rustix::io::read(&self.ready, &mut [0u8; 8]); // reset; a line from now on is taken below
        std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, line: u64) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes()); // fails only if it is readable already
    }
}

/// All groups of a guard's processes.
#[derive(Debug)]
pub(super) struct ProcCgroups {
    guard: Arc<ControlGroup>,
    settled: Arc<Settled>,
    made: u64,
    /// Queue of the thread that does these tasks; `None` if the thread could not be started.
    tasks: Option<Sender<Task>>,
}

#[derive(Debug)]
enum Task {
    /// Makes a control group of this name for a standby of a line, and moves the standby into it.
    Move { group: ProcCgroup, name: String, process: (Pid, u64), line: u64 },
    /// Kills all processes in a control group, and removes it.
    Remove(ProcCgroup),
}

impl ProcCgroups {
    /// # Errors
    /// Fails if no descriptor can be made.
    pub(super) fn below(guard: ControlGroup) -> io::Result<ProcCgroups> {
        let (guard, settled) = (Arc::new(guard), Settled::new()?);
        let (tasks, received) = mpsc::channel();
        let (above, done) = (Arc::clone(&guard), Arc::clone(&settled));
        let thread = std::thread::Builder::new().name("taskd-cgroups".into()).stack_size(STACK_BYTES);
        let started = thread.spawn(move || do_tasks(&above, &done, &received));
        Ok(ProcCgroups { guard, settled, made: 0, tasks: started.is_ok().then_some(tasks) })
    }

    /// Returns the queue of the groups that are settled.
    pub(super) const fn settled(&self) -> &Arc<Settled> {
        &self.settled
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
            Ok(door) => Ok((ProcCgroup(Arc::new(Some(group).into())), door.into())),
            Err(error) => {
                let _ = fs::remove_dir(group.directory()); // an empty group does no harm
                Err(error)
            }
        }
    }

    /// Makes a group for a standby of a line; the process is moved into it soon.
    pub(super) fn make_for(&mut self, process: (Pid, u64), line: u64) -> ProcCgroup {
        let group = ProcCgroup(Arc::default());
        let name = self.next_name();
        match self.ask(Task::Move { group: group.clone(), name, process, line }) {
            true => group,
            false => ProcCgroup::default(),
        }
    }

    /// Removes the group of an ended process, with all remaining processes.
    pub(super) fn remove(&self, group: ProcCgroup) {
        let _ = self.ask(Task::Remove(group)); // without the thread there is none
    }

    fn next_name(&mut self) -> String {
        self.made += 1;
        format!("{PREFIX}{}", self.made)
    }

    /// Returns false if there is no thread to do the task: all processes are then in the guard's group.
    fn ask(&self, task: Task) -> bool {
        self.tasks.as_ref().is_some_and(|tasks| tasks.send(task).is_ok())
    }
}

fn do_tasks(guard: &ControlGroup, settled: &Settled, tasks: &Receiver<Task>) {
    for task in tasks {
        match task {
            Task::Move { group, name, process, line } => {
                let _ = group.0.set(moved(guard, &name, process).ok()); // no other code sets it
                settled.put(line);
            }
            Task::Remove(group) => _ = group.get().map(|group| group.remove(REMOVED_WITHIN)),
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
