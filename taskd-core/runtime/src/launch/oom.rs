//! Detects kills by the kernel's OOM killer, and the limit that was reached.
//!
//! Sources are the counters of the process's control group (v2 `memory.events`, v1 `memory.oom_control`), those of the
//! host (`/proc/vmstat`) if no such group is visible, and the kernel's log if it may be read. A signal alone is never
//! taken as proof.

use super::control_groups::{Hierarchy, Membership, find};
use crate::job::{ErrorReport, Name, Termination};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};
use std::fs;
use std::path::{Path, PathBuf};

/// Family of error reports about actions of the kernel.
const KERNEL: Name = Name::new("kernel");
/// Error type of a process that was killed for lack of memory.
const OUT_OF_MEMORY: Name = Name::new("OutOfMemory");

/// A version 1 group limit of this many bytes or more means that there is no limit.
const NO_LIMIT_BYTES: u64 = 1 << 62;
/// Text in the kernel's log that precedes the killed process.
const KILLED_PROCESS: &str = "Killed process";
/// Name that Linux gives the PID namespace whose numbers its log uses.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";
/// Maximum length of a record of the kernel's log, in bytes.
const RECORD_BYTES_MAX: usize = 8 << 10;
/// Maximum number of log records that are read.
const RECORDS_MAX: usize = 50_000;

/// Counts OOM kills in a process's place since the counter was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OomCounter {
    place: Place,
    /// Number of OOM kills when the counter was created or last read.
    seen: u64,
}

/// A place in which kills are counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// A control group: its directory, the mount point above it, its name, and true if it is of version 2.
    Group { directory: PathBuf, mount: PathBuf, name: String, is_v2: bool },
    /// The whole host.
    Host,
}

impl OomCounter {
    /// Creates a counter for the current place of this process. `None`: there is no readable counter.
    pub(super) fn of(pid: Pid) -> Option<OomCounter> {
        OomCounter::of_files(pid, Path::new("/"))
    }

    /// Creates a counter like [`of`](Self::of), with `/proc` and the mounts below `root`.
    fn of_files(pid: Pid, root: &Path) -> Option<OomCounter> {
        let read = |path: &str| fs::read_to_string(root.join(path)).ok();
        let group = read(&format!("proc/{}/cgroup", pid.as_raw_nonzero())).zip(read("proc/self/mountinfo"));
        let group = group.and_then(|(groups, mounts)| Place::group(&groups, &mounts, root));
        let counted = |place: Place| place.kills(root).map(|seen| OomCounter { place, seen });
        group.and_then(counted).or_else(|| counted(Place::Host))
    }

    /// Returns the number of kills that have not been attributed yet.
    pub(super) fn pending(&self) -> u64 {
        self.place.kills(Path::new("/")).unwrap_or(self.seen).saturating_sub(self.seen)
    }

    /// Returns a report if Linux has killed the process for lack of memory. One kill explains one process.
    pub(super) fn explain(&mut self, pid: Pid, how: Termination) -> Option<ErrorReport> {
        if !matches!(how, Termination::Signal { number, .. } if number == Signal::KILL.as_raw()) {
            return None;
        }
        if self.pending() == 0 {
            return None;
        }
        self.explain_by(pid, kernel_log())
    }

    fn explain_by(&mut self, pid: Pid, log: Option<String>) -> Option<ErrorReport> {
        let logged = log.as_ref().and_then(|log| Logged::find(log, pid.as_raw_nonzero().get()));
        if logged.is_none() && log.is_some_and(|log| log.contains(KILLED_PROCESS)) && numbers_are_the_kernels() {
            return None; // the kill was of another process
        }
        self.seen += 1;
        let text = self.place.sentence(logged.as_ref());
        Some(ErrorReport::new(KERNEL, OUT_OF_MEMORY, text))
    }

    /// Returns a sentence that a process in this place was killed for lack of memory, if there are kills that were not
    /// reported yet.
    pub(super) fn unexplained(&mut self) -> Option<String> {
        let kills = self.pending();
        self.seen += kills;
        let what = if kills == 1 { "a process" } else { "processes" };
        (kills > 0).then(|| format!("the kernel has killed {what} {}", self.place.reason(None)))
    }

    /// Marks all kills so far as accounted for: they explain no later exit.
    pub(super) fn settle(&mut self) {
        self.seen += self.pending();
    }

    /// Returns true if both count the same kills.
    pub(super) fn is_same_place(&self, other: &OomCounter) -> bool {
        self.place == other.place
    }
}

impl Place {
    /// Finds the control group that counts the memory of a process, given its `/proc/PID/cgroup`.
    fn group(groups: &str, mounts: &str, root: &Path) -> Option<Place> {
        let hierarchies = [Hierarchy::V1("memory"), Hierarchy::V2];
        let (hierarchy, found) =
            hierarchies.into_iter().find_map(|one| Some((one, find(one, groups, mounts, root)?)))?;
        let is_v2 = hierarchy == Hierarchy::V2;
        let Membership { directory, mount, name } = found;
        // A group without the memory controller is counted with the nearest ancestor that has it.
        let counts = |group: &&Path| group.starts_with(&mount) && (!is_v2 || group.join("memory.events").exists());
        let directory = directory.ancestors().find(counts).map_or(directory.clone(), Path::to_owned);
        Some(Place::Group { directory, mount, name, is_v2 })
    }

