//! One container per rank: control groups (version 1) with a limit of CPU time and of disk operations.
//!
//! All ranks run in containers, so that those that nothing happens to are a fair comparison.

use std::fs;
use std::io;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use taskd_examples::program::Failure;

const ROOT: &str = "/sys/fs/cgroup";
/// Begin of the names of all containers.
const PREFIX: &str = "bench-diagnosis-";
/// Period of the CPU limit, in microseconds.
const PERIOD_US: u32 = 20_000;
/// CPU time of a container in each period: 40 % of a core. What a step leaves unused may be used later.
const USUAL_US: u32 = 8_000;
/// Weight of a container against other work on the machine, which counts 1,024 for each process: a container gets its
/// CPU time almost at once, as with a reservation.
const SHARES: u32 = 1 << 17;
/// CPU time of a throttled container in each period.
const THROTTLED_US: u32 = 3_000;
/// Number of busy loops in a container. They get their shares of its CPU time.
const BUSY_LOOPS: usize = 2;
/// Read operations of a slow disk per second: the eight of a batch take at least 160 ms. The kernel grants a tenth of a
/// second's operations at once, so a rate above that of the training would slow nothing.
const SLOW_READS: u32 = 50;
/// Bytes that are written to a slow disk per second: a checkpoint of 128 KiB waits at least 150 ms.
const SLOW_WRITES: u32 = 500_000;

/// The container of one rank.
#[derive(Debug)]
pub(super) struct Container {
    cpu: PathBuf,
    disk: PathBuf,
    /// Device number of the disk.
    device: String,
    loops: Vec<Child>,
}

/// Returns the reason why there can be no containers.
pub(super) fn lacks() -> Option<String> {
    let is_missing = |file: &&str| !Path::new(ROOT).join(file).exists();
    let missing = ["cpu/cpu.cfs_quota_us", "blkio/blkio.throttle.read_iops_device"].into_iter().find(is_missing);
    missing.map(|file| format!("{ROOT}/{file} does not exist: control groups of version 1 are needed"))
}

/// Removes the containers that runs left behind when they were killed. Those in use stay.
pub(super) fn remove_left() {
    for controller in ["cpu", "blkio"] {
        for group in fs::read_dir(Path::new(ROOT).join(controller)).into_iter().flatten().flatten() {
            if group.file_name().to_string_lossy().starts_with(PREFIX) {
                let _ = fs::remove_dir(group.path()); // an error: it is in use
            }
        }
    }
}

impl Container {
    /// Moves a process and its threads into a container of their own. `files` is a directory on the disk.
    pub(super) fn around(rank: u32, pid: i32, files: &Path) -> Result<Container, Failure> {
        let name = format!("{PREFIX}{}-{rank}", std::process::id());
        let [cpu, disk] = ["cpu", "blkio"].map(|controller| Path::new(ROOT).join(controller).join(&name));
        for group in [&cpu, &disk] {
            fs::create_dir_all(group)?;
        }
        let container = Container { cpu, disk, device: device_of(files)?, loops: Vec::new() };
        fs::write(container.cpu.join("cpu.shares"), SHARES.to_string())?;
        container.limit(USUAL_US, USUAL_US)?;
        for group in [&container.cpu, &container.disk] {
            fs::write(group.join("cgroup.procs"), pid.to_string())?;
        }
        Ok(container)
    }

    /// Starts busy loops beside the rank.
    pub(super) fn disturb(&mut self) -> Result<(), Failure> {
        for _ in 0..BUSY_LOOPS {
            let busy = Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn()?;
            let pid = busy.id();
            self.loops.push(busy);
            fs::write(self.cpu.join("cgroup.procs"), pid.to_string())?;
        }
        Ok(())
    }

    /// Reduces its CPU time.
    pub(super) fn throttle(&self) -> io::Result<()> {
        self.limit(THROTTLED_US, 0)
    }

    pub(super) fn slow_reads(&self) -> io::Result<()> {
        self.limit_disk("blkio.throttle.read_iops_device", SLOW_READS)
    }

    pub(super) fn slow_writes(&self) -> io::Result<()> {
        self.limit_disk("blkio.throttle.write_bps_device", SLOW_WRITES)
    }

    fn limit(&self, quota_us: u32, burst_us: u32) -> io::Result<()> {
        let write = |file: &str, value: u32| fs::write(self.cpu.join(file), value.to_string());
        write("cpu.cfs_burst_us", 0)?; // it must never exceed the quota
        write("cpu.cfs_period_us", PERIOD_US)?;
        write("cpu.cfs_quota_us", quota_us)?;
        write("cpu.cfs_burst_us", burst_us)
    }

    fn limit_disk(&self, file: &str, value: u32) -> io::Result<()> {
        fs::write(self.disk.join(file), format!("{} {value}", self.device))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        for busy in &mut self.loops {
            let _ = busy.kill(); // an error: it has ended
            let _ = busy.wait();
        }
        for group in [&self.cpu, &self.disk] {
            let _ = fs::remove_dir(group); // an error: the rank has not ended, and the group stays, without effect on others
        }
    }
}

/// Returns the number of the device that holds the directory.
fn device_of(dir: &Path) -> io::Result<String> {
    let number = fs::metadata(dir)?.st_dev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    // A limit applies to a whole disk, not to a partition of it.
    let whole = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"))?;
    let is_partition = whole.join("partition").exists();
    let disk = if is_partition { whole.parent().unwrap_or(&whole) } else { &whole };
    Ok(fs::read_to_string(disk.join("dev"))?.trim().to_owned())
}
