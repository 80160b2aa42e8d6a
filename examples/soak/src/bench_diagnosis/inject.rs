//! Injects a fault into a training from outside: signals, limits of containers, a narrow bandwidth. What only the
//! program can do is ordered by a file.

use super::container::Container;
use super::job::Job;
use super::kind::Kind;
use super::link;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::time::Duration;
use taskd_examples::culprit::inject::{Injected, PERIOD};
use taskd_examples::program::Failure;

/// The part of each stop that the simulated accelerator makes up for: its queue holds one kernel of 2 ms, and a stop
/// begins in the middle of another.
const MADE_UP: Duration = Duration::from_millis(3);

/// The ranks of a training, and what has been done to them.
#[derive(Debug)]
pub(super) struct Scene {
    /// Process of each rank.
    pub(super) pids: BTreeMap<u32, i32>,
    containers: BTreeMap<u32, Container>,
    held_up: Option<Injected>,
    is_narrow: bool,
}

impl Scene {
    /// Puts each rank into a container, if there can be containers.
    pub(super) fn around(job: &Job, pids: BTreeMap<u32, i32>, has_containers: bool) -> Result<Scene, Failure> {
        let mut containers = BTreeMap::new();
        for (rank, pid) in pids.iter().filter(|_| has_containers) {
            containers.insert(*rank, Container::around(*rank, *pid, &job.files())?);
        }
        Ok(Scene { pids, containers, held_up: None, is_narrow: false })
    }

    /// Injects the fault.
    pub(super) fn inject(&mut self, kind: Kind, job: &Job, victim: u32) -> Result<(), Failure> {
        let [a, b] = job.ranks.link(victim).map(|rank| self.pids.get(&rank).copied().unwrap_or_default());
        let pid = self.pids.get(&victim).and_then(|pid| Pid::from_raw(*pid)).ok_or("the victim does not run")?;
        let container = self.containers.get_mut(&victim).ok_or("the victim has no container");
        match kind {
            Kind::Clean => {}
            Kind::BusyLoop => container?.disturb()?,
            Kind::Throttled => container?.throttle()?,
            Kind::SlowInput => container?.slow_reads()?,
            Kind::SlowCheckpoint => container?.slow_writes()?,
            Kind::Slow50 => self.held_up = Some(Injected::slowed(pid, PERIOD / 3 + MADE_UP)),
            Kind::Slow20 => self.held_up = Some(Injected::slowed(pid, PERIOD / 6 + MADE_UP)),
            Kind::SlowLink => {
                link::narrow(a, b)?;
                self.is_narrow = true;
            }
            Kind::Frozen => kill_process(pid, Signal::STOP)?,
            Kind::Skip => job.order(&format!("skip-{victim}"))?,
            Kind::Size => job.order(&format!("size-{victim}"))?,
            Kind::Slower => job.order("slower")?,
        }
        Ok(())
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if self.is_narrow {
            let _ = link::restore(); // the next injection reports it
        }
    }
}
