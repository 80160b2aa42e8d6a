//! Start of a process from an order.
//!
//! This module starts one process, or returns in one sentence why it cannot; it keeps no record of started processes.

use super::proc_cgroups::ProcCgroup;
use super::refused::{self, Step};
use super::run_dir::proc_name;
use super::standby::Like;
use super::sys::{self, BeforeExec};
use super::wire::{WireOrder, WireSpec};
use crate::proc_fs::Stat;
use crate::trace::recorder::RecorderConfig;
use crate::worker::page::Page;
use rustix::event::EventfdFlags;
use rustix::fs::Access;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Resource, Rlimit};
use rustix::thread::CpuSet;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Search path of a program whose environment has no `PATH`, as in execvp(3).
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// A started process.
#[derive(Debug)]
pub(super) struct Spawned {
    pub(super) pid: Pid,
    pub(super) start_time: u64,
    pub(super) cgroup: ProcCgroup,
    pub(super) page: Arc<Page>,
    /// The memory that begins with the page, followed by space for the process's recorder; only written pages use
    /// memory. While it is open, it can be opened under `page_path`.
    pub(super) page_memory: OwnedFd,
    pub(super) page_path: PathBuf,
    /// Reading ends, non-blocking.
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

/// A lifeline page that no process has yet.
#[derive(Debug)]
pub(super) struct NewPage {
    pub(super) page: Arc<Page>,
    pub(super) memory: OwnedFd,
    pub(super) path: PathBuf,
}

/// Properties that all processes of a guard have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ground {
    pub(super) parent: Pid,
    /// The owner's nice value and limit of open files, from before the guard changed its own.
    pub(super) nice: i32,
    pub(super) open_files: Rlimit,
    /// True if the guard is [`hurried`](sys::hurry).
    pub(super) is_hurried: bool,
}

impl Ground {
    pub(super) fn of_this_process() -> Ground {
        Ground {
            parent: rustix::process::getpid(),
            nice: rustix::process::getpriority_process(None).unwrap_or(0),
            open_files: rustix::process::getrlimit(Resource::Nofile),
            is_hurried: false,
        }
    }

    /// Returns the nice value of a process whose value is to be higher than the owner's by `more`.
    pub(super) fn nice(&self, more: u8) -> i32 {
        (self.nice + i32::from(more)).min(19)
    }

    /// Makes a page for a process, and the memory that begins with it.
    pub(super) fn page(&self, order: &WireOrder, spec: &WireSpec) -> io::Result<NewPage> {
        let rank = order.proc.role.rank().map_or(u32::MAX, |rank| rank.0);
        let variable = |name: &str| order.env.get(name).or_else(|| spec.env.get(name)).cloned();
        let bytes = RecorderConfig::from_env(variable).bytes();
        let (memory, page) = Page::create(rank, order.proc.incarnation.0, order.generation, bytes)
            .map_err(|(call, error)| refused::named(&format!("{call} for its page of {bytes} bytes"), &error))?;
        let path = PathBuf::from(format!("/proc/{}/fd/{}", self.parent.as_raw_nonzero(), memory.as_raw_fd()));
        Ok(NewPage { page: Arc::new(page), memory, path })
    }

    /// Starts a process. `program` is the result of [`find_program`]; the process inherits `listener`, and enters
    /// `cgroup` through the file `door`.
    pub(super) fn spawn(
        &self,
        order: &WireOrder,
        spec: &WireSpec,
        program: &Path,
        listener: Option<RawFd>,
        (cgroup, door): (ProcCgroup, Option<OwnedFd>),
    ) -> io::Result<Spawned> {
        let NewPage { page, memory: page_memory, path: page_path } = self.page(order, spec)?;
        let (asked, reported) = outcome()?;
        let steps = BeforeExec {
            parent: self.parent,
            cgroup: door,
            page: Some(Arc::clone(&page)),
            kept: listener,
            nice: self.nice(spec.nice),
            parent_is_hurried: self.is_hurried,
            cpus: order.cpus.as_deref().map(cpu_set),
            open_files: self.open_files,
            reported,
        };
        let mut command = Command::new(program);
        let arguments =
            spec.argv.split_first().map_or((program.as_os_str(), &[][..]), |(name, rest)| (name.as_ref(), rest));
        command.arg0(arguments.0).args(arguments.1);
        command.env_clear().envs(&spec.env).envs(&order.env);
        command.env("TASKD_PROC", proc_name(&order.proc)).env("TASKD_LIFELINE", &page_path);
        command.envs(listener.map(|number| ("TASKD_LISTEN_FD", number.to_string())));
        command.current_dir(&spec.cwd);
        let ((stdout, stdout_end), (stderr, stderr_end)) = (pipe()?, pipe()?);
        command.stdin(Stdio::null()).stdout(stdout_end).stderr(stderr_end);
        sys::before_exec(&mut command, steps);
        let child = command.spawn().map_err(|error| self.refused(&asked, &error, spec.nice))?; // the rest cannot fail
        let pid = Pid::from_child(&child);
        // The process is not reaped, so it exists. The page may name a descendant of it by now.
        let start_time = Stat::read(pid).map_or_else(|| page.started().1, |stat| stat.start_time);
        Ok(Spawned { pid, start_time, cgroup, page, page_memory, page_path, stdout, stderr })
    }
}

