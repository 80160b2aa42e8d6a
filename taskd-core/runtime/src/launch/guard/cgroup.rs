//! Control group of a guard and of all processes that it starts. If a guard is killed, the next guard ends the
//! processes of the killed guard by this group.
//!
//! A process can change its session and its environment and, by dying, the parent of its children; it can leave its
//! control group only if it may write to the control groups. A living guard does not need the group, since it is the
//! parent of all orphans.
//!
//! The group is of version 2 if that is mounted and writable (as root, or in a delegated subtree), otherwise of version
//! 1 with the freezer. No controller is enabled in it, so that limits and accounting of the parent groups are not
//! affected.

use super::tree::Member;
use super::wire::JobId;
use crate::launch::control_groups::{Hierarchy, control_groups, find};
use crate::proc_fs::Stat;
use rustix::io::Errno;
use rustix::process::Pid;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Polling interval for a group that is to freeze, or to become empty.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Time limit for freezing the group of a dead guard; processes that are not frozen by then are killed nevertheless.
const FREEZES_WITHIN: Duration = Duration::from_millis(500);
/// Maximum number of groups examined at once, since a process can make any number of groups below its own, at any
/// depth.
const GROUPS_MAX: usize = 4096;
/// Prefix of a group's directory name; the job's id follows.
pub(super) const PREFIX: &str = "taskd-";

/// A control group of one guard, or of one process of its job.
#[derive(Debug)]
pub(crate) struct ControlGroup {
    directory: PathBuf,
    means: Means,
    /// End of the group's path, starting with its guard's group, as in `/proc/PID/cgroup` of each process in it.
    name: String,
}

/// Method of killing all processes of a group, however fast they fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// `cgroup.kill` of version 2 (Linux 5.14 and later).
    Kill,
    /// `cgroup.freeze` of version 2 (Linux 5.2 and later): frozen processes cannot fork, and die at once.
    Freeze,
    /// `freezer.state` of version 1: frozen processes cannot fork, and die when thawed.
    Freezer,
}

impl Means {
    fn of(directory: &Path) -> Option<Means> {
        let means = [("cgroup.kill", Means::Kill), ("cgroup.freeze", Means::Freeze), ("freezer.state", Means::Freezer)];
        means.into_iter().find(|(file, _)| directory.join(file).exists()).map(|(_, means)| means)
    }
}

impl ControlGroup {
    /// Makes a group below that of this process, and moves this process into it.
    ///
    /// # Errors
    /// Returns the reason, in one sentence, if no group can be made.
    pub(super) fn enter(job: &JobId) -> Result<ControlGroup, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|e| format!("/proc/self/cgroup: {e}"))?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|e| format!("/proc/self/mountinfo: {e}"))?;
        let mut reasons = Vec::new();
        for hierarchy in [Hierarchy::V2, Hierarchy::V1("freezer")] {
            let Some(own) = find(hierarchy, &groups, &mounts, Path::new("/")) else { continue };
            remove_empty(&own.directory);
            let name = format!("{PREFIX}{}-{}", job.0, std::process::id());
            let directory = own.directory.join(&name);
            match make(&directory) {
                Ok(means) => return Ok(ControlGroup { directory, means, name }),
                Err(why) => reasons.push(why),
            }
        }
        match reasons.is_empty() {
            true => Err("neither control groups of version 2 nor the freezer of version 1 are mounted here".into()),
            false => Err(reasons.join("; ")),
        }
    }

    /// Returns the group of this directory, if it was made for a guard of this job and does not contain this process.
    pub(crate) fn of_dead_guard(directory: &Path, job: &JobId) -> Option<ControlGroup> {
        let name = directory.file_name()?.to_str()?;
        let is_of_job = name.strip_prefix(PREFIX)?.strip_prefix(&job.0)?.starts_with('-');
        let is_directory = directory.symlink_metadata().is_ok_and(|there| there.is_dir()); // no link to another's
        let means = Means::of(directory)?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        (is_of_job && is_directory && !is_within(&own, name)).then(|| ControlGroup {
            directory: directory.to_owned(),
            means,
            name: name.to_owned(),
        })
    }

    /// Makes an empty group below this one.
    pub(super) fn make_below(&self, name: &str) -> io::Result<ControlGroup> {
        let directory = self.directory.join(name);
        fs::create_dir(&directory)?;
        Ok(ControlGroup { directory, means: self.means, name: format!("{}/{name}", self.name) })
    }

    /// Opens the file by which processes are moved into the group.
    pub(super) fn door(&self) -> io::Result<fs::File> {
        fs::OpenOptions::new().write(true).open(self.directory.join("cgroup.procs"))
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Moves this process back to the parent group, and removes this group with all remaining processes.
    pub(super) fn leave(&self, limit: Duration) {
        if self.directory.parent().is_some_and(|above| move_this_process(above).is_ok()) {
            self.remove(limit);
        }
    }

    /// Kills all processes in the group and its descendants, and removes the groups. Blocks, at most for `limit`.
    /// Returns false if some are left.
    pub(crate) fn remove(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while !remove_tree(&self.directory) {
            if Instant::now() >= until {
                return false;
            }
            self.kill(FREEZES_WITHIN);
            std::thread::park_timeout(LOOK_EVERY);
        }
        true
    }

    /// Returns true if the group or one of its descendants contains a process.
    pub(crate) fn has_processes(&self) -> bool {
        !self.processes().is_empty()
    }

    /// Returns the processes in the group and its descendants that have not ended.
    pub(super) fn processes(&self) -> Vec<Pid> {
        groups(&self.directory).iter().flat_map(|group| processes(group)).collect()
    }

    /// Returns true if the process is in the group or one of its descendants.
    pub(super) fn holds(&self, pid: Pid) -> bool {
        is_within(&control_groups(pid), &self.name)
    }

    /// Kills all processes in the group and its descendants. If the group has to be frozen first, blocks at most for
    /// `freezes_within`.
    pub(super) fn kill(&self, freezes_within: Duration) {
        let (file, freeze, thaw, state, is_frozen) = match self.means {
            Means::Kill => {
                if fs::write(self.directory.join("cgroup.kill"), "1").is_err() {
                    self.processes().into_iter().for_each(|pid| self.kill_one(pid)); // group gone, or threaded
                }
                return;
            }
            Means::Freeze => ("cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"),
            Means::Freezer => ("freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN"),
        };
        let until = Instant::now() + freezes_within;
        let write = |word: &str| fs::write(self.directory.join(file), word);
        while write(freeze).is_ok() && Instant::now() < until {
            if fs::read_to_string(self.directory.join(state)).is_ok_and(|text| text.contains(is_frozen)) {
                break;
            }
            std::thread::park_timeout(LOOK_EVERY);
        }
        self.processes().into_iter().for_each(|pid| self.kill_one(pid));
        let _ = write(thaw); // it may be gone with the last of its processes
    }

    /// Kills a process of the control group, but never another process that has received its pid.
    fn kill_one(&self, pid: Pid) {
        let Some(stat) = Stat::read(pid) else { return };
        if self.holds(pid) {
            Member::new((pid.as_raw_nonzero().get(), stat.start_time)).kill();
        }
    }
}