    /// Reads the number of OOM kills so far; `None` if it cannot be read.
    fn kills(&self, root: &Path) -> Option<u64> {
        let file = match self {
            Place::Group { directory, is_v2: true, .. } => directory.join("memory.events"),
            Place::Group { directory, is_v2: false, .. } => directory.join("memory.oom_control"),
            Place::Host => root.join("proc/vmstat"),
        };
        let text = fs::read_to_string(file).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    }

    /// Returns the lowest memory limit that applies here, in bytes, and the control group that sets it.
    fn limit(&self) -> Option<(u64, String)> {
        let Place::Group { directory, mount, is_v2, .. } = self else { return None };
        let file = if *is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        let of = |group: &Path| {
            let bytes: u64 = fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()?;
            let name = group.strip_prefix(mount).map(|name| format!("/{}", name.display())).unwrap_or_default();
            (bytes < NO_LIMIT_BYTES).then_some((bytes, name))
        };
        directory.ancestors().take_while(|group| group.starts_with(mount)).filter_map(of).min()
    }

    fn sentence(&self, logged: Option<&Logged>) -> String {
        format!("the kernel killed it {}", self.reason(logged))
    }

    fn reason(&self, logged: Option<&Logged>) -> String {
        let used = logged.and_then(|logged| logged.used_bytes);
        let used = used.map(|bytes| format!("; it used {}", mebibytes(bytes))).unwrap_or_default();
        let of_host = || {
            let total = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
                text.lines()
                    .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.trim().parse().ok())
            });
            let total = total.map(|kib: u64| format!(" of {}", mebibytes(kib << 10))).unwrap_or_default();
            format!(
                "for lack of memory: the host's memory{total} was used up{used}: use less, or fewer processes there"
            )
        };
        let is_of_host = logged.is_some_and(|logged| !logged.is_of_group);
        let limit = self.limit();
        match (self, limit) {
            (Place::Host, _) => of_host(),
            _ if is_of_host => of_host(),
            (Place::Group { .. }, Some((bytes, group))) => format!(
                "for lack of memory: the limit of {} of control group {group} was reached{used}: raise it, or use less memory",
                mebibytes(bytes)
            ),
            (Place::Group { name, .. }, None) => {
                format!(
                    "for lack of memory: its control group {name} has no limit of its own that is visible here{used}: \
                         check the limits above it, and the memory of the host"
                )
            }
        }
    }
}

/// A kill as recorded in the kernel's log.
#[derive(Debug, PartialEq, Eq)]
struct Logged {
    /// True if the limit of a control group was reached; false if the host ran out of memory.
    is_of_group: bool,
    /// Resident anonymous and shared memory of the process, in bytes.
    used_bytes: Option<u64>,
}

impl Logged {
    /// Finds the last OOM kill of a process with this number in the text of the kernel's log.
    fn find(log: &str, pid: i32) -> Option<Logged> {
        let of_this = format!("{KILLED_PROCESS} {pid} (");
        let line = log.lines().rev().find(|line| line.contains(&of_this))?;
        let figure = |name: &str| -> Option<u64> {
            let (_, rest) = line.split_once(name)?;
            rest.split_once("kB").and_then(|(kib, _)| kib.parse::<u64>().ok()).map(|kib| kib << 10)
        };
        let used_bytes = figure("anon-rss:").map(|anonymous| anonymous + figure("shmem-rss:").unwrap_or(0));
        Some(Logged { is_of_group: line.contains("Memory cgroup out of memory"), used_bytes })
    }
}

/// Reads the log of the Linux kernel, if this process may read it.
fn kernel_log() -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open("/dev/kmsg", flags, Mode::empty()).ok()?;
    let mut record = vec![0; RECORD_BYTES_MAX];
    let mut log = String::new();
    for _ in 0..RECORDS_MAX {
        match rustix::io::read(&file, &mut record) {
            Ok(n) => log.push_str(&String::from_utf8_lossy(&record[..n])), // a record ends with a newline
            Err(rustix::io::Errno::PIPE) => {}                             // some records were overwritten meanwhile
            Err(_) => break,
        }
    }
    Some(log)
}

