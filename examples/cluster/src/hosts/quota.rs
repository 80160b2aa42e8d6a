//! The share of the processors of one host: a control group with a quota (`cpu` controller, version 1 or 2).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Length of a period of the quota, in microseconds: the kernel's default.
const PERIOD_US: f64 = 100_000.0;
/// Time for which the kernel may still list processes that have ended in a group.
const EMPTY_WITHIN: Duration = Duration::from_secs(2);

/// A control group with a quota. It is removed on drop, once its processes have ended.
#[derive(Debug)]
pub(super) struct Quota {
    dir: PathBuf,
}

impl Quota {
    /// Creates the group `name` with at most `cpus` processors.
    ///
    /// # Errors
    /// Returns the reason why this machine has no such group.
    pub(super) fn create(name: &str, cpus: f64) -> Result<Quota, String> {
        let Some(Controller { root, is_v2 }) = controller() else {
            return Err("no cpu controller of control groups is mounted".into());
        };
        let dir = root.join(name);
        let micros = (cpus * PERIOD_US).round();
        let made = || -> io::Result<()> {
            fs::create_dir_all(&dir)?;
            if is_v2 {
                fs::write(dir.join("cpu.max"), format!("{micros} {PERIOD_US}"))
            } else {
                fs::write(dir.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
                fs::write(dir.join("cpu.cfs_quota_us"), micros.to_string())
            }
        };
        let result = made().map_err(|error| format!("{}: {error}", dir.display()));
        let quota = Quota { dir };
        result.map(|()| quota)
    }

    /// Returns the file that takes the id of a process to be limited.
    pub(super) fn procs(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let until = Instant::now() + EMPTY_WITHIN;
        while fs::remove_dir(&self.dir).is_err() && self.dir.exists() && Instant::now() < until {
            std::thread::yield_now(); // an ended process leaves the group a moment later
        }
    }
}

/// Removes the groups with names that this function accepts.
pub(super) fn remove_groups(is_leftover: impl Fn(&str) -> bool) {
    let Some(Controller { root, .. }) = controller() else { return };
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(&is_leftover) {
            drop(Quota { dir: entry.path() });
        }
    }
}

struct Controller {
    root: PathBuf,
    is_v2: bool,
}

/// Returns the mounted hierarchy of control groups that has the cpu controller.
fn controller() -> Option<Controller> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut found = None;
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        let (Some(at), Some(kind), Some(options)) = (words.next(), words.next(), words.next()) else { continue };
        let root = PathBuf::from(at);
        if kind == "cgroup" && options.split(',').any(|option| option == "cpu") {
            return Some(Controller { root, is_v2: false });
        }
        if kind == "cgroup2" && has_cpu(&root) {
            found = Some(Controller { root, is_v2: true });
        }
    }
    found
}

/// Returns true if groups below this one of version 2 can have quotas.
fn has_cpu(root: &Path) -> bool {
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    controllers.split_whitespace().any(|name| name == "cpu")
        && fs::write(root.join("cgroup.subtree_control"), "+cpu").is_ok()
}