/// Makes a control group in this directory, and moves this process into it.
fn make(directory: &Path) -> Result<Means, String> {
    let shown = directory.display();
    fs::create_dir(directory).map_err(|error| format!("{shown} cannot be made: {error}"))?;
    let made = match Means::of(directory) {
        Some(means) => {
            move_this_process(directory).map(|()| means).map_err(|error| format!("{shown} cannot be entered: {error}"))
        }
        None => Err(format!("the group {shown} can be neither killed nor frozen as a whole: this needs Linux 5.2")),
    };
    if made.is_err() {
        let _ = fs::remove_dir(directory); // an empty group does no harm
    }
    made
}

/// Returns true if a process is in the control group `name` or below it; `groups` is the text of its
/// `/proc/PID/cgroup`.
fn is_within(groups: &str, name: &str) -> bool {
    let within = format!("/{name}/");
    groups.lines().any(|line| format!("{line}/").contains(&within))
}

fn move_this_process(to: &Path) -> io::Result<()> {
    fs::write(to.join("cgroup.procs"), std::process::id().to_string())
}

/// Returns the processes of a control group, without those of its descendants.
fn processes(directory: &Path) -> Vec<Pid> {
    let mut text = fs::read_to_string(directory.join("cgroup.procs"));
    if text.as_ref().is_err_and(|error| error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error())) {
        text = fs::read_to_string(directory.join("cgroup.threads")); // a process has made its group a threaded one
    }
    let text = text.unwrap_or_default();
    text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
}

/// Returns the directories of a control group and its descendants, each after its parent.
fn groups(directory: &Path) -> Vec<PathBuf> {
    let mut found = vec![directory.to_owned()];
    let mut next = 0;
    while let Some(group) = found.get(next).filter(|_| found.len() < GROUPS_MAX) {
        found.extend(below(group));
        next += 1;
    }
    found
}

/// Removes a control group and its descendants if they are empty. Returns true if they are gone.
fn remove_tree(directory: &Path) -> bool {
    groups(directory).iter().skip(1).rev().for_each(|group| _ = fs::remove_dir(group));
    match fs::remove_dir(directory) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Removes the empty control groups of killed guards for which no supervisor has come.
fn remove_empty(above: &Path) {
    let is_of_dead_guard = |group: &PathBuf| {
        let name = group.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(PREFIX));
        let pid = name.and_then(|name| name.rsplit_once('-')).and_then(|(_, pid)| pid.parse::<u32>().ok());
        pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    };
    below(above).iter().filter(|group| is_of_dead_guard(group)).for_each(|group| _ = remove_tree(group));
}

fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    /// Starts a process in its own group of this hierarchy, and one in a group far below that. Returns `None` if such a
    /// group cannot be made here.
    fn group(hierarchy: Hierarchy, name: &str) -> Option<(ControlGroup, [Child; 2])> {
        let read = |path: &str| fs::read_to_string(path).ok();
        let (groups, mounts) = (read("/proc/self/cgroup")?, read("/proc/self/mountinfo")?);
        let own = find(hierarchy, &groups, &mounts, Path::new("/"))?;
        let directory = own.directory.join(format!("{PREFIX}{name}-{}", std::process::id()));
        let below = directory.join("b/".repeat(100));
        fs::create_dir(&directory).and_then(|()| fs::create_dir_all(&below)).ok()?;
        let start = |group: &Path| {
            let child = Command::new("sleep").arg("1000").spawn().unwrap();
            fs::write(group.join("cgroup.procs"), child.id().to_string()).unwrap();
            child
        };
        let children = [start(&directory), start(&below)];
        let name = directory.file_name()?.to_str()?.to_owned();
        Some((ControlGroup { means: Means::of(&directory)?, directory, name }, children))
    }

    #[test]
    fn a_group_is_removed_with_all_that_is_in_it_and_below_it() {
        let all =
            [(Hierarchy::V2, Means::Kill), (Hierarchy::V2, Means::Freeze), (Hierarchy::V1("freezer"), Means::Freezer)];
        for (hierarchy, means) in all {
            let Some((mut group, children)) = group(hierarchy, &format!("unit-{means:?}")) else {
                println!(
                    "skipped: no control group can be made here by which all is killed ({means:?}): this takes root"
                );
                continue;
            };
            group.means = means;
            assert!(group.has_processes());
            assert!(group.remove(Duration::from_secs(20)), "{means:?}");
            assert!(!group.directory.exists());
            for mut child in children {
                assert_eq!(child.wait().unwrap().signal(), Some(9), "{means:?}");
            }
        }
    }

    /// The processes of such a group cannot be listed as those of others, nor killed by one write.
    #[test]
    fn a_threaded_control_group_is_removed_with_its_processes() {
        let Some((mut outer, children)) = group(Hierarchy::V2, "threaded") else {
            return println!("skipped: no control group can be made here: this takes root");
        };
        outer.means = Means::Kill;
        assert!(outer.remove(Duration::from_secs(20)));
        children.into_iter().for_each(|mut child| _ = child.wait());
        fs::create_dir(&outer.directory).unwrap();
        if fs::write(outer.directory.join("cgroup.type"), "threaded").is_err() {
            let _ = fs::remove_dir(&outer.directory);
            return println!("skipped: this group cannot be made a threaded one");
        }
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        fs::write(outer.directory.join("cgroup.procs"), child.id().to_string()).unwrap();
        assert!(fs::read_to_string(outer.directory.join("cgroup.procs")).is_err(), "as that of others");
        assert_eq!(outer.processes().len(), 1);
        assert!(outer.remove(Duration::from_secs(20)));
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn empty_groups_of_dead_guards_are_removed_and_others_stay() {
        let Some((group, mut children)) = group(Hierarchy::V2, "sweep") else {
            return println!("skipped: no control group can be made here: this takes root");
        };
        let made = |name: &str| {
            let made = group.directory.join(name);
            fs::create_dir(&made).unwrap();
            made
        };
        let dead = made("taskd-0f-4194305"); // beyond the largest pid
        let stay = [made(&format!("taskd-0f-{}", std::process::id())), made("other-4194305"), made("taskd-x")];
        remove_empty(&group.directory);
        assert!(!dead.exists() && stay.iter().all(|group| group.exists()));
        let full = made("taskd-0f-4194306");
        fs::write(full.join("cgroup.procs"), children[0].id().to_string()).unwrap();
        remove_empty(&group.directory);
        assert!(full.exists());
        assert!(group.remove(Duration::from_secs(20)));
        children.iter_mut().for_each(|child| _ = child.wait());
    }

    #[test]
    fn a_control_group_of_a_dead_guard_must_have_the_name_of_its_job() {
        let Some((group, mut children)) = group(Hierarchy::V2, "0123456789abcdef0123456789abcdef") else {
            return println!("skipped: no control group can be made here: this takes root");
        };
        let job = |id: &str| JobId(id.into());
        assert!(ControlGroup::of_dead_guard(&group.directory, &job("0123456789abcdef0123456789abcdef")).is_some());
        assert!(ControlGroup::of_dead_guard(&group.directory, &job("0123456789abcdef")).is_none());
        assert!(ControlGroup::of_dead_guard(&group.directory, &job("")).is_none());
        let elsewhere = tempfile::tempdir().unwrap();
        let link = elsewhere.path().join("taskd-0123456789abcdef0123456789abcdef-1");
        std::os::unix::fs::symlink(&group.directory, &link).unwrap();
        assert!(ControlGroup::of_dead_guard(&link, &job("0123456789abcdef0123456789abcdef")).is_none(), "a link");
        let above = group.directory.parent().unwrap();
        assert!(ControlGroup::of_dead_guard(above, &job("0123456789abcdef0123456789abcdef")).is_none());
        assert!(group.remove(Duration::from_secs(20)));
        children.iter_mut().for_each(|child| _ = child.wait());
    }
}
