//! The records of a training job that never ran: a model of a synchronous job, with what goes wrong in one chosen.
//!
//! For tests, demonstrations, and whoever writes a detector. The same job with the same seed gives the same records on every
//! machine. It has no clock: times are those of the model.
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
//!     for told in observer.settle(batch.origin, u64::MAX) {
//!         let Signal::Step(times) = told.fact.signal else { continue };
//!         own[batch.origin.rank.0 as usize] = times.own_ns();
//!     }
//! }
//! let slowest = (0..4).max_by_key(|rank| own[*rank]);
//! assert_eq!(slowest, Some(2), "in the last step it is rank 2 for whom the others wait");
//! ```

mod program;
mod run;
#[cfg(test)]
mod tests;

pub use run::SyntheticRun;

use super::{Pace, StoredSource};
use crate::job::Rank;
use std::time::Duration;

/// A synchronous training job: every rank loads data, computes forwards and backwards, reduces its gradients with all others
/// bucket by bucket while it computes, and takes its optimizer's step when all buckets are there.
///
/// With [`stages`](Self::stages) it is a pipeline: ranks of a stage reduce with each other, and hand activations and
/// gradients to the stages beside them, microbatch by microbatch. At the end of a step all ranks reduce one number.
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

/// Something that makes ranks differ. The first four are somebody's fault, the others nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Injection {
    /// From a step on a rank's own work takes longer.
    Slow {
        /// Which rank.
        rank: Rank,
        /// From which step on.
        from_step: u64,
        /// By how much.
        percent: u32,
        /// Why.
        cause: Cause,
    },
    /// In the midst of a step a rank stops for ever, and records nothing any more.
    Frozen {
        /// Which rank.
        rank: Rank,
        /// In which step.
        at_step: u64,
    },
    /// A rank leaves out one collective of a step and goes on.
    Skips {
        /// Which rank.
        rank: Rank,
        /// In which step.
        at_step: u64,
    },
    /// A rank calls one collective of a step with another number of elements than the others.
    Mismatch {
        /// Which rank.
        rank: Rank,
        /// In which step.
        at_step: u64,
    },
    /// The last stage of a pipeline has more to do than the others.
    UnevenStages {
        /// By how much.
        percent: u32,
    },
    /// Sequences have different lengths, so every rank has now more and now less to do.
    UnevenLengths {
        /// By how much at most.
        percent: u32,
    },
    /// The first steps take longer, on each rank by an amount of its own.
    WarmUp {
        /// Steps.
        steps: u64,
        /// By how much at most, in the first.
        percent: u32,
    },
    /// Ranks pause now and then, each for itself, as for a garbage collection.
    Pauses {
        /// Steps between two pauses of a rank, in the mean.
        every: u64,
        /// For how long, in milliseconds.
        ms: u32,
    },
    /// Rank 0 saves a checkpoint, the others wait for it.
    Checkpoints {
        /// Steps from one to the next.
        every: u64,
        /// How long it takes, in milliseconds.
        ms: u32,
    },
    /// From a step on every communication takes longer.
    SlowNetwork {
        /// From which step on.
        from_step: u64,
        /// By how much.
        percent: u32,
    },
}

/// Why a rank is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// It computes more slowly, on the CPU all the time: a low frequency, or more to do.
    OnCpu,
    /// It is kept off the CPU: another process has it.
    OffCpu,
    /// It waits for data; the percentage is of the whole step's work.
    DataLoader,
}

impl SyntheticJob {
    /// A job of so many ranks (1 at least): 1,000 steps with 100 ms of work each, four buckets, and 2 % of jitter.
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

    /// What chance is made of.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> SyntheticJob {
        self.seed = seed;
        self
    }

    /// How many steps, from step 1.
    #[must_use]
    pub fn steps(mut self, steps: u64) -> SyntheticJob {
        self.steps = steps;
        self
    }

    /// What a rank's own work takes in a step; 1 ms at least, an hour at most.
    #[must_use]
    pub fn own_work(mut self, own: Duration) -> SyntheticJob {
        self.own = own.clamp(Duration::from_millis(1), Duration::from_secs(3600));
        self
    }

    /// By how much each piece of work differs from its mean, evenly spread, 500 at most.
    #[must_use]
    pub fn jitter_permille(mut self, permille: u32) -> SyntheticJob {
        self.jitter_permille = permille.min(500);
        self
    }

    /// Into how many buckets gradients are cut, 1 to 1,000.
    #[must_use]
    pub fn buckets(mut self, buckets: u32) -> SyntheticJob {
        self.buckets = buckets.clamp(1, 1000);
        self
    }

    /// Stages of a pipeline. Where ranks cannot be dealt out evenly it stays one stage.
    #[must_use]
    pub fn stages(mut self, stages: u32) -> SyntheticJob {
        self.stages = if stages > 0 && self.ranks.is_multiple_of(stages) { stages } else { 1 };
        self
    }

    /// Adds something that makes ranks differ.
    #[must_use]
    pub fn inject(mut self, injection: Injection) -> SyntheticJob {
        self.injections.push(injection);
        self
    }

    /// Lets it run.
    #[must_use]
    pub fn run(self) -> SyntheticRun {
        SyntheticRun::new(self)
    }

    /// Lets it run in real time, as a source that is marked as a stand-in. It never ends: when the steps are over, or ranks
    /// hang, the time goes on.
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

    /// A number from 0 to 1 (excluded) that belongs to a rank, a step and a purpose.
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
