//! Finds where the control groups of a process are mounted (`cgroups(7)`, `proc_pid_cgroup(5)`,
//! `proc_pid_mountinfo(5)`). This module only reads.

use rustix::process::Pid;
use std::path::{Path, PathBuf};

/// A mounted control group hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hierarchy {
    /// The control group hierarchy of version 2.
    V2,
    /// The control group hierarchy of version 1 that has this controller.
    V1(&'static str),
}

/// The control group of a process in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) directory: PathBuf,
    /// Mount point of the hierarchy, or of the part of it that is visible here.
    pub(super) mount: PathBuf,
    /// Path from the root of the hierarchy, as in `/proc/PID/cgroup`.
    pub(super) name: String,
}

/// Returns the control groups of a process, in the format of `/proc/PID/cgroup`; empty if that cannot be read.
pub(super) fn control_groups(pid: Pid) -> String {
    std::fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero())).unwrap_or_default()
}

/// Finds the control group of a process in one hierarchy. `groups` is the text of its `/proc/PID/cgroup`, `mounts` that of
/// `/proc/self/mountinfo`; mount points are taken below `root`. Returns `None` if the hierarchy is not mounted or not visible here.
pub(super) fn find(hierarchy: Hierarchy, groups: &str, mounts: &str, root: &Path) -> Option<Membership> {
    let mut lines = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_once(':')
    });
    let is_of_it = |controllers: &str| match hierarchy {
        Hierarchy::V2 => controllers.is_empty(),
        Hierarchy::V1(controller) => controllers.split(',').any(|name| name == controller),
    };
    let name = lines.find(|(controllers, _)| is_of_it(controllers))?.1;
    let is_mount = |mount: &&Mount<'_>| match hierarchy {
        Hierarchy::V2 => mount.kind == "cgroup2",
        Hierarchy::V1(controller) => mount.kind == "cgroup" && mount.options.split(',').any(|one| one == controller),
    };
    let mounts: Vec<Mount<'_>> = mounts.lines().filter_map(Mount::parse).collect();
    let mount = mounts.iter().filter(is_mount).find(|mount| below(name, &mount.root).is_some())?;
    let point = root.join(mount.point.trim_start_matches('/'));
    let directory = point.join(below(name, &mount.root)?.trim_start_matches('/'));
    Some(Membership { directory, mount: point, name: name.to_owned() })
}

/// A line of `/proc/self/mountinfo`.
struct Mount<'a> {
    root: String,
    point: String,
    kind: &'a str,
    options: &'a str,
}

impl Mount<'_> {
    fn parse(line: &str) -> Option<Mount<'_>> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (unescaped(before.next()?), unescaped(before.next()?));
        let mut after = after.split(' ');
        Some(Mount { root, point, kind: after.next()?, options: after.nth(1).unwrap_or_default() })
    }
}

/// Decodes spaces, tabs, line ends and backslashes, each written as a backslash and three octal digits.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(text.to_owned(), |text, (escape, character)| text.replace(escape, character))
}

/// Returns the part of a control group's name that lies below the root of a mount; `None` if the group is not below it.
fn below<'a>(name: &'a str, root: &str) -> Option<&'a str> {
    let rest = if root == "/" { name } else { name.strip_prefix(root)? };
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}
