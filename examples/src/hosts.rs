//! Hosts that are this machine: a local launcher with a guard of its own for each, and one launcher over all of them.
//!
//! It places no ranks. The hosts' names are not resolved: all connections go over loopback.

use crate::program::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::job::{JobSpec, Name, NodeId};
use taskd_core::launch::python::Framework as _;
use taskd_core::launch::{Launcher, LocalLauncher, LocalLauncherBuilder, MultiHostLauncher};
use taskd_core::runtime::RuntimeBuilder;
use taskd_pytorch::{Torch, TorchLauncher};

/// The hosts of a job.
#[derive(Debug)]
pub struct Hosts(Vec<Arc<LocalLauncher>>);

impl Hosts {
    /// Attaches to `number` hosts, whose run directories are in `dir`, or starts their guards. Each host has room for
    /// all ranks of the job.
    ///
    /// # Errors
    /// Those of [`LocalLauncherBuilder::build`].
    pub async fn of(
        spec: &mut JobSpec,
        number: usize,
        dir: &Path,
        settings: impl Fn(LocalLauncherBuilder) -> LocalLauncherBuilder,
    ) -> Result<Hosts, Failure> {
        if number == 1 {
            let one = settings(LocalLauncher::builder(dir.join("run"))).build().await?;
            return Ok(Hosts(vec![Arc::new(one)]));
        }
        let mut hosts = Vec::new();
        for at in 0..number {
            let node = NodeId(Name::from(format!("host-{at}")));
            let builder = settings(LocalLauncher::builder(dir.join(format!("run-{at}"))));
            hosts.push(Arc::new(builder.node(node.clone()).slots(spec.ranks).build().await?));
            spec.nodes.push(node);
        }
        Ok(Hosts(hosts))
    }

    /// Returns one launcher over all hosts.
    ///
    /// # Errors
    /// Those of [`MultiHostLauncher::of`].
    pub async fn launcher(&self) -> Result<Arc<dyn Launcher>, Failure> {
        Ok(match &*self.0 {
            [one] => Arc::clone(one) as Arc<dyn Launcher>,
            hosts => Arc::new(MultiHostLauncher::of(hosts.iter().map(Arc::clone)).await?),
        })
    }

    /// Returns the launcher of `ranks` PyTorch ranks on these hosts. If there are several hosts, each keeps standbys
    /// for all ranks that can be lost at once, which are all but one.
    pub fn torch(&self, launcher: Arc<dyn Launcher>, dir: &Path, ranks: u32) -> TorchLauncher<Arc<dyn Launcher>> {
        let dir = dir.join("torch");
        if self.0.len() == 1 {
            return TorchLauncher::with_framework(launcher, dir, Torch::default());
        }
        let torch = Torch::default().master_addr("127.0.0.1");
        let standbys = torch.standbys().parked(ranks.saturating_sub(1));
        TorchLauncher::with_framework(launcher, dir, torch).standbys(standbys)
    }

    /// Adds the sources of all ranks' heartbeats, which each rank sends with the period `every`.
    pub fn sources(&self, runtime: RuntimeBuilder, every: Duration) -> RuntimeBuilder {
        let source =
            |(at, host): (usize, &Arc<LocalLauncher>)| host.heartbeats(every).named(format!("heartbeats-{at}"));
        self.0.iter().enumerate().map(source).fold(runtime, RuntimeBuilder::source)
    }

    /// Returns the launchers of the hosts.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<LocalLauncher>> {
        self.0.iter()
    }

    /// Stops all processes on the hosts, and their guards.
    ///
    /// # Errors
    /// Those of [`LocalLauncher::shutdown`].
    pub async fn shutdown(&self) -> Result<(), Failure> {
        for host in &self.0 {
            host.shutdown(Duration::ZERO).await?;
        }
        Ok(())
    }
}

/// Sends SIGKILL to the guard of this rank's host, which ends all processes of that host.
///
/// # Errors
/// The guard's process does not exist any more.
pub fn kill_host_of(rank: Pid) -> Result<(), Failure> {
    let status = fs::read_to_string(format!("/proc/{}/status", rank.as_raw_nonzero()))?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    let guard = parent.and_then(|pid| Pid::from_raw(pid.trim().parse().ok()?));
    Ok(kill_process(guard.ok_or("the rank has no guard")?, Signal::KILL)?)
}
