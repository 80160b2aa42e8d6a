//! What the guard asks of Linux that neither the standard library nor rustix offers safely: signals, the steps between
//! fork and exec, waiting for any child, descriptors.
//!
//! Every function does one system call, or a few that belong together; it decides nothing. This is the only file of the
//! guard with `unsafe`.
#![allow(unsafe_code)]

use crate::job::Termination;
use crate::worker::page::Page;
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::thread::CpuSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Blocks SIGCHLD and SIGTERM for this thread and those that it starts later, and returns a descriptor that reads them.
/// Whoever started this process may have ignored them, and that is inherited.
pub(super) fn take_signals() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: SIG_DFL is a valid disposition for each of the two; `sigemptyset` initialises the set before anything reads it; the other calls get valid pointers; the
    // descriptor that `signalfd` returns is new and owned by nobody else.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for number in [libc::SIGCHLD, libc::SIGTERM] {
            libc::signal(number, libc::SIG_DFL);
            libc::sigaddset(set.as_mut_ptr(), number);
        }
        match libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) {
            0 => (),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        match libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Whether SIGTERM is among the signals that wait at `signals`; takes all of them.
pub(super) fn read_signals(signals: &OwnedFd) -> bool {
    const RECORD_BYTES: usize = size_of::<libc::signalfd_siginfo>();
    let mut terminate = false;
    let mut records = [0u8; RECORD_BYTES * 8];
    while let Ok(n) = rustix::io::read(signals, &mut records) {
        for record in records[..n].chunks_exact(RECORD_BYTES) {
            let number = u32::from_ne_bytes([record[0], record[1], record[2], record[3]]); // ssi_signo comes first
            terminate |= number == libc::SIGTERM.unsigned_abs();
        }
        if n == 0 {
            break;
        }
    }
    terminate
}

/// Signals that come from a terminal or from a peer that is gone never end this process.
pub(super) fn ignore_terminal_signals() {
    for number in
        [libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE, libc::SIGTSTP, libc::SIGUSR1, libc::SIGUSR2]
    {
        // SAFETY: SIG_IGN is a valid disposition for each of these.
        unsafe { libc::signal(number, libc::SIG_IGN) };
    }
}

/// Leaves this process with `/dev/null` as its standard streams and one more descriptor: the socket that was its standard
/// input. Whatever else its parent had open without `O_CLOEXEC` is closed.
///
/// Must be called before anything is opened: who holds a descriptor by another number loses it.
pub(super) fn keep_only_stdin() -> io::Result<OwnedFd> {
    const SOCKET: libc::c_int = 3;
    // SAFETY: descriptor 3 is replaced or new, and is owned by nobody else after `close_from`.
    let socket = unsafe {
        if libc::dup3(0, SOCKET, libc::O_CLOEXEC) == -1 {
            return Err(io::Error::last_os_error());
        }
        close_from(SOCKET + 1)?;
        OwnedFd::from_raw_fd(SOCKET)
    };
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    for standard in 0..3 {
        // SAFETY: replaces a standard stream; it stays open, as `/dev/null`.
        if unsafe { libc::dup2(null.as_raw_fd(), standard) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(socket)
}

/// Closes all descriptors from `first` on.
///
/// # Safety
/// Nobody may use one of them afterwards.
unsafe fn close_from(first: libc::c_int) -> io::Result<()> {
    // SAFETY: a system call without pointers; the caller vouches for the descriptors.
    if unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) } == 0 {
        return Ok(());
    }
    let listed = std::fs::read_dir("/proc/self/fd")?; // Linux before 5.9
    let numbers: Vec<i32> = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|n| *n >= first) {
        // SAFETY: as above. The number of the listing's own descriptor is closed already, which is an error without harm.
        unsafe { libc::close(number) };
    }
    Ok(())
}

/// Marks all descriptors from 3 on as not for the program that this process will execute. Older kernels than Linux 5.11
/// cannot; there only descriptors that were opened without `O_CLOEXEC` by somebody else are left.
fn close_descriptors_at_exec() {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // SAFETY: a system call without pointers.
    unsafe { libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) };
}

