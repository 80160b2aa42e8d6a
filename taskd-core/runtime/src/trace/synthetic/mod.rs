//! Records of a simulated training job: a model of a synchronous job with selectable faults and disturbances.
//!
//! For tests, demonstrations, and development of detectors. The same job with the same seed gives the same records on
//! every machine. The model has no clock: times are simulated.
//!
//! ```
//! use std::time::Duration;
//! use taskd_core::job::Rank;
//! use taskd_core::trace::Signal;
//! use taskd_core::trace::reduce::Observer;
//! use taskd_core::trace::synthetic::{Cause, Injection, SyntheticJob};
//!
//! let job = SyntheticJob::new(4).seed(7).steps(20);
//! let slow = Injection::Slow { rank: Rank(2), from_step: 10, percent: 50, cause: Cause::OffCpu };
//! let mut observer = Observer::new(Duration::from_secs(1));
//! let mut own = [0; 4];
//! for batch in job.inject(slow).run() {
//!     observer.take(&batch);
//!     for timed in observer.settle(batch.origin, u64::MAX) {
//!         let Signal::Step(times) = timed.fact.signal else { continue };
//!         own[batch.origin.rank.0 as usize] = times.own_ns();
//!     }
//! }
//! let slowest = (0..4).max_by_key(|rank| own[*rank]);
//! assert_eq!(slowest, Some(2), "in the last step it is rank 2 that the others wait for");
//! ```

mod devices;
mod program;
mod run;
#[cfg(test)]
mod tests;

pub use devices::{DeviceHost, SyntheticDevices};
pub use run::SyntheticRun;

use super::{Pace, StoredSource};
use crate::job::Rank;
use std::time::Duration;

/// A simulated synchronous training job: every rank loads data, computes the forward and backward pass, all-reduces its
/// gradients bucket by bucket during the backward pass, and runs its optimizer once all buckets are reduced.
///
/// With [`stages`](Self::stages) it is a pipeline: the ranks of a stage all-reduce with each other, and exchange
/// activations and gradients with the neighbouring stages, microbatch by microbatch. At the end of a step all ranks
/// all-reduce one number.
#[derive(Clone, Debug)]
pub struct SyntheticJob {
    ranks: u32,
    seed: u64,
    steps: u64,
    own: Duration,
    jitter_permille: u32,
    buckets: u32,
    stages: u32,
    injections: Vec<Injection>,
}

/// A fault of one rank, or a disturbance without a faulty rank, that the simulation of a [`SyntheticJob`] contains. The
/// first four variants (`Slow`, `Frozen`, `Skips` and `Mismatch`) are faults of the rank that they name, which a
/// detector should find. The other variants are disturbances: they lengthen steps on some or all ranks although no rank
/// is faulty, so a detector must blame no rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Injection {
    /// A rank's own work (loading data and computing, without communication) takes longer, from one step on to the end
    /// of the job.
    Slow {
        /// Rank that becomes slow.
        rank: Rank,
        /// First step in which the rank is slow.
        from_step: u64,
        /// Additional time, in percent of the rank's usual own work: 50 means that the work takes 1.5 times as long.
        percent: u32,
        /// Cause for which the rank's work takes longer.
        cause: Cause,
    },
    /// A rank stops in the middle of a step, never continues and records nothing more. The other ranks then wait for it
    /// indefinitely.
    Frozen {
        /// Rank that freezes.
        rank: Rank,
        /// Step in which the rank freezes.
        at_step: u64,
    },
    /// A rank skips one collective of a step and continues.
    Skips {
        /// Rank that skips the collective.
        rank: Rank,
        /// Step in which the rank skips the collective.
        at_step: u64,
    },
    /// A rank calls one collective of a step with a different number of elements.
    Mismatch {
        /// Rank that calls the collective with another number of elements.
        rank: Rank,
        /// Step of that collective.
        at_step: u64,
    },
    /// The ranks of the last pipeline stage have more work in each step than those of the other stages.
    UnevenStages {
        /// Additional work of the last stage's ranks, in percent of the work of another stage's ranks.
        percent: u32,
    },
    /// The training data has sequences of different lengths, so each rank has a different, random amount of work in
    /// each step.
    UnevenLengths {
        /// Maximum additional work of a rank in one step, in percent. The additional work is uniformly distributed from
        /// 0 to this value.
        percent: u32,
    },
    /// The first steps take longer, on each rank by a different amount.
    WarmUp {
        /// Number of steps that take longer, from the first step on.
        steps: u64,
        /// Maximum additional time of a rank's work in the first step, in percent. It falls linearly in the further
        /// steps.
        percent: u32,
    },
    /// Ranks pause occasionally, independently of each other, as for a garbage collection.
    Pauses {
        /// Mean number of a rank's steps between two of its pauses.
        every: u64,
        /// Length of a pause in milliseconds.
        ms: u32,
    },
    /// Rank 0 saves a checkpoint at regular intervals, and the other ranks wait for it.
    Checkpoints {
        /// Number of steps from one checkpoint to the next.
        every: u64,
        /// Duration of saving a checkpoint, in milliseconds.
        ms: u32,
    },
    /// Every communication of all ranks takes longer, from one step on to the end of the job.
    SlowNetwork {
        /// First step in which communications take longer.
        from_step: u64,
        /// Additional time, in percent of a communication's usual duration.
        percent: u32,
    },
}