/// Returns true if process numbers here are the same as in the log of the Linux kernel.
fn numbers_are_the_kernels() -> bool {
    fs::read_link("/proc/self/ns/pid").is_ok_and(|name| name.as_os_str() == FIRST_PID_NAMESPACE)
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn mebibytes(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: Termination = Termination::Signal { number: 9, core_dumped: false };

    /// Creates a machine's files in a directory: paths and contents.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n35 31 0:32 /docker/ab /sys/fs/cgroup/mem\\040ory rw - cgroup cgroup rw,memory\n";

    #[test]
    fn oom_kills_in_a_v2_group_are_counted_and_the_lowest_limit_is_named() {
        let root = machine(&[
            ("proc/7/cgroup", "0::/pods/a/b\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/pods/a/b/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"),
            ("sys/fs/cgroup/pods/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/pods/a/memory.max", "536870912\n"),
            ("sys/fs/cgroup/pods/memory.max", "1073741824\n"),
        ]);
        let mut counter = OomCounter::of_files(Pid::from_raw(7).unwrap(), root.path()).unwrap();
        assert_eq!((counter.seen, counter.pending()), (2, 0));
        assert_eq!(counter.explain(Pid::INIT, KILLED), None, "another process has sent the signal");
        let events = root.path().join("sys/fs/cgroup/pods/a/b/memory.events");
        fs::write(&events, "low 0\noom 5\noom_kill 4\n").unwrap();
        assert_eq!(counter.explain(Pid::INIT, Termination::Code(1)), None);
        let report = counter.explain_by(Pid::INIT, None).unwrap();
        assert_eq!((report.family, report.code, report.follow_up), (KERNEL, OUT_OF_MEMORY, false));
        let expected = "the kernel killed it for lack of memory: the limit of 512 MiB of control group /pods/a was reached: \
                        raise it, or use less memory";
        assert_eq!(report.text, expected);
        assert!(counter.explain_by(Pid::INIT, None).is_some(), "two were killed");
        assert_eq!(counter.explain(Pid::INIT, KILLED), None, "and no third");
        fs::write(&events, "oom_kill 5\n").unwrap();
        assert!(
            counter.unexplained().unwrap().contains("has killed a process for lack of memory: the limit of 512 MiB")
        );
        assert_eq!(counter.unexplained(), None);
    }

    #[test]
    fn a_group_without_the_memory_controller_is_counted_with_the_one_above_it() {
        let root = machine(&[
            ("proc/7/cgroup", "0::/pods/a/taskd-0f-1\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/pods/a/taskd-0f-1/cgroup.procs", "7\n"),
            ("sys/fs/cgroup/pods/a/memory.events", "oom_kill 2\n"),
            ("sys/fs/cgroup/pods/a/memory.max", "536870912\n"),
        ]);
        let counter = OomCounter::of_files(Pid::from_raw(7).unwrap(), root.path()).unwrap();
        assert_eq!((counter.seen, counter.place.limit()), (2, Some((512 << 20, "/pods/a".into()))));
    }

    #[test]
    fn groups_of_version_1_are_read_below_the_root_of_their_mount() {
        let root = machine(&[
            ("proc/7/cgroup", "5:devices:/\n4:memory,hugetlb:/docker/ab/rank\n0::/\n"),
            ("proc/self/mountinfo", V1),
            ("sys/fs/cgroup/mem ory/rank/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
            ("sys/fs/cgroup/mem ory/rank/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        let counter = OomCounter::of_files(Pid::from_raw(7).unwrap(), root.path()).unwrap();
        assert_eq!((counter.seen, counter.place.limit()), (1, None));
        assert!(counter.place.sentence(None).contains("its control group /docker/ab/rank has no limit"), "{counter:?}");
    }

    #[test]
    fn oom_counter_of_the_host_is_used_without_a_visible_group() {
        for groups in ["0::/elsewhere\n", "", "nonsense"] {
            let root = machine(&[
                ("proc/7/cgroup", groups),
                ("proc/self/mountinfo", V2),
                ("proc/vmstat", "nr_free 1\noom_kill 6\n"),
            ]);
            let counter = OomCounter::of_files(Pid::from_raw(7).unwrap(), root.path()).unwrap();
            assert_eq!((&counter.place, counter.seen), (&Place::Host, 6), "{groups}");
        }
        let none = machine(&[("proc/vmstat", "nr_free 1\n")]);
        assert_eq!(OomCounter::of_files(Pid::from_raw(7).unwrap(), none.path()), None);
    }

    #[test]
    fn the_kernels_log_names_the_group_that_ran_out_of_memory() {
        let log = "6,1,1,-;Out of memory: Killed process 12 (python) total-vm:9kB, anon-rss:1024kB, file-rss:1kB, shmem-rss:2048kB\n\
                   6,2,1,-;Memory cgroup out of memory: Killed process 123 (a (b) python) total-vm:9kB, anon-rss:2048kB\n";
        assert_eq!(Logged::find(log, 12), Some(Logged { is_of_group: false, used_bytes: Some(3 << 20) }));
        assert_eq!(Logged::find(log, 123), Some(Logged { is_of_group: true, used_bytes: Some(2 << 20) }));
        assert_eq!(Logged::find(log, 1), None);
        let of_host = Place::Host.sentence(Logged::find(log, 12).as_ref());
        assert!(of_host.contains("the host's memory") && of_host.contains("it used 3 MiB"), "{of_host}");
    }
}