/// Keeps all threads on one heap: the guard has many threads that never allocate, and a heap for each would cost memory.
pub(super) fn use_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a parameter of the allocator; called before threads are started.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// The length of a thread's turns on a core in nanoseconds: as the kernel likes.
const USUAL_TURN_NS: u64 = 0;
/// The shortest that can be asked for.
const SHORTEST_TURN_NS: u64 = 100_000;

/// Asks the scheduler to run this thread, and those that it starts later, at once when they have something to do: it
/// works in very short turns, and so need not wait until a computing thread has had its turn (Linux 6.12 and later; older
/// ones do not mind). Needs no privilege and gives no larger share. False: everything stays as it was.
pub(super) fn hurry(nice: i32) -> bool {
    // SAFETY: a system call without pointers.
    let is_ordinary = unsafe { libc::sched_getscheduler(0) } == libc::SCHED_OTHER;
    is_ordinary && schedule(None, nice, SHORTEST_TURN_NS).is_ok()
}

/// Stack of a thread that tries one system call in bytes.
const TRIAL_STACK_BYTES: usize = 32 << 10;

/// Makes the main thread of a process an ordinary one with this nice value.
pub(super) fn schedule_process(pid: Pid, nice: i32) -> io::Result<()> {
    schedule(Some(pid), nice, USUAL_TURN_NS)
}

/// Whether a process that we slow down can have its turns back: not without the privilege for that.
pub(super) fn may_undo_nice(nice: i32, slow: i32) -> bool {
    let trial = move || {
        rustix::process::setpriority_process(None, slow)?; // of this thread alone
        rustix::process::setpriority_process(None, nice)
    };
    let tried =
        std::thread::Builder::new().stack_size(TRIAL_STACK_BYTES).spawn(trial).map(std::thread::JoinHandle::join);
    matches!(tried, Ok(Ok(Ok(()))))
}

/// Makes a thread, this one when `None`, an ordinary one with this nice value and length of turns. Async-signal-safe.
fn schedule(thread: Option<Pid>, nice: i32, turn_ns: u64) -> io::Result<()> {
    let thread = thread.map_or(0, |thread| thread.as_raw_nonzero().get());
    let attributes = libc::sched_attr {
        size: u32::try_from(size_of::<libc::sched_attr>()).unwrap_or(0),
        sched_policy: libc::SCHED_OTHER.unsigned_abs(),
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: turn_ns,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel reads `attributes`, whose size stands in it.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How a child ended, before it is reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) pid: Pid,
    /// Exit code, or number of the signal.
    status: i32,
    by_signal: bool,
    core_dumped: bool,
}

/// The next child that has ended, without reaping it.
pub(super) fn next_ended() -> Option<Ended> {
    ended(libc::P_ALL, 0).ok().flatten()
}

/// How this child has ended, without reaping it; `None` while it runs.
///
/// # Errors
/// `ECHILD`: somebody else in this process has reaped it.
pub(super) fn how_ended(pid: Pid) -> io::Result<Option<Ended>> {
    ended(libc::P_PID, pid.as_raw_nonzero().get().unsigned_abs())
}

fn ended(kind: libc::idtype_t, id: libc::id_t) -> io::Result<Option<Ended>> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `info` is valid for writing; zeroed it is a valid siginfo_t, and stays so when there is nothing to tell;
    // for a child's end the kernel fills in the fields that `si_pid` and `si_status` read.
    let (code, child, status) = unsafe {
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        if libc::waitid(kind, id, info.as_mut_ptr(), options) == -1 {
            return Err(io::Error::last_os_error());
        }
        let info = info.assume_init();
        (info.si_code, info.si_pid(), info.si_status())
    };
    let core_dumped = code == libc::CLD_DUMPED;
    let by_signal = core_dumped || code == libc::CLD_KILLED;
    Ok(Pid::from_raw(child).map(|pid| Ended { pid, status, by_signal, core_dumped }))
}