/// Cause of a slow rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The rank computes more slowly, on the CPU all the time: a low clock frequency, or more work.
    OnCpu,
    /// The rank is kept off the CPU by another process.
    OffCpu,
    /// The rank waits for data before it computes. `percent` then refers to the work of the whole step, not to loading
    /// data.
    DataLoader,
}

impl SyntheticJob {
    /// Creates a job with this number of ranks (at least 1): 1,000 steps with 100 ms of work each, four gradient
    /// buckets, and 2 % jitter.
    #[must_use]
    pub fn new(ranks: u32) -> SyntheticJob {
        SyntheticJob {
            ranks: ranks.max(1),
            seed: 1,
            steps: 1000,
            own: Duration::from_millis(100),
            jitter_permille: 20,
            buckets: 4,
            stages: 1,
            injections: Vec::new(),
        }
    }

    /// Sets the seed of the random numbers. The same job with the same seed gives the same records. Default: 1.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> SyntheticJob {
        self.seed = seed;
        self
    }

    /// Sets the number of steps of the job; the first is step 1. Default: 1,000.
    #[must_use]
    pub fn steps(mut self, steps: u64) -> SyntheticJob {
        self.steps = steps;
        self
    }

    /// Sets the duration of a rank's own work (without communication) per step, from 1 ms to 1 hour. Default: 100 ms.
    #[must_use]
    pub fn own_work(mut self, own: Duration) -> SyntheticJob {
        self.own = own.clamp(Duration::from_millis(1), Duration::from_secs(3600));
        self
    }

    /// Sets the maximum random deviation of the duration of each piece of a rank's work, in thousandths of this
    /// duration, at most 500. The deviation is uniformly distributed. Default: 20.
    #[must_use]
    pub fn jitter_permille(mut self, permille: u32) -> SyntheticJob {
        self.jitter_permille = permille.min(500);
        self
    }

    /// Sets the number of gradient buckets, from 1 to 1,000: each rank all-reduces its gradients in that many
    /// collectives per step. Default: 4.
    #[must_use]
    pub fn buckets(mut self, buckets: u32) -> SyntheticJob {
        self.buckets = buckets.clamp(1, 1000);
        self
    }

    /// Sets the number of pipeline stages into which the ranks are divided. If the ranks cannot be divided evenly,
    /// there is one stage. Default: 1, that is, no pipeline.
    #[must_use]
    pub fn stages(mut self, stages: u32) -> SyntheticJob {
        self.stages = if stages > 0 && self.ranks.is_multiple_of(stages) { stages } else { 1 };
        self
    }

    /// Adds a fault or disturbance to the simulation. Several can be added; their effects on a step are combined.
    #[must_use]
    pub fn inject(mut self, injection: Injection) -> SyntheticJob {
        self.injections.push(injection);
        self
    }

    /// Runs the simulation, and returns an iterator over the batches of records.
    #[must_use]
    pub fn run(self) -> SyntheticRun {
        SyntheticRun::new(self)
    }

    /// Runs the job in real time, as a trace source that is marked as a [stand-in](crate::trace::SourceInfo::stand_in).
    /// The source never ends: after the last step, or when ranks hang, time continues without new records.
    #[must_use]
    pub fn source(self) -> StoredSource<SyntheticRun> {
        StoredSource::new(self.run()).named("synthetic").pace(Pace::RealTime).lingering().stand_in()
    }

    const fn width(&self) -> u32 {
        self.ranks / self.stages
    }

    const fn stage_of(&self, rank: u32) -> u32 {
        rank / self.width()
    }

    /// Returns a pseudo-random number from 0 to 1 (excluded), determined by seed, rank, step and purpose.
    fn draw(&self, rank: u32, step: u64, purpose: u64) -> f64 {
        let mixed = [u64::from(rank), step, purpose].into_iter().fold(mix(self.seed), |state, part| mix(state ^ part));
        (mixed >> 40) as f64 / (1u64 << 24) as f64
    }
}

/// The finalizer of SplitMix64.
const fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
