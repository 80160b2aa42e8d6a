//! Faults for one rank of a training, injected from outside where that is possible.
//!
//! It knows only processes and files; the effects are observed elsewhere.

use crate::program::Failure;
use crate::traced::TracedJob;
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The interval at which a slowed rank is stopped.
pub const PERIOD: Duration = Duration::from_millis(30);
/// The part of each stop that the simulated accelerator compensates (`Device` in `train_traced.py`): its queue holds
/// one kernel.
const MADE_UP: Duration = Duration::from_millis(1);

/// The kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Injection {
    /// No fault.
    None,
    /// The rank takes 20 % longer for everything: it loses a sixth of the time.
    Slow20,
    /// The rank takes 50 % longer for everything: it loses a third of the time.
    Slow50,
    /// The rank is stopped.
    Stop,
    /// The rank leaves a collective out. Only its program can do that.
    Skip,
    /// The rank calls another collective than the other ranks. Only its program can do that.
    Mismatch,
    /// The rank reduces more elements than the other ranks. Only its program can do that.
    Size,
    /// The storage from which the rank reads its samples takes 20 ms longer for each batch.
    SlowInput,
    /// The storage to which the rank writes its shards takes 60 ms longer for each checkpoint.
    SlowCheckpoint,
    /// The devices of all ranks take 20 ms longer for each step. No rank is at fault.
    SlowAll,
    /// The rank's batch of one step contains a NaN. Only its program can do that.
    Nan,
    /// The batches of all ranks in one step contain a NaN. No rank is at fault.
    NanAll,
    /// The rank weighs its loss by four from then on. Only its program can do that.
    Spike,
    /// One bit of one of the rank's parameters flips. Only its program can do that.
    Bitflip,
}

impl Injection {
    /// Returns the cause that a correct verdict names.
    #[must_use]
    pub const fn cause(self) -> &'static str {
        match self {
            Injection::None | Injection::SlowAll | Injection::NanAll => "none",
            Injection::Slow20 | Injection::Slow50 => "slow",
            Injection::Stop => "frozen",
            Injection::Skip => "skipped",
            Injection::Mismatch | Injection::Size => "mismatched",
            Injection::SlowInput => "slow-input",
            Injection::SlowCheckpoint => "slow-checkpoint",
            Injection::Nan | Injection::Spike => "numerical",
            Injection::Bitflip => "sdc",
        }
    }

    /// Returns the fault in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Injection::None => "nothing",
            Injection::Slow20 => "held up a sixth of the time (20 % slower)",
            Injection::Slow50 => "held up a third of the time (50 % slower)",
            Injection::Stop => "SIGSTOP",
            Injection::Skip => "leaves an all-reduce out",
            Injection::Mismatch => "broadcasts where the others reduce",
            Injection::Size => "reduces more elements than the others",
            Injection::SlowInput => "reads its samples from slow storage",
            Injection::SlowCheckpoint => "writes its checkpoints to slow storage",
            Injection::SlowAll => "all devices are slower",
            Injection::Nan => "trains on a batch with a NaN",
            Injection::NanAll => "all ranks train on a batch with a NaN",
            Injection::Spike => "weighs its loss wrongly",
            Injection::Bitflip => "has one flipped bit in a parameter",
        }
    }

    /// Returns true if one rank is at fault.
    #[must_use]
    pub const fn has_victim(self) -> bool {
        !matches!(self, Injection::None | Injection::SlowAll | Injection::NanAll)
    }

    /// Returns the number of steps between two checkpoints in the job into which the fault is injected; 0 for none.
    #[must_use]
    pub const fn checkpoint_every(self) -> u32 {
        if matches!(self, Injection::SlowCheckpoint) { 5 } else { 0 }
    }

    /// Injects the fault into a process of the job. A slowdown lasts until the returned value is dropped.
    ///
    /// # Errors
    /// The fault cannot be injected.
    pub fn into_rank(self, job: &TracedJob, rank: u32, pid: i32) -> Result<Injected, Failure> {
        let pid = Pid::from_raw(pid).ok_or("the rank has no process")?;
        match self {
            Injection::None => return Ok(Injected::Nothing),
            Injection::Slow20 => return Ok(Injected::slowed(pid, PERIOD / 6 + MADE_UP)),
            Injection::Slow50 => return Ok(Injected::slowed(pid, PERIOD / 3 + MADE_UP)),
            Injection::Stop => kill_process(pid, Signal::STOP)?,
            Injection::Skip => job.send(&format!("skip-{rank}"))?,
            Injection::Mismatch => job.send(&format!("mismatch-{rank}"))?,
            Injection::Size => job.send(&format!("size-{rank}"))?,
            Injection::SlowInput => job.send(&format!("slow-input-{rank}"))?,
            Injection::SlowCheckpoint => job.send(&format!("slow-checkpoint-{rank}"))?,
            Injection::SlowAll => job.send("slow-all")?,
            Injection::Nan => job.send(&format!("nan-{rank}"))?,
            Injection::NanAll => job.send("nan-all")?,
            Injection::Spike => job.send(&format!("spike-{rank}"))?,
            Injection::Bitflip => job.send(&format!("bitflip-{rank}"))?,
        }
        Ok(Injected::Once)
    }
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.pad(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// An injected fault.
#[derive(Debug)]
pub enum Injected {
    /// No fault.
    Nothing,
    /// A fault that needs no further action.
    Once,
    /// A slowdown that is still being applied.
    Slowed {
        /// Set to end the slowdown.
        ends: Arc<AtomicBool>,
        /// The thread that stops and continues the rank.
        worker: Option<JoinHandle<()>>,
    },
}

impl Injected {
    /// Stops a process for `hold` in every [`PERIOD`].
    pub fn slowed(pid: Pid, hold: Duration) -> Injected {
        let ends = Arc::new(AtomicBool::new(false));
        let reported = Arc::clone(&ends);
        let worker = thread::spawn(move || {
            let mut next = Instant::now();
            while !reported.load(Ordering::Relaxed) && kill_process(pid, Signal::STOP).is_ok() {
                thread::park_timeout(hold);
                let _ = kill_process(pid, Signal::CONT); // an error: the process has ended, and so does the loop
                next += PERIOD;
                thread::park_timeout(next.saturating_duration_since(Instant::now()));
            }
        });
        Injected::Slowed { ends, worker: Some(worker) }
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        if let Injected::Slowed { ends, worker } = self {
            ends.store(true, Ordering::Relaxed);
            let _ = worker.take().map(JoinHandle::join); // it cannot panic
        }
    }
}