impl Ended {
    pub(super) fn how(&self) -> Termination {
        match self.by_signal {
            true => Termination::Signal { number: self.status, core_dumped: self.core_dumped },
            false => Termination::Code(self.status),
        }
    }
}

/// What a rank's process does between fork and exec.
#[derive(Debug)]
pub(super) struct BeforeExec {
    /// Who must still be its parent: if not, the guard died meanwhile, and the child must not run.
    pub(super) parent: Pid,
    /// Gets pid and start time of the child; a standby has none yet.
    pub(super) page: Option<Arc<Page>>,
    /// A descriptor that the program gets besides its standard streams.
    pub(super) kept: Option<RawFd>,
    /// The nice value that it runs with.
    pub(super) nice: i32,
    /// Whether the guard is [`hurried`](hurry), which its processes must not inherit.
    pub(super) parent_is_hurried: bool,
    /// On which processors it may run; where the guard may when `None`.
    pub(super) cpus: Option<CpuSet>,
    /// Its limit on open files, which the guard may have raised for itself.
    pub(super) open_files: Rlimit,
}

/// Makes `command` do these steps in the child.
pub(super) fn before_exec(command: &mut Command, steps: BeforeExec) {
    // SAFETY: `BeforeExec::run` keeps to what is allowed after a fork in a program with threads: system calls on memory
    // that was prepared before; it takes no lock and allocates nothing.
    unsafe { command.pre_exec(move || steps.run()) };
}

impl BeforeExec {
    fn run(&self) -> io::Result<()> {
        rustix::process::setsid()?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if rustix::process::getppid() != Some(self.parent) {
            return Err(io::Error::from_raw_os_error(libc::ECHILD));
        }
        reset_signals()?;
        rustix::process::setrlimit(Resource::Nofile, self.open_files)?;
        match self.parent_is_hurried {
            true => schedule(None, self.nice, USUAL_TURN_NS)?,
            false => rustix::process::setpriority_process(None, self.nice)?,
        }
        if let Some(cpus) = &self.cpus {
            rustix::thread::sched_setaffinity(None, cpus)?;
        }
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

/// Default dispositions for all signals, and none blocked: what a program expects that was started from a shell.
fn reset_signals() -> io::Result<()> {
    for number in 1..=64 {
        // SAFETY: async-signal-safe. It fails for numbers that cannot be set; those have their defaults.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set before it is read. Both calls are async-signal-safe.
    let result = unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Field 22 of `/proc/self/stat`, without allocating.
fn own_start_time() -> io::Result<u64> {
    let file = rustix::fs::open(c"/proc/self/stat", OFlags::RDONLY, Mode::empty())?;
    let mut text = [0u8; super::proc_fs::STAT_BYTES_MAX];
    let n = rustix::io::read(file.as_fd(), &mut text)?;
    let stat = super::proc_fs::Stat::parse(&text[..n]);
    stat.map(|s| s.start_time).ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))
}

/// Goes on in a child of this process, which ends at once: the child's parent is whoever takes orphans here. To be called
/// before threads are started.
pub(super) fn leave_parent() -> io::Result<()> {
    // SAFETY: with one thread the child is a whole process, in which everything may be done; the parent runs nothing more.
    unsafe {
        match libc::fork() {
            -1 => Err(io::Error::last_os_error()),
            0 => Ok(()),
            _ => libc::_exit(0),
        }
    }
}

/// What a reaping parent waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InitSignal {
    /// A child has ended.
    Child,
    /// Somebody wants to tell the program something.
    ToForward(i32),
}

/// The signals that are passed on to the program, besides SIGCHLD.
const FORWARDED: [i32; 6] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

/// Forks a process that has one thread. `None` in the child, which goes on as if nothing had happened; in the parent, the
/// child's pid, and every signal that [`next_init_signal`] takes is blocked.
pub(super) fn fork_program() -> io::Result<Option<Pid>> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("this process has threads already: call it first in main"));
    }
    let signals = init_signals();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the sets are valid, `before` is written by the first call before it is read by the second. With one thread
    // the child is a whole process, in which everything may be done.
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