/// A process that was started to wait for a rank.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) pid: Pid,
    pub(super) start_time: u64,
    /// Reading ends, non-blocking.
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

impl Ground {
    /// Starts a process that waits for a rank at the given end of its socket pair.
    pub(super) fn start_waiting(
        &self,
        like: &Like,
        argv: &[String],
        env: &BTreeMap<String, String>,
        seat: OwnedFd,
        nice: i32,
    ) -> io::Result<Waiting> {
        let (asked, reported) = outcome()?;
        let steps = BeforeExec {
            parent: self.parent,
            cgroup: None, // it is moved while it waits
            page: None,
            kept: Some(seat.as_raw_fd()),
            nice,
            parent_is_hurried: self.is_hurried,
            cpus: None,
            open_files: self.open_files,
            reported,
        };
        let mut command = Command::new(&like.program);
        let (name, arguments) = argv.split_first().ok_or_else(|| io::Error::other("no program is named"))?;
        command.arg0(name).args(arguments).env_clear().envs(env).env("TASKD_STANDBY_FD", seat.as_raw_fd().to_string());
        command.current_dir(&like.cwd);
        let ((stdout, stdout_end), (stderr, stderr_end)) = (pipe()?, pipe()?);
        command.stdin(Stdio::null()).stdout(stdout_end).stderr(stderr_end);
        sys::before_exec(&mut command, steps);
        let child = command.spawn().map_err(|error| self.refused(&asked, &error, 0))?;
        let pid = Pid::from_child(&child);
        let start_time = Stat::read(pid).map_or(0, |stat| stat.start_time); // not reaped, so it exists
        Ok(Waiting { pid, start_time, stdout, stderr })
    }
}

impl Ground {
    /// Returns why a process could not be started, according to the step that its child has recorded.
    fn refused(&self, asked: &OwnedFd, error: &io::Error, more: u8) -> io::Error {
        let mut number = [0; 8];
        let step = match rustix::io::read(asked, &mut number) {
            Ok(_) => Step::of(u64::from_ne_bytes(number)),
            Err(_) => Step::Fork, // no step was recorded
        };
        refused::at(step, error, self.nice(more), self.open_files.current)
    }
}

/// Makes an eventfd and a duplicate: the child records its last step in one, and this process reads the other.
fn outcome() -> io::Result<(OwnedFd, OwnedFd)> {
    let counter = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let counter = counter.map_err(|error| refused::named("eventfd2", &error.into()))?;
    let other = counter.try_clone().map_err(|error| refused::named("fcntl(F_DUPFD_CLOEXEC)", &error))?;
    Ok((counter, other))
}

/// Makes a pipe whose reading end never blocks.
pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let pipe = rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
    let (reader, writer) = pipe.map_err(|error| refused::named("pipe2", &error.into()))?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}

pub(super) fn cpu_set(cpus: &[u16]) -> CpuSet {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| usize::from(**cpu) < CpuSet::MAX_CPU) {
        set.set(usize::from(*cpu));
    }
    set
}

/// Returns the file that an order executes, or a sentence with the reason why it cannot be executed.
pub(super) fn find_program(order: &WireOrder, spec: &WireSpec) -> Result<PathBuf, String> {
    let name = spec.argv.first().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| format!("{}: no program is named", order.proc))?;
    match fs::metadata(&spec.cwd) {
        Err(error) => return Err(format!("{}: working directory {}: {error}", order.proc, spec.cwd.display())),
        Ok(found) if !found.is_dir() => {
            return Err(format!("{}: working directory {} is no directory", order.proc, spec.cwd.display()));
        }
        Ok(_) => (),
    }
    if name.contains('/') {
        let program = spec.cwd.join(name); // exec comes after chdir
        return match may_execute(&program) {
            Ok(()) => Ok(program),
            Err(error) => Err(format!("{}: program {}: {error}", order.proc, program.display())),
        };
    }
    let path = order.env.get("PATH").or_else(|| spec.env.get("PATH")).map_or(DEFAULT_PATH, String::as_str);
    let candidates = std::env::split_paths(path).map(|directory| spec.cwd.join(directory).join(name));
    let mut denied = None;
    for program in candidates {
        match may_execute(&program) {
            Ok(()) => return Ok(program),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => denied = denied.or(Some(program)),
            Err(_) => (),
        }
    }
    Err(match denied {
        Some(program) => format!("{}: program {}: permission denied", order.proc, program.display()),
        None => format!("{}: program {name} is in no directory of its PATH ({path})", order.proc),
    })
}

fn may_execute(program: &Path) -> io::Result<()> {
    if fs::metadata(program)?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    Ok(rustix::fs::access(program, Access::EXEC_OK)?)
}
