//! Actions of a rank in a step, with their durations.

use super::{Fault, Job};
use crate::model::{GroupRole, Kind};
use rand::RngExt;
use rand::rngs::StdRng;

/// Payload of an activation between two stages or two tensor-parallel ranks, in bytes.
pub(super) const ACTIVATION_BYTES: u64 = 8 << 20;
/// Payload of one bucket of gradients, in bytes.
const BUCKET_BYTES: u64 = 48 << 20;
/// Number of gradient buckets in a step.
const BUCKETS: u32 = 2;
/// Largest launch gap before a kernel, in permille of the kernel.
const GAP_PERMILLE: u64 = 30;
/// One step of this number has a pause of the language runtime on a rank, on average.
const PAUSE_EVERY: u32 = 150;

/// One action of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Begins a span of the host; the next [`Act::Close`] ends it.
    Open(Kind, &'static str),
    /// Ends the span of the host.
    Close,
    /// Computes on the device, after a gap.
    Work { name: &'static str, gap: u64, nanos: u64 },
    /// Works on the host.
    Host { kind: Kind, name: &'static str, nanos: u64 },
    /// Calls a collective of the group with this role.
    Collective { role: GroupRole, name: &'static str, bytes: u64, is_blocking: bool },
    /// Begins a send.
    Send { to: u32 },
    /// Waits for data.
    Receive { from: u32 },
    /// Waits for all sends and collectives that have begun.
    Drain,
    /// Ends the step.
    EndStep,
}

/// Builds the actions of one rank in one step.
pub(super) struct Program<'a> {
    job: &'a Job,
    random: &'a mut StdRng,
    rank: u32,
    step: u64,
    acts: Vec<Act>,
}

/// Returns the actions of a rank in a step.
pub(super) fn acts(job: &Job, rank: u32, step: u64, random: &mut StdRng) -> Vec<Act> {
    let program = Program { job, random, rank, step, acts: Vec::new() };
    program.build()
}

impl Program<'_> {
    fn build(mut self) -> Vec<Act> {
        let width = self.job.dp * self.job.tp;
        let before = self.rank.checked_sub(width);
        let after = Some(self.rank + width).filter(|after| *after < self.job.world_size());
        self.load();
        for _ in 0..self.job.micro_batches {
            self.pass(Kind::Forward, before, after, false);
        }
        for batch in 0..self.job.micro_batches {
            self.pass(Kind::Backward, after, before, batch + 1 == self.job.micro_batches);
        }
        self.acts.push(Act::Drain);
        if self.job.reduces_over_world {
            self.collective(GroupRole::World, "all_reduce_norm", 4, true);
        }
        self.acts.push(Act::Open(Kind::Optimizer, "optimizer"));
        self.work("adam", self.job.kernel_ns / 2);
        self.acts.push(Act::Close);
        self.checkpoint();
        self.acts.push(Act::EndStep);
        self.acts
    }

    fn load(&mut self) {
        let mut nanos = self.jittered(self.job.kernel_ns / 4);
        if let Fault::SlowLoader { rank, from_step, percent } = self.job.fault
            && rank == self.rank
            && self.step >= from_step
        {
            nanos += percent_of(self.own_ns(), percent);
        }
        self.acts.push(Act::Host { kind: Kind::DataLoader, name: "next_batch", nanos });
        if self.random.random_range(0..PAUSE_EVERY) == 0 {
            let nanos = self.jittered(self.job.kernel_ns / 3);
            self.acts.push(Act::Host { kind: Kind::GarbageCollection, name: "gc", nanos });
        }
    }

    /// The pass of one micro-batch: receive, kernels with their tensor-parallel collective, send.
    fn pass(&mut self, kind: Kind, from: Option<u32>, to: Option<u32>, reduces_gradients: bool) {
        let is_forward = kind == Kind::Forward;
        self.acts.extend(from.map(|from| Act::Receive { from }));
        self.acts.push(Act::Open(kind, if is_forward { "forward" } else { "backward" }));
        for kernel in 0..self.job.kernels {
            let (name, nanos) = match (is_forward, kernel % 2) {
                (true, 0) => ("attention_forward", self.job.kernel_ns),
                (true, _) => ("mlp_forward", self.job.kernel_ns),
                (false, 0) => ("mlp_backward", self.job.kernel_ns * 2),
                (false, _) => ("attention_backward", self.job.kernel_ns * 2),
            };
            self.work(name, nanos);
            let bucket = (kernel + 1) * BUCKETS / self.job.kernels > kernel * BUCKETS / self.job.kernels;
            if reduces_gradients && bucket && kernel + 1 < self.job.kernels {
                self.collective(GroupRole::Data, "all_reduce_gradients", BUCKET_BYTES, false);
            }
        }
        self.collective(GroupRole::Tensor, "all_reduce_activation", ACTIVATION_BYTES, true);
        self.acts.push(Act::Close);
        if reduces_gradients {
            self.collective(GroupRole::Data, "all_reduce_gradients", BUCKET_BYTES, false);
        }
        self.acts.extend(to.map(|to| Act::Send { to }));
    }

    fn collective(&mut self, role: GroupRole, name: &'static str, bytes: u64, is_blocking: bool) {
        let size = match role {
            GroupRole::Tensor => self.job.tp,
            GroupRole::Data => self.job.dp,
            _ => self.job.world_size(),
        };
        if size > 1 {
            self.acts.push(Act::Collective { role, name, bytes, is_blocking });
        }
    }

    fn checkpoint(&mut self) {
        if self.job.checkpoint_every == 0 || !self.step.is_multiple_of(self.job.checkpoint_every) {
            return;
        }
        let mut nanos = self.jittered(self.job.kernel_ns * 2);
        if let Fault::SlowCheckpoint { rank, from_step, percent } = self.job.fault
            && rank == self.rank
            && self.step >= from_step
        {
            nanos += percent_of(self.own_ns(), percent);
        }
        self.acts.push(Act::Host { kind: Kind::SaveCheckpoint, name: "save_checkpoint", nanos });
    }

    fn work(&mut self, name: &'static str, nanos: u64) {
        let mut nanos = self.jittered(nanos);
        match self.job.fault {
            Fault::SlowRank { rank, from_step, percent } if rank == self.rank && self.step >= from_step => {
                nanos += percent_of(nanos, percent);
            }
            Fault::UnevenStage { stage, percent } if stage == self.job.stage_of(self.rank) => {
                nanos += percent_of(nanos, percent);
            }
            Fault::SlowAll { from_step, percent } if self.step >= from_step => nanos += percent_of(nanos, percent),
            _ => (),
        }
        let gap = self.random.random_range(0..=nanos.saturating_mul(GAP_PERMILLE) / 1000);
        self.acts.push(Act::Work { name, gap, nanos });
    }

    /// Time of all kernels of a step without noise.
    fn own_ns(&self) -> u64 {
        self.job.kernel_ns * 3 * u64::from(self.job.kernels) * u64::from(self.job.micro_batches)
    }

    /// A duration with noise: the sum of three uniform numbers, with the job's jitter as its standard deviation.
    fn jittered(&mut self, nanos: u64) -> u64 {
        let sum: f64 = (0..3).map(|_| self.random.random_range(-1.0..1.0)).sum();
        scaled(nanos, 1.0 + f64::from(self.job.jitter_permille) / 1000.0 * sum)
    }
}

fn percent_of(nanos: u64, percent: u32) -> u64 {
    nanos.saturating_mul(u64::from(percent)) / 100
}

/// Returns a duration times a factor.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "durations are below 2^53 ns, and the product is at least 0"
)]
pub(super) fn scaled(nanos: u64, factor: f64) -> u64 {
    (nanos as f64 * factor.max(0.0)) as u64
}
