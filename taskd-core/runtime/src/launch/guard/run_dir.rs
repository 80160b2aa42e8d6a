//! The run directory: all files that a local job leaves on disk, and the record of the guard that owns it.
//!
//! This module defines the names, and reads and writes the record; it never removes the output of a process.
//!
//! # Layout
//! | path | content |
//! |---|---|
//! | `guard.json` | the running guard: protocol version, job id, pid; removed after an orderly end |
//! | `guard.procs` | the processes that the guard has started, for the next guard; removed after an orderly end |
//! | `guard.end` | how the last guard ended, if it could record that; removed once it was reported |
//! | `guard.lock` | locked while a guard runs here; never removed |
//! | `guard.sock` | the socket for a new owner; removed after an orderly end |
//! | `worker.sock` | the socket for training processes; removed after an orderly end |
//! | `guard.log`, `guard.log.1` | the guard's log |
//! | `procs/rank-3.2/stdout.log`, `stderr.log` | the output of incarnation 2 of rank 3 |
//! | `procs/rank-3.2/stdout.log.1`, `stderr.log.1` | the part before the size limit was reached, or an earlier job's |
//! | `procs/service-NAME.1/...` | the same for a service |

use super::wire::JobId;
use crate::job::{ProcId, Role};
use crate::launch::GuardEnd;
use crate::private;
use crate::proc_fs;
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

const LOCK: &str = "guard.lock";
const RECORD: &str = "guard.json";
const GUARD_SOCKET: &str = "guard.sock";
const GUARD_END: &str = "guard.end";
const WORKER_SOCKET: &str = "worker.sock";
const SESSIONS: &str = "guard.procs";
const OLDER_SESSIONS: &str = "guard.procs.1";
/// Maximum number of bytes read from it: about fifty thousand starts.
const SESSIONS_BYTES_MAX: u64 = 2 << 20;
/// Maximum number of bytes read from one of the other files.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// The socket at which training processes connect.
#[derive(Debug)]
pub(crate) struct WorkerDoor {
    pub(crate) listener: UnixListener,
    /// Path for the processes, valid as long as this value is held.
    pub(crate) path: PathBuf,
    _directory: OwnedFd,
}

/// A run directory.
#[derive(Clone, Debug)]
pub(crate) struct RunDir(PathBuf);

/// Content of `guard.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) protocol: u32,
    pub(crate) job: JobId,
    pub(crate) guard_pid: u32,
    /// Together with the pid it identifies a process permanently; 0 in a record of an earlier version.
    #[serde(default)]
    pub(crate) guard_start_time: u64,
    /// Device and inode of the directory: a record that was copied to another directory is not valid there.
    #[serde(default)]
    pub(crate) dir: Option<(u64, u64)>,
    #[serde(default)]
    pub(crate) job_name: Option<String>,
    /// Boot id of the machine, since pids and start times are valid for one boot only.
    #[serde(default)]
    pub(crate) boot: Option<String>,
    /// Directory of the control group that holds the guard and all that it has started.
    #[serde(default)]
    pub(crate) cgroup: Option<PathBuf>,
}

impl Record {
    /// Returns true if the guard of this record is running.
    pub(crate) fn guard_is_running(&self) -> bool {
        self.is_of_this_boot() && proc_fs::is_running((self.guard_pid, self.guard_start_time))
    }

    fn is_of_this_boot(&self) -> bool {
        self.boot.is_some() && self.boot == this_boot()
    }
}

