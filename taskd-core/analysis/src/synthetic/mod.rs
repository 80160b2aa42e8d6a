//! Traces of a simulated training, by seed: for tests of analysis functions, and for reports without a real run.
//!
//! The ranks are in the order of Megatron-LM: tensor parallelism varies fastest, then data parallelism, then the pipeline
//! stage. Each step loads data, runs all forward passes of the micro-batches and then all backward passes (GPipe),
//! reduces the gradients in buckets during the last backward pass, reduces one scalar over all ranks, and updates the
//! parameters. A collective begins on each member when the member calls it and ends on all members together.

mod engine;
mod program;
mod rank;
#[cfg(test)]
mod tests;

use crate::model::{Group, GroupRole, Trace};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Shape of a simulated job. [`Job::default`] has 8 ranks (2 x 2 x 2) and 12 steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Degree of data parallelism, at least 1.
    pub dp: u32,
    /// Degree of tensor parallelism, at least 1.
    pub tp: u32,
    /// Number of pipeline stages, at least 1.
    pub pp: u32,
    /// Number of steps; they are numbered from 1.
    pub steps: u64,
    /// Number of micro-batches in a step, at least 1.
    pub micro_batches: u32,
    /// Number of kernels in the forward pass of a micro-batch on one stage; the backward pass has as many.
    pub kernels: u32,
    /// Mean time of one forward kernel in nanoseconds; a backward kernel takes twice as long.
    pub kernel_ns: u64,
    /// Standard deviation of the kernels' times in permille.
    pub jitter_permille: u32,
    /// Number of ranks on a host, at least 1.
    pub ranks_per_host: u32,
    /// Largest offset of a rank's clock in nanoseconds, in both directions.
    pub clock_offset_ns: u32,
    /// Number of steps between checkpoints; 0: no checkpoint is written.
    pub checkpoint_every: u64,
    /// True if each step reduces a scalar over all ranks. Otherwise only the groups connect the ranks.
    pub reduces_over_world: bool,
    /// True if the trace has the waiting part of each communication, as Ascend's profiler records it.
    pub records_wait: bool,
    /// True if the trace has no device: passes are spans of the host, and kernels are not recorded.
    pub is_host_only: bool,
    /// Planted fault.
    pub fault: Fault,
}

/// A planted fault. Percentages are the additional time: 50 means 1.5 times as long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// No component is at fault.
    #[default]
    None,
    /// All kernels of a rank take longer.
    SlowRank {
        /// The slow rank.
        rank: u32,
        /// First affected step.
        from_step: u64,
        /// Additional time.
        percent: u32,
    },
    /// Transfers from one rank to another take longer, also those inside of collectives of a ring with this link.
    SlowLink {
        /// Sending rank.
        source: u32,
        /// Receiving rank.
        destination: u32,
        /// First affected step.
        from_step: u64,
        /// Additional time.
        percent: u32,
    },
    /// The rank waits for its data: the percentage is of the time of all kernels of a step.
    SlowLoader {
        /// The slow rank.
        rank: u32,
        /// First affected step.
        from_step: u64,
        /// Additional time.
        percent: u32,
    },
    /// The rank writes its checkpoints slowly: the percentage is of the time of all kernels of a step.
    SlowCheckpoint {
        /// The slow rank.
        rank: u32,
        /// First affected step.
        from_step: u64,
        /// Additional time.
        percent: u32,
    },
    /// All ranks of a stage have more work: an uneven partition, for which no rank is to blame.
    UnevenStage {
        /// The stage with more work.
        stage: u32,
        /// Additional time.
        percent: u32,
    },
    /// All ranks become slower: no component is to blame.
    SlowAll {
        /// First affected step.
        from_step: u64,
        /// Additional time.
        percent: u32,
    },
}

impl Default for Job {
    fn default() -> Job {
        Job {
            dp: 2,
            tp: 2,
            pp: 2,
            steps: 12,
            micro_batches: 4,
            kernels: 2,
            kernel_ns: 1_500_000,
            jitter_permille: 15,
            ranks_per_host: 8,
            clock_offset_ns: 3_000_000,
            checkpoint_every: 5,
            reduces_over_world: true,
            records_wait: false,
            is_host_only: false,
            fault: Fault::None,
        }
    }
}

impl Job {
    /// Returns the number of ranks.
    #[must_use]
    pub const fn world_size(&self) -> u32 {
        self.dp * self.tp * self.pp
    }

    /// Returns the pipeline stage of a rank.
    #[must_use]
    pub const fn stage_of(&self, rank: u32) -> u32 {
        rank / (self.dp * self.tp)
    }

    /// Returns the job with a fault.
    #[must_use]
    pub fn with_fault(mut self, fault: Fault) -> Job {
        self.fault = fault;
        self
    }

    /// Returns the groups of a rank in the order world, tensor, data, pipeline; groups of one rank are left out.
    fn groups_of(&self, rank: u32) -> Vec<Group> {
        let (tensor, stage) = (rank % self.tp, self.stage_of(rank));
        let replica = rank / self.tp % self.dp;
        let at = |stage: u32, replica: u32, tensor: u32| (stage * self.dp + replica) * self.tp + tensor;
        let group = |name: String, role, members: Vec<u32>| Group { name, role, members };
        let mut groups = vec![group("world".to_owned(), GroupRole::World, (0..self.world_size()).collect())];
        let members = (0..self.tp).map(|tensor| at(stage, replica, tensor)).collect();
        groups.push(group(format!("tp-{stage}-{replica}"), GroupRole::Tensor, members));
        let members = (0..self.dp).map(|replica| at(stage, replica, tensor)).collect();
        groups.push(group(format!("dp-{stage}-{tensor}"), GroupRole::Data, members));
        let members = (0..self.pp).map(|stage| at(stage, replica, tensor)).collect();
        groups.push(group(format!("pp-{replica}-{tensor}"), GroupRole::Pipeline, members));
        groups.retain(|group| group.members.len() > 1);
        groups
    }
}

/// Simulates the job and returns its trace. Equal jobs and seeds give equal traces.
#[must_use]
pub fn trace(job: &Job, seed: u64) -> Trace {
    engine::Engine::new(job, seed).run()
}

/// Returns the offset of each rank's clock in nanoseconds in the trace of this job and seed.
#[must_use]
pub fn clock_offsets(job: &Job, seed: u64) -> Vec<i64> {
    let mut random = StdRng::seed_from_u64(seed ^ 0x00c1_0c45);
    let largest = i64::from(job.clock_offset_ns);
    (0..job.world_size()).map(|_| random.random_range(-largest..=largest)).collect()
}
