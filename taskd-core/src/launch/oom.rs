//! Kills by Linux itself, for lack of memory: whether there was one, and which limit was reached.
//!
//! It reads the counters of the control group that a process is in (v2 `memory.events`, v1 `memory.oom_control`), those of the host
//! (`/proc/vmstat`) where no such group can be seen, and the kernel's log where that may be read. It never guesses from a signal alone.

use super::control_groups::{Hierarchy, Membership, find};
use crate::job::{ErrorReport, Name, Termination};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};
use std::fs;
use std::path::{Path, PathBuf};

/// The family of reports about what Linux has done to a process.
const KERNEL: Name = Name::new("kernel");
/// A process that was killed for lack of memory.
const OUT_OF_MEMORY: Name = Name::new("OutOfMemory");

/// A limit of a group of version 1 from which on there is none, in bytes.
const NO_LIMIT_BYTES: u64 = 1 << 62;
/// How the kernel's log names one that it has killed.
const KILLED_PROCESS: &str = "Killed process";
/// How Linux names the namespace whose process numbers are those of its log.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";
/// Longest record of the kernel's log in bytes.
const RECORD_BYTES_MAX: usize = 8 << 10;
/// Most records of it that are looked at.
const RECORDS_MAX: usize = 50_000;

/// Counts kills where a process is: from when it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OomCounter {
    place: Place,
    /// As many as there had been when it was made, or when they were last looked at.
    seen: u64,
}

/// Where kills are counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// A control group: its directory, the mount point above it, its name, and whether it is of version 2.
    Group { directory: PathBuf, mount: PathBuf, name: String, is_v2: bool },
    /// The whole host.
    Host,
}

impl OomCounter {
    /// For the place in which this process is now. `None`: nothing counts there that can be read.
    pub(super) fn of(pid: Pid) -> Option<OomCounter> {
        OomCounter::of_files(pid, Path::new("/"))
    }

    /// The same where `/proc` and the mounts are below `root`.
    fn of_files(pid: Pid, root: &Path) -> Option<OomCounter> {
        let read = |path: &str| fs::read_to_string(root.join(path)).ok();
        let group = read(&format!("proc/{}/cgroup", pid.as_raw_nonzero())).zip(read("proc/self/mountinfo"));
        let group = group.and_then(|(groups, mounts)| Place::group(&groups, &mounts, root));
        let counted = |place: Place| place.kills(root).map(|seen| OomCounter { place, seen });
        group.and_then(counted).or_else(|| counted(Place::Host))
    }

    /// How many kills there were that explain nothing yet.
    pub(super) fn pending(&self) -> u64 {
        self.place.kills(Path::new("/")).unwrap_or(self.seen).saturating_sub(self.seen)
    }

    /// Whether Linux has killed the process for lack of memory, which is a report then. One kill explains one process.
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
            return None; // it was another process
        }
        self.seen += 1;
        let text = self.place.sentence(logged.as_ref());
        Some(ErrorReport { family: KERNEL, code: OUT_OF_MEMORY, text, follow_up: false, retry_free: false, step: None })
    }

    /// In one sentence, that a process of this place was killed for lack of memory, if there is one of which nothing was told.
    pub(super) fn unexplained(&mut self) -> Option<String> {
        let kills = self.pending();
        self.seen += kills;
        let what = if kills == 1 { "a process" } else { "processes" };
        (kills > 0).then(|| format!("the kernel has killed {what} {}", self.place.reason(None)))
    }

    /// What was counted until now explains nothing that is still to come.
    pub(super) fn settle(&mut self) {
        self.seen += self.pending();
    }

    /// Whether two count the same kills.
    pub(super) fn is_same_place(&self, other: &OomCounter) -> bool {
        self.place == other.place
    }
}

impl Place {
    /// The control group that counts the memory of a process whose `/proc/PID/cgroup` is this.
    fn group(groups: &str, mounts: &str, root: &Path) -> Option<Place> {
        let hierarchies = [Hierarchy::V1("memory"), Hierarchy::V2];
        let (hierarchy, found) =
            hierarchies.into_iter().find_map(|one| Some((one, find(one, groups, mounts, root)?)))?;
        let is_v2 = hierarchy == Hierarchy::V2;
        let Membership { directory, mount, name } = found;
        // A group that does not have the controller is counted with the next one above it that has.
        let counts = |group: &&Path| group.starts_with(&mount) && (!is_v2 || group.join("memory.events").exists());
        let directory = directory.ancestors().find(counts).map_or(directory.clone(), Path::to_owned);
        Some(Place::Group { directory, mount, name, is_v2 })
    }

    /// How many there have been; `None` where that cannot be read.
    fn kills(&self, root: &Path) -> Option<u64> {
        let file = match self {
            Place::Group { directory, is_v2: true, .. } => directory.join("memory.events"),
            Place::Group { directory, is_v2: false, .. } => directory.join("memory.oom_control"),
            Place::Host => root.join("proc/vmstat"),
        };
        let text = fs::read_to_string(file).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    }

    /// The lowest limit that holds here, in bytes, and the group that has it.
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
                "for lack of memory: that of the host{total} was used up{used}: use less of it, or fewer processes there"
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
                    "for lack of memory: its control group {name} has no limit of its own that can be seen here{used}: \
                         look at the limits above it, and at the memory of the host"
                )
            }
        }
    }
}

/// What the kernel's log says of a kill.
#[derive(Debug, PartialEq, Eq)]
struct Logged {
    /// The limit of a control group was reached, rather than the end of the host's memory.
    is_of_group: bool,
    /// Memory of its own that the process had, in bytes.
    used_bytes: Option<u64>,
}

impl Logged {
    /// The last kill of a process with this number.
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

/// The kernel's log, where this process may read it.
fn kernel_log() -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open("/dev/kmsg", flags, Mode::empty()).ok()?;
    let mut record = vec![0; RECORD_BYTES_MAX];
    let mut log = String::new();
    for _ in 0..RECORDS_MAX {
        match rustix::io::read(&file, &mut record) {
            Ok(n) => log.push_str(&String::from_utf8_lossy(&record[..n])), // a record ends with its line
            Err(rustix::io::Errno::PIPE) => {}                             // some were overwritten meanwhile
            Err(_) => break,
        }
    }
    Some(log)
}

/// Whether processes have the numbers here that they have in the kernel's log.
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

    /// A machine in a directory: files by their paths.
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
    fn kills_in_a_group_of_version_2_are_counted_and_the_lowest_limit_is_named() {
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
        assert_eq!(counter.explain(Pid::INIT, KILLED), None, "somebody else has sent the signal");
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
    fn where_no_group_can_be_seen_the_host_counts() {
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
    fn the_kernels_log_tells_whose_memory_was_used_up() {
        let log = "6,1,1,-;Out of memory: Killed process 12 (python) total-vm:9kB, anon-rss:1024kB, file-rss:1kB, shmem-rss:2048kB\n\
                   6,2,1,-;Memory cgroup out of memory: Killed process 123 (a (b) python) total-vm:9kB, anon-rss:2048kB\n";
        assert_eq!(Logged::find(log, 12), Some(Logged { is_of_group: false, used_bytes: Some(3 << 20) }));
        assert_eq!(Logged::find(log, 123), Some(Logged { is_of_group: true, used_bytes: Some(2 << 20) }));
        assert_eq!(Logged::find(log, 1), None);
        let of_host = Place::Host.sentence(Logged::find(log, 12).as_ref());
        assert!(of_host.contains("that of the host") && of_host.contains("it used 3 MiB"), "{of_host}");
    }
}
