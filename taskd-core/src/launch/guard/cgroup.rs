//! The control group of a guard and of all that it starts, by which the next one ends what a killed guard has left.
//!
//! A process changes its session, its environment and, by dying, the parent of its children; it leaves its control group only where it
//! may write to the control groups themselves. While the guard lives it needs none of this: it is the parent of all orphans.
//!
//! The group is of version 2 where that is mounted and may be written to (root, or a delegated subtree), else of version 1 with the
//! freezer. No controller is enabled in it, so limits and accounts of the groups above it stay as they are.

use super::proc_fs::Stat;
use super::tree::Member;
use super::wire::JobId;
use crate::launch::control_groups::{Hierarchy, control_groups, find};
use rustix::process::Pid;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Between two looks at a group that is to freeze, or to become empty.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How long a group may take to freeze where its guard is dead; what is not frozen by then is killed all the same.
const FREEZES_WITHIN: Duration = Duration::from_millis(500);
/// Most groups below one another that are looked into.
const DEPTH_MAX: usize = 32;
/// How a group's directory is named, ahead of the job's id.
pub(super) const PREFIX: &str = "taskd-";

/// A control group that was made for one guard, or for one process of its job.
#[derive(Debug)]
pub(crate) struct ControlGroup {
    directory: PathBuf,
    means: Means,
    /// The end of the group's path, from its guard's group on: `/proc/PID/cgroup` of each process in it has that.
    name: String,
}

