//! Forks: of the guard itself, of a reaping parent, and of a rank, with the steps of its child before exec.
//!
//! This module never waits for a forked process.
#![allow(unsafe_code)]

use super::descriptors::close_descriptors_at_exec;
use super::schedule::{USUAL_TURN_NS, schedule};
use super::signals::{init_signals, reset_signals};
use crate::launch::guard::refused::Step;
use crate::proc_fs::{STAT_BYTES_MAX, Stat};
use crate::worker::page::Page;
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::thread::CpuSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Makes all threads share one heap: the guard has many threads that never allocate, and a heap for each costs memory.
pub(in crate::launch::guard) fn use_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a parameter of the allocator; called before threads are started.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Steps of a rank's process between fork and exec.
#[derive(Debug)]
pub(in crate::launch::guard) struct BeforeExec {
    /// Expected parent: if the child has another one, the guard has died meanwhile, and the child must not run.
    pub(in crate::launch::guard) parent: Pid,
    /// File by which the child enters its control group, which its descendants inherit.
    pub(in crate::launch::guard) cgroup: Option<OwnedFd>,
    /// Receives pid and start time of the child; a standby has no page yet.
    pub(in crate::launch::guard) page: Option<Arc<Page>>,
    /// A descriptor that the program inherits in addition to its standard streams.
    pub(in crate::launch::guard) kept: Option<RawFd>,
    /// Nice value of the program.
    pub(in crate::launch::guard) nice: i32,
    /// True if the guard is [`hurried`](super::hurry), which its processes must not inherit.
    pub(in crate::launch::guard) parent_is_hurried: bool,
    /// Allowed processors; those of the guard if `None`.
    pub(in crate::launch::guard) cpus: Option<CpuSet>,
    /// Limit of open files from before the guard raised its own.
    pub(in crate::launch::guard) open_files: Rlimit,
    /// Eventfd in which the child records its last step, since only the number of an error reaches the parent.
    pub(in crate::launch::guard) reported: OwnedFd,
}

/// Makes `command` run these steps in the child.
pub(in crate::launch::guard) fn before_exec(command: &mut Command, steps: BeforeExec) {
    // SAFETY: `BeforeExec::run` keeps to the rules after a fork in a program with threads: it makes system calls on
    // memory that was prepared before the fork, takes no lock and does not allocate.
    unsafe { command.pre_exec(move || steps.run()) };
}

impl BeforeExec {
    fn run(&self) -> io::Result<()> {
        let mut step = Step::Setsid;
        let done = self.run_to(&mut step);
        let number = if done.is_ok() { Step::Exec } else { step } as u64;
        let _ = rustix::io::write(&self.reported, &number.to_ne_bytes()); // if it fails, the error names no step
        done
    }

    fn run_to(&self, step: &mut Step) -> io::Result<()> {
        if let Some(door) = &self.cgroup {
            let _ = rustix::io::write(door, b"0"); // may fail: the guard checks the membership
        }
        rustix::process::setsid()?;
        *step = Step::DeathSignal;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        *step = Step::Parent;
        if rustix::process::getppid() != Some(self.parent) {
            return Err(io::Error::from_raw_os_error(libc::ECHILD));
        }
        *step = Step::Signals;
        reset_signals()?;
        *step = Step::OpenFiles;
        rustix::process::setrlimit(Resource::Nofile, self.open_files)?;
        *step = Step::Priority;
        match self.parent_is_hurried {
            true => schedule(None, self.nice, USUAL_TURN_NS)?,
            false => rustix::process::setpriority_process(None, self.nice)?,
        }
        *step = Step::Affinity;
        if let Some(cpus) = &self.cpus {
            rustix::thread::sched_setaffinity(None, cpus)?;
        }
        *step = Step::StartTime;
        if let Some(page) = &self.page {
            page.start_time.store(own_start_time()?, Ordering::Relaxed);
            page.pid.store(rustix::process::getpid().as_raw_nonzero().get().unsigned_abs(), Ordering::Release);
        }
        close_descriptors_at_exec();
        if let Some(kept) = self.kept {
            // SAFETY: a system call without pointers; the descriptor is this process's own.
            unsafe { libc::fcntl(kept, libc::F_SETFD, 0) };
        }
        Ok(())
    }
}

/// Reads field 22 of `/proc/self/stat` without allocating.
fn own_start_time() -> io::Result<u64> {
    let file = rustix::fs::open(c"/proc/self/stat", OFlags::RDONLY, Mode::empty())?;
    let mut text = [0u8; STAT_BYTES_MAX];
    let n = rustix::io::read(file.as_fd(), &mut text)?;
    let stat = Stat::parse(&text[..n]);
    stat.map(|s| s.start_time).ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))
}

/// Continues in a child of this process, and ends the parent at once, so that the child is adopted by the process that
/// adopts orphans here. To be called before threads are started.
pub(in crate::launch::guard) fn leave_parent() -> io::Result<()> {
    // SAFETY: with one thread the child is a complete process without restrictions; the parent runs no further code.
    unsafe {
        match libc::fork() {
            -1 => Err(io::Error::last_os_error()),
            0 => Ok(()),
            _ => libc::_exit(0),
        }
    }
}

/// Forks a process that has one thread. Returns `None` in the child, which continues with the original signal mask.
/// Returns the child's pid in the parent, where every signal that [`next_init_signal`](super::next_init_signal) takes
/// is blocked.
pub(in crate::launch::guard) fn fork_program() -> io::Result<Option<Pid>> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("this process has threads already: call it first in main"));
    }
    let signals = init_signals();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the sets are valid, and `before` is written by the first call before it is read by the second. With one
    // thread the child is a complete process without restrictions.
    unsafe {
        libc::sigprocmask(libc::SIG_BLOCK, &raw const signals, before.as_mut_ptr());
        match libc::fork() {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                libc::sigprocmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
                Ok(None)
            }
            child => Ok(Pid::from_raw(child)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn a_child_writes_its_pid_and_start_time_to_its_page_before_exec() {
        let page = Arc::new(Page::create(0, 1, 1, 0).unwrap().1);
        let mut command = Command::new("sh");
        command.args(["-c", "read line"]).stdin(Stdio::piped());
        let steps = BeforeExec {
            parent: rustix::process::getpid(),
            cgroup: None,
            page: Some(Arc::clone(&page)),
            kept: None,
            nice: 1,
            parent_is_hurried: false,
            cpus: None,
            open_files: rustix::process::getrlimit(Resource::Nofile),
            reported: rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap(),
        };
        before_exec(&mut command, steps);
        let mut child = command.spawn().unwrap();
        let stat = Stat::read(Pid::from_child(&child)).unwrap();
        assert_eq!(page.pid.load(Ordering::Acquire), child.id());
        assert_eq!((stat.session, stat.group), (stat.group, i32::try_from(child.id()).unwrap()));
        // An emulator shows the values of a process that it keeps itself; a forked process has its parent's.
        let of_parent = Stat::read(rustix::process::getpid()).unwrap().start_time;
        let (start_time, is_emulated) = (page.start_time.load(Ordering::Acquire), cfg!(target_arch = "aarch64"));
        assert!(start_time == stat.start_time || is_emulated && start_time.abs_diff(of_parent) <= 1);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