impl RunDir {
    pub(crate) const fn new(path: PathBuf) -> RunDir {
        RunDir(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the directory, accessible to this user only, and checks that files can be made in it.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        private::make_dir(&self.0)?; // a parent may be sticky, but not the directory itself
        private::make_dir(&self.0.join("procs"))?;
        self.open_lock().map(drop)
    }

    fn open_lock(&self) -> io::Result<fs::File> {
        private::open(&self.0.join(LOCK))
    }

    /// Takes the lock of a running guard; returns `None` if another process has it. Dropping the file releases it.
    pub(crate) fn try_lock(&self) -> io::Result<Option<fs::File>> {
        let file = self.open_lock()?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns true if this lock's file is the one that other processes would lock.
    pub(crate) fn is_locked_by(&self, lock: &fs::File) -> bool {
        let at_path = fs::symlink_metadata(self.0.join(LOCK)).map(|there| (there.dev(), there.ino()));
        lock.metadata().is_ok_and(|held| at_path.is_ok_and(|there| there == (held.dev(), held.ino())))
    }

    /// Returns true if all files exist by which a running guard is found.
    pub(crate) fn has_files(&self) -> bool {
        [LOCK, RECORD].iter().all(|name| self.has(name)) && self.has_guard_socket() && self.has_worker_socket()
    }

    pub(crate) fn has_guard_socket(&self) -> bool {
        self.has(GUARD_SOCKET)
    }

    pub(crate) fn has_worker_socket(&self) -> bool {
        self.has(WORKER_SOCKET)
    }

    fn has(&self, name: &str) -> bool {
        self.0.join(name).symlink_metadata().is_ok()
    }

    /// Reads the record of the guard that runs here, or that ran here and had no orderly end. A record that was copied
    /// from another directory is ignored, and so is one with an invalid job id, since a job's processes are killed by
    /// it.
    pub(crate) fn record(&self) -> Option<Record> {
        let bytes = private::read(&self.0.join(RECORD), RECORD_BYTES_MAX).inspect_err(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!("{} in {} is not used: {error}", RECORD, self.0.display());
            }
        });
        let record: Record = serde_json::from_slice(&bytes.ok()?).ok()?;
        let is_of_here = record.dir.is_some() && record.dir == self.identity().ok();
        if !is_of_here || !record.job.is_valid() {
            tracing::warn!(
                "{} in {} belongs to another directory or is damaged, and is not used",
                RECORD,
                self.0.display()
            );
            return None;
        }
        Some(record)
    }

    /// Returns device and inode of the directory.
    pub(crate) fn identity(&self) -> io::Result<(u64, u64)> {
        fs::metadata(&self.0).map(|here| (here.dev(), here.ino()))
    }

    /// Writes the record atomically.
    pub(crate) fn write_record(&self, record: &Record) -> io::Result<()> {
        private::write(&self.0.join(RECORD), &serde_json::to_vec(record)?)
    }

    /// Writes how the guard ends, atomically.
    pub(crate) fn write_end(&self, end: &GuardEnd) -> io::Result<()> {
        private::write(&self.0.join(GUARD_END), &serde_json::to_vec(end)?)
    }

    /// Returns how the last guard here ended, as it recorded itself, or that it left no record of its end. `None`:
    /// there was no guard, or the end was reported already.
    pub(crate) fn last_end(&self) -> Option<GuardEnd> {
        if let Some(record) = self.record() {
            let pid = record.guard_pid;
            let why = format!(
                "guard {pid}, which ran here before, has recorded no end: it was killed, or its host was restarted"
            );
            return Some(GuardEnd::new(why));
        }
        serde_json::from_slice(&private::read(&self.0.join(GUARD_END), RECORD_BYTES_MAX).ok()?).ok()
    }

    /// Removes the record of the last end, after it was reported.
    pub(crate) fn forget_end(&self) {
        let _ = fs::remove_file(self.0.join(GUARD_END)); // if it stays, the guard instance in it distinguishes the two
    }

    /// Listens at `guard.sock`, in place of a dead guard.
    pub(crate) fn listen(&self) -> io::Result<UnixListener> {
        self.listen_at(GUARD_SOCKET)
    }

    /// Listens for training processes at `worker.sock`. They reach it through this process's descriptor of the
    /// directory, since the directory's path may be too long for a socket address.
    pub(crate) fn listen_for_workers(&self) -> io::Result<WorkerDoor> {
        let listener = self.listen_at(WORKER_SOCKET)?;
        let directory = self.open()?;
        let fd = directory.as_raw_fd();
        let path = PathBuf::from(format!("/proc/{}/fd/{fd}/{WORKER_SOCKET}", std::process::id()));
        Ok(WorkerDoor { listener, path, _directory: directory })
    }

