//! A job of the stand-in over real processes, and what tests wait for in it.

use super::{PATIENCE, local};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::defaults;
use taskd_core::job::*;
use taskd_core::kernel::{Event, JobReport};
use taskd_core::launch::*;
use taskd_core::recover::{self, RecoveryStrategy};
use taskd_core::runtime::{Runtime, RuntimeHandle};

/// A job of the stand-in that runs.
pub(crate) struct Job {
    ranks: u32,
    pub(crate) launcher: Arc<LocalLauncher>,
    pub(crate) handle: RuntimeHandle,
    pub(crate) running: tokio::task::JoinHandle<JobReport>,
    pub(crate) events: tokio::sync::broadcast::Receiver<Arc<taskd_core::runtime::TimestampedEvent>>,
}

pub(crate) async fn job(dir: &Path, ranks: u32, spec: WorkerSpec) -> Job {
    job_with(dir, ranks, spec, |_| ()).await
}

pub(crate) async fn job_with(dir: &Path, ranks: u32, spec: WorkerSpec, change: impl FnOnce(&mut Policy)) -> Job {
    job_that_uses(recover::defaults(), dir, ranks, spec, change).await
}

pub(crate) async fn job_that_uses(
    strategies: Vec<Box<dyn RecoveryStrategy>>,
    dir: &Path,
    ranks: u32,
    spec: WorkerSpec,
    change: impl FnOnce(&mut Policy),
) -> Job {
    let launcher = Arc::new(local(dir).beat_every(Duration::from_millis(50)).build().await.unwrap());
    let mut job = JobSpec::new("stand-in", ranks, spec);
    job.policy.termination_grace_period = Duration::ZERO;
    change(&mut job.policy);
    let runtime = Runtime::builder()
        .job(job)
        .source(launcher.heartbeats(Duration::from_millis(50)))
        .detectors(defaults())
        .strategies(strategies)
        .launcher(Arc::clone(&launcher))
        .build()
        .unwrap();
    let handle = runtime.handle();
    let events = handle.events();
    Job { ranks, launcher, handle, running: tokio::spawn(runtime.run()), events }
}

impl Job {
    /// The process ids of all ranks, once all of them have a link.
    pub(crate) async fn linked(&self) -> BTreeMap<u32, u32> {
        let looking = async {
            loop {
                let Listing { procs, links, .. } = self.launcher.list().await.unwrap();
                let in_loop = |link: &&LinkStatus| {
                    link.link.as_ref().is_some_and(|linked| linked.position == LoopPosition::InLoop)
                };
                let pid = |link: &LinkStatus| procs.iter().find(|p| p.proc == link.proc)?.pid;
                let pids = links.iter().filter(in_loop).filter_map(|l| Some((l.proc.role.rank()?.0, pid(l)?)));
                let pids: BTreeMap<u32, u32> = pids.collect();
                let status = self.handle.status().await.unwrap();
                if pids.len() == self.ranks as usize && status.in_loop == self.ranks {
                    return pids;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, looking).await.expect("all ranks are linked")
    }

    pub(crate) async fn closed(&mut self) -> String {
        let looking = async {
            loop {
                if let Event::Closed { how, .. } = &self.events.recv().await.unwrap().event {
                    return how.clone();
                }
            }
        };
        tokio::time::timeout(PATIENCE, looking).await.expect("the incident is closed")
    }

    pub(crate) async fn end(self) -> JobReport {
        let _ = self.handle.stop("enough").await; // error: the job is over
        tokio::time::timeout(PATIENCE, self.running).await.expect("it ends").unwrap()
    }
}

pub(crate) fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}
