//! SIGKILL to ranks at random moments while a job runs: in steps, while it saves, starts or recovers.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Arc;
use std::time::{Duration, Instant};
use taskd_core::job::Role;
use taskd_core::kernel::{Event, JobStatus};
use taskd_core::launch::{Launcher, Phase};
use taskd_core::runtime::{RuntimeHandle, TimestampedEvent};
use tokio::sync::broadcast::Receiver;

/// Time limit for a job to train again after a kill.
const BOUND: Duration = Duration::from_secs(120);
/// Maximum delay of a kill, in milliseconds, after the job has recovered or after the previous kill.
const WITHIN_MS: u64 = 2_500;
/// One in this many kills is sent without waiting for the job to recover from the previous one.
const UNWAITED: u32 = 5;

/// The interval at which the job's status is checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);

type Events = Receiver<Arc<TimestampedEvent>>;

/// Random numbers from the seed.
#[derive(Debug)]
pub(super) struct Dice(StdRng);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(StdRng::seed_from_u64(seed))
    }
}

/// A rank that was killed, and the time since the job's start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kill {
    pub(super) rank: u32,
    pub(super) at: Duration,
}

/// Kills ranks of a job.
pub(super) struct Striker {
    pub(super) launcher: Arc<dyn Launcher>,
    pub(super) handle: RuntimeHandle,
    pub(super) begun: Instant,
}

impl Striker {
    /// Kills `kills` ranks, or fewer if the job is over before. A job that does not recover from a kill is stopped.
    pub(super) async fn carry_out(self, kills: u32, dice: &mut Dice) -> Vec<Kill> {
        let (mut events, mut done, mut waits) = (self.handle.events(), Vec::new(), true);
        while done.len() < kills as usize {
            let goes_on = match done.is_empty() {
                true => self.until(&mut events, |_, status| status.steps.is_some()).await,
                false => {
                    !waits || self.until(&mut events, |event, _| matches!(event, Some(Event::Closed { .. }))).await
                }
            };
            if !goes_on {
                let reason = format!("the job did not train again within {} s", BOUND.as_secs());
                let _ = self.handle.stop_now(reason).await; // an error means that the job is over
                break;
            }
            tokio::time::sleep(Duration::from_millis(dice.0.random_range(0..WITHIN_MS))).await;
            while events.try_recv().is_ok() {} // drops events of earlier incidents
            let Some(kill) = self.kill(dice).await else { break };
            done.push(kill);
            waits = dice.0.random_range(0..UNWAITED) != 0;
        }
        done
    }

    /// Waits until `is_so` returns true or the job is over; returns false if neither happens within [`BOUND`].
    async fn until(&self, events: &mut Events, is_so: impl Fn(Option<&Event>, &JobStatus) -> bool) -> bool {
        let within = Instant::now() + BOUND;
        while Instant::now() < within {
            let event = tokio::time::timeout(LOOK_EVERY, events.recv()).await;
            let event = event.ok().and_then(Result::ok);
            match self.handle.status().await {
                Ok(status) if !is_so(event.as_deref().map(|announcement| &announcement.event), &status) => {}
                _ => return true,
            }
        }
        false
    }

    /// Kills a running rank; returns `None` if the job is over.
    async fn kill(&self, dice: &mut Dice) -> Option<Kill> {
        loop {
            let procs = self.launcher.list().await.ok()?.procs;
            let running = procs.iter().filter_map(|proc| match (&proc.proc.role, &proc.phase) {
                (Role::Rank(rank), Phase::Running) => Some((rank.0, Pid::from_raw(i32::try_from(proc.pid?).ok()?)?)),
                _ => None,
            });
            let running: Vec<(u32, Pid)> = running.collect();
            if let Some((rank, pid)) = running.get(dice.0.random_range(0..running.len().max(1))).copied()
                && kill_process(pid, Signal::KILL).is_ok()
            {
                return Some(Kill { rank, at: self.begun.elapsed() });
            }
            self.handle.status().await.ok()?;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