/// How all that is in a group is killed, however fast it forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// `cgroup.kill` of version 2 (Linux 5.14 and later).
    Kill,
    /// `cgroup.freeze` of version 2 (Linux 5.2 and later): what is frozen cannot fork, and dies at once.
    Freeze,
    /// `freezer.state` of version 1: what is frozen cannot fork, and dies when it is thawed.
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
    /// Why no group can be made here, in one sentence.
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

    /// The group with this directory, if it is one that was made for a guard of this job and this process is not in it.
    pub(crate) fn of_dead_guard(directory: &Path, job: &JobId) -> Option<ControlGroup> {
        let name = directory.file_name()?.to_str()?;
        let is_of_job = name.strip_prefix(PREFIX)?.strip_prefix(&job.0)?.starts_with('-');
        let is_directory = directory.symlink_metadata().is_ok_and(|there| there.is_dir()); // a link may point to another job's
        let means = Means::of(directory)?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        (is_of_job && is_directory && !is_within(&own, name)).then(|| ControlGroup {
            directory: directory.to_owned(),
            means,
            name: name.to_owned(),
        })
    }

    /// Makes a group below this one, with nothing in it.
    pub(super) fn make_below(&self, name: &str) -> io::Result<ControlGroup> {
        let directory = self.directory.join(name);
        fs::create_dir(&directory)?;
        Ok(ControlGroup { directory, means: self.means, name: format!("{}/{name}", self.name) })
    }

    /// The file by which processes are moved into the group.
    pub(super) fn door(&self) -> io::Result<fs::File> {
        fs::OpenOptions::new().write(true).open(self.directory.join("cgroup.procs"))
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Moves this process back to the group above, and removes this one with all that is still in it.
    pub(super) fn leave(&self, limit: Duration) {
        if self.directory.parent().is_some_and(|above| move_this_process(above).is_ok()) {
            self.remove(limit);
        }
    }

    /// Kills everything in the group and in those below it, and removes them. Blocks, at most for `limit`. False: something is left.
    pub(crate) fn remove(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while !remove_tree(&self.directory, DEPTH_MAX) {
            if Instant::now() >= until {
                return false;
            }
            self.kill(FREEZES_WITHIN);
            std::thread::park_timeout(LOOK_EVERY);
        }
        true
    }

    /// Whether anything is in the group, or in one below it.
    pub(crate) fn has_processes(&self) -> bool {
        !self.processes().is_empty()
    }

    /// What is in the group and in those below it, and has not ended.
    pub(super) fn processes(&self) -> Vec<Pid> {
        processes(&self.directory, DEPTH_MAX)
    }

    /// Whether a process is in the group or below it.
    pub(super) fn holds(&self, pid: Pid) -> bool {
        is_within(&control_groups(pid), &self.name)
    }

    /// Kills everything in the group and in those below it. Where the group has to be frozen first it blocks, at most for `freezes_within`.
    pub(super) fn kill(&self, freezes_within: Duration) {
        let (file, freeze, thaw, state, is_frozen) = match self.means {
            Means::Kill => {
                let _ = fs::write(self.directory.join("cgroup.kill"), "1"); // it may be gone
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

    /// Kills a process that is in the group; never another one that has got its number.
    fn kill_one(&self, pid: Pid) {
        let Some(stat) = Stat::read(pid) else { return };
        if self.holds(pid) {
            Member::new((pid.as_raw_nonzero().get(), stat.start_time)).kill();
        }
    }
}

/// Makes a group, and moves this process into it.
fn make(directory: &Path) -> Result<Means, String> {
    let shown = directory.display();
    fs::create_dir(directory).map_err(|error| format!("{shown} cannot be made: {error}"))?;
    let made = match Means::of(directory) {
        Some(means) => {
            move_this_process(directory).map(|()| means).map_err(|error| format!("{shown} cannot be entered: {error}"))
        }
        None => Err(format!("what is in {shown} can be neither killed nor frozen as a whole: this takes Linux 5.2")),
    };
    if made.is_err() {
        let _ = fs::remove_dir(directory); // an empty group does no harm
    }
    made
}

/// Returns true if a process is in the group of this name or below it, by the text of its `/proc/PID/cgroup`.
fn is_within(groups: &str, name: &str) -> bool {
    let within = format!("/{name}/");
    groups.lines().any(|line| format!("{line}/").contains(&within))
}

fn move_this_process(to: &Path) -> io::Result<()> {
    fs::write(to.join("cgroup.procs"), std::process::id().to_string())
}

/// The processes of a group and of those below it.
fn processes(directory: &Path, depth: usize) -> Vec<Pid> {
    let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    let mut found: Vec<Pid> = text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect();
    if depth > 0 {
        found.extend(below(directory).iter().flat_map(|group| processes(group, depth - 1)));
    }
    found
}

/// Removes a group and those below it, if no process is in them. True: they are gone.
fn remove_tree(directory: &Path, depth: usize) -> bool {
    if depth > 0 {
        below(directory).iter().for_each(|group| _ = remove_tree(group, depth - 1));
    }
    match fs::remove_dir(directory) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Removes the groups of guards that were killed and that no supervisor has come for, where nothing is in them any more.
fn remove_empty(above: &Path) {
    let is_of_dead_guard = |group: &PathBuf| {
        let name = group.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(PREFIX));
        let pid = name.and_then(|name| name.rsplit_once('-')).and_then(|(_, pid)| pid.parse::<u32>().ok());
        pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    };
    below(above).iter().filter(|group| is_of_dead_guard(group)).for_each(|group| _ = remove_tree(group, DEPTH_MAX));
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

    /// A process in a group of its own in this hierarchy, and one in a group below that. `None`: such a group cannot be made here.
    fn group(hierarchy: Hierarchy, name: &str) -> Option<(ControlGroup, [Child; 2])> {
        let read = |path: &str| fs::read_to_string(path).ok();
        let (groups, mounts) = (read("/proc/self/cgroup")?, read("/proc/self/mountinfo")?);
        let own = find(hierarchy, &groups, &mounts, Path::new("/"))?;
        let directory = own.directory.join(format!("{PREFIX}{name}-{}", std::process::id()));
        let below = directory.join("below");
        fs::create_dir(&directory).and_then(|()| fs::create_dir(&below)).ok()?;
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
    fn a_group_is_taken_for_a_dead_guards_only_where_it_is_named_after_its_job() {
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