fn init_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set; the numbers are valid.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for number in FORWARDED.into_iter().chain([libc::SIGCHLD]) {
            libc::sigaddset(set.as_mut_ptr(), number);
        }
        set.assume_init()
    }
}

/// Waits for the next signal that matters to a reaping parent. What a terminal sends reaches the program by itself.
pub(super) fn next_init_signal() -> InitSignal {
    let signals = init_signals();
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: both pointers are valid; zeroed, `info` is a valid siginfo_t.
        let (number, info) = unsafe { (libc::sigwaitinfo(&raw const signals, info.as_mut_ptr()), info.assume_init()) };
        match number {
            libc::SIGCHLD => return InitSignal::Child,
            number if number > 0 && info.si_code != libc::SI_KERNEL => return InitSignal::ToForward(number),
            _ => (), // interrupted, or from the terminal
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn structures_are_as_the_kernel_reads_and_writes_them() {
        assert_eq!(size_of::<libc::sched_attr>(), 48); // the first version: later kernels take it, too
        assert_eq!(size_of::<libc::signalfd_siginfo>(), 128);
        assert_eq!(std::mem::offset_of!(libc::signalfd_siginfo, ssi_signo), 0);
    }

    #[test]
    fn signals_are_read_where_they_would_have_ended_the_process() {
        let reader = std::thread::spawn(|| {
            let signals = take_signals().unwrap();
            let before = read_signals(&signals);
            // SAFETY: both signals go to this thread, which blocks them.
            unsafe { assert_eq!((libc::raise(libc::SIGCHLD), libc::raise(libc::SIGTERM)), (0, 0)) };
            (before, read_signals(&signals), read_signals(&signals))
        });
        assert_eq!(reader.join().unwrap(), (false, true, false));
    }

    #[test]
    fn ends_are_told_as_they_were_and_leave_the_child_to_be_reaped() {
        for (script, status, by_signal) in [("exit 7", 7, false), ("kill -9 $$", 9, true)] {
            let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::null()).spawn().unwrap();
            let pid = Pid::from_child(&child);
            let ended = loop {
                match how_ended(pid).unwrap() {
                    Some(ended) => break ended,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(ended, Ended { pid, status, by_signal, core_dumped: false });
            assert_eq!(how_ended(pid).unwrap(), Some(ended));
            child.wait().unwrap();
            assert_eq!(how_ended(pid).unwrap_err().raw_os_error(), Some(libc::ECHILD));
        }
    }

    #[test]
    fn what_runs_between_fork_and_exec_names_the_child_in_its_page() {
        let page = Arc::new(Page::create(0, 1, 1, 0).unwrap().1);
        let mut command = Command::new("sh");
        command.args(["-c", "read line"]).stdin(Stdio::piped());
        let steps = BeforeExec {
            parent: rustix::process::getpid(),
            page: Some(Arc::clone(&page)),
            kept: None,
            nice: 1,
            parent_is_hurried: false,
            cpus: None,
            open_files: rustix::process::getrlimit(Resource::Nofile),
        };
        before_exec(&mut command, steps);
        let mut child = command.spawn().unwrap();
        let stat = super::super::proc_fs::Stat::read(Pid::from_child(&child)).unwrap();
        assert_eq!(page.pid.load(Ordering::Acquire), child.id());
        assert_eq!((stat.session, stat.group), (stat.group, i32::try_from(child.id()).unwrap()));
        // An emulator makes a process's own account of itself, and a forked one has got its parent's.
        let of_parent = super::super::proc_fs::Stat::read(rustix::process::getpid()).unwrap().start_time;
        let (told, is_emulated) = (page.start_time.load(Ordering::Acquire), cfg!(target_arch = "aarch64"));
        assert!(told == stat.start_time || is_emulated && told.abs_diff(of_parent) <= 1);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
