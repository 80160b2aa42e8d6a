//! Error text for a process that could not be started: the failed system call, the limit, and the remedy.
//!
//! This module only formats errors.

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::io;

/// Steps of a process start: those of the child between fork and exec, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Step {
    /// The process was not made, or could not enter its working directory.
    Fork = 0,
    Setsid,
    DeathSignal,
    Parent,
    Signals,
    OpenFiles,
    Priority,
    Affinity,
    StartTime,
    /// All earlier steps are done.
    Exec,
}

impl Step {
    const ALL: [Step; 10] = [
        Step::Fork,
        Step::Setsid,
        Step::DeathSignal,
        Step::Parent,
        Step::Signals,
        Step::OpenFiles,
        Step::Priority,
        Step::Affinity,
        Step::StartTime,
        Step::Exec,
    ];

    /// Decodes the number that a child has recorded.
    pub(super) fn of(number: u64) -> Step {
        usize::try_from(number).ok().and_then(|at| Step::ALL.get(at).copied()).unwrap_or(Step::Fork)
    }
}

/// Makes an error with the call that failed, its limit, and a remedy.
pub(super) fn named(call: &str, error: &io::Error) -> io::Error {
    let remedy = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::PERM | Errno::ACCESS | Errno::NOSYS) => {
            "; a sandbox probably forbids it: allow this call in its seccomp profile or security policy".to_owned()
        }
        Some(Errno::MFILE) => format!(
            "; this guard may have {} open files, and needs a few for each process: raise the limit (ulimit -n, LimitNOFILE=)",
            limit(Resource::Nofile)
        ),
        Some(Errno::NFILE) => "; all open files of the host are in use: raise fs.file-max".to_owned(),
        Some(Errno::NOMEM) => {
            "; there is no memory left: check the limit of the control group, and vm.overcommit_memory".to_owned()
        }
        _ => String::new(),
    };
    io::Error::new(error.kind(), format!("{call} failed: {error}{remedy}"))
}

/// Makes the error for a process start that failed at this step.
pub(super) fn at(step: Step, error: &io::Error, nice: i32, open_files: Option<u64>) -> io::Error {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    let with = |call: &str, remedy: String| io::Error::new(error.kind(), format!("{call} failed: {error}; {remedy}"));
    match (step, errno) {
        (Step::Fork, Some(Errno::AGAIN)) => with(
            "fork",
            format!(
                "no more processes are allowed here (RLIMIT_NPROC is {}): raise it, or pids.max of the control group",
                limit(Resource::Nproc)
            ),
        ),
        (Step::Fork, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => named("process creation (fork)", error),
        (Step::Fork, _) => named("process creation (fork, dup2 or chdir)", error),
        (Step::Setsid, _) => named("setsid", error),
        (Step::DeathSignal, _) => named("prctl(PR_SET_PDEATHSIG)", error),
        (Step::Parent, _) => with("getppid", "the guard that started it has ended".to_owned()),
        (Step::Signals, _) => named("sigprocmask", error),
        (Step::OpenFiles, _) => {
            let wanted = open_files.map_or_else(|| "no limit".to_owned(), |files| files.to_string());
            named(&format!("prlimit(RLIMIT_NOFILE), to {wanted} open files,"), error)
        }
        (Step::Priority, Some(Errno::PERM | Errno::ACCESS)) => with(
            &format!("setpriority, to nice value {nice},"),
            format!(
                "this needs CAP_SYS_NICE or RLIMIT_NICE (it is {}), or a sandbox forbids the call: do not lower the nice \
                 value, or allow the call",
                limit(Resource::Nice)
            ),
        ),
        (Step::Priority, _) => named(&format!("setpriority, to nice value {nice},"), error),
        (Step::Affinity, Some(Errno::INVAL)) => with(
            "sched_setaffinity",
            "no processor of its affinity may be used here: see Cpus_allowed_list in /proc/self/status".to_owned(),
        ),
        (Step::Affinity, _) => named("sched_setaffinity", error),
        (Step::StartTime, _) => named("reading /proc/self/stat", error),
        (Step::Exec, Some(Errno::TOOBIG)) => with(
            "execve",
            "its arguments and environment together are longer than Linux allows (a quarter of ulimit -s; 128 KiB each)".to_owned(),
        ),
        (Step::Exec, Some(Errno::NOEXEC)) => {
            with("execve", "it is no program for this machine, and its first line names no interpreter (#!)".to_owned())
        }
        (Step::Exec, Some(Errno::NOENT)) => {
            with("execve", "its interpreter or loader does not exist: see its first line, or run `file` on it".to_owned())
        }
        (Step::Exec, Some(Errno::ACCESS)) => {
            with("execve", "it may not be executed here: check its mode, and if its file system is mounted noexec".to_owned())
        }
        (Step::Exec, _) => named("execve", error),
    }
}

fn limit(resource: Resource) -> String {
    getrlimit(resource).current.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(step: Step, errno: Errno) -> String {
        at(step, &errno.into(), 5, Some(1024)).to_string()
    }

    #[test]
    fn every_step_names_its_call_and_the_error() {
        for step in Step::ALL {
            assert_eq!(Step::of(step as u64), step);
            for errno in
                [Errno::PERM, Errno::AGAIN, Errno::MFILE, Errno::NOMEM, Errno::NOENT, Errno::INVAL, Errno::ACCESS]
            {
                let text = sentence(step, errno);
                assert!(text.contains(" failed: ") && text.contains(&io::Error::from(errno).to_string()), "{text}");
            }
        }
        assert_eq!(Step::of(99), Step::Fork);
    }

    #[test]
    fn a_refused_call_is_reported_with_the_sandbox_or_the_limit() {
        let forbidden = sentence(Step::OpenFiles, Errno::PERM);
        assert!(
            forbidden.contains("prlimit(RLIMIT_NOFILE), to 1024 open files") && forbidden.contains("seccomp"),
            "{forbidden}"
        );
        let nice = sentence(Step::Priority, Errno::PERM);
        assert!(nice.contains("setpriority, to nice value 5,") && nice.contains("RLIMIT_NICE"), "{nice}");
        let fork = sentence(Step::Fork, Errno::AGAIN);
        assert!(fork.contains("RLIMIT_NPROC is ") && fork.contains("pids.max"), "{fork}");
        let files = named("pipe2", &Errno::MFILE.into()).to_string();
        assert!(files.starts_with("pipe2 failed: ") && files.contains(&limit(Resource::Nofile)), "{files}");
        assert!(sentence(Step::Exec, Errno::NOENT).contains("interpreter"));
    }
}