    fn listen_at(&self, name: &str) -> io::Result<UnixListener> {
        let socket = self.0.join(name);
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => (),
        }
        let directory = self.open()?;
        let listener = UnixListener::bind(short_path(&directory, name))?;
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Connects to the guard.
    pub(crate) fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(short_path(&self.open()?, GUARD_SOCKET))
    }

    fn open(&self) -> io::Result<OwnedFd> {
        Ok(rustix::fs::open(&self.0, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Removes the files that indicate a running guard.
    pub(crate) fn forget_guard(&self) {
        for name in [RECORD, GUARD_SOCKET, WORKER_SOCKET, SESSIONS, OLDER_SESSIONS] {
            let _ = fs::remove_file(self.0.join(name)); // if one stays, the lock shows that no guard is running
        }
    }

    /// Returns the log of the processes that the guard has started, each the leader of a session.
    pub(crate) fn sessions_log(&self) -> PathBuf {
        self.0.join(SESSIONS)
    }

    /// Returns the processes that the dead guard of this record has started: pid and start time.
    pub(crate) fn sessions(&self, record: &Record) -> Vec<(i32, u64)> {
        if !record.is_of_this_boot() {
            return Vec::new();
        }
        let read = |name: &str| private::read(&self.0.join(name), SESSIONS_BYTES_MAX).unwrap_or_default();
        let bytes = [read(OLDER_SESSIONS), read(SESSIONS)].concat();
        let line = |line: &str| {
            let (guard, rest) = line.split_once(' ')?;
            let (pid, start_time) = rest.split_once(' ')?;
            (guard.parse() == Ok(record.guard_pid)).then_some((pid.parse().ok()?, start_time.parse().ok()?))
        };
        String::from_utf8_lossy(&bytes).lines().filter_map(line).collect()
    }

    pub(crate) fn guard_log(&self) -> PathBuf {
        self.0.join("guard.log")
    }

    /// Returns the output directory of a process.
    pub(crate) fn proc_dir(&self, proc: &ProcId) -> PathBuf {
        self.0.join("procs").join(proc_name(proc))
    }
}

/// Returns the boot id of the machine.
pub(crate) fn this_boot() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|id| id.trim().to_owned())
}

/// Returns a path of the socket that is short enough for its address, however long the directory's path is.
fn short_path(directory: &OwnedFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}

/// Returns the name of a process in paths and in its environment: `rank-3.2`, `service-scheduler.1`.
pub(crate) fn proc_name(proc: &ProcId) -> String {
    match &proc.role {
        Role::Rank(rank) => format!("rank-{}.{}", rank.0, proc.incarnation.0),
        Role::Service(name) => {
            // A name is free text; in a path it must neither leave the directory nor collide with another service.
            let safe = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
            let mut text = String::new();
            for b in name.as_str().bytes() {
                if safe(b) { text.push(char::from(b)) } else { text.push_str(&format!("%{b:02x}")) }
            }
            format!("service-{text}.{}", proc.incarnation.0)
        }
    }
}

/// Makes a new job id.
pub(crate) fn new_job_id() -> io::Result<JobId> {
    let mut random = [0u8; 16];
    private::fill_with_random(&mut random)?;
    Ok(JobId(random.iter().map(|b| format!("{b:02x}")).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Name;

    #[test]
    fn names_of_services_stay_in_their_directory_and_apart() {
        assert_eq!(proc_name(&ProcId::rank(3, 2)), "rank-3.2");
        let names = ["../x", "..%2fx", "a b", "a%20b"].map(|n| proc_name(&ProcId::service(Name::new(n), 1)));
        assert!(names.iter().all(|n| !n.contains('/')));
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    }

    #[test]
    fn a_directory_with_a_long_name_has_a_socket() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(dir.path().join("x".repeat(200)));
        run_dir.prepare().unwrap();
        let _listener = run_dir.listen().unwrap();
        run_dir.connect().unwrap();
    }

    #[test]
    fn a_run_directory_is_locked_by_one_guard_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(dir.path().to_owned());
        run_dir.prepare().unwrap();
        let first = run_dir.try_lock().unwrap();
        assert!(first.is_some() && run_dir.try_lock().unwrap().is_none());
        drop(first);
        assert!(run_dir.try_lock().unwrap().is_some());
    }
}
