//! The training loops of the run, and the program of each.

use clap::ValueEnum;
use serde::Serialize;

/// A training loop of a framework; its name is also its argument of the script `run.py`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Loop {
    /// DistributedDataParallel.
    Ddp,
    /// Two stages of one shape, with `dist.send` and `dist.recv`.
    Pipeline,
    /// The same with `torch.distributed.pipelining`.
    TorchPipelining,
    /// torch's ZeroRedundancyOptimizer.
    #[value(name = "torch-zero1")]
    #[serde(rename = "torch-zero1")]
    TorchZero1,
    /// DeepSpeed, stage 1.
    #[value(name = "deepspeed-zero1")]
    #[serde(rename = "deepspeed-zero1")]
    DeepspeedZero1,
    /// `fully_shard` over all ranks.
    Fsdp2,
    /// `fully_shard` over a mesh of two replicas.
    Hsdp,
    /// `parallelize_module`.
    TensorParallel,
    /// Hugging Face's Trainer.
    HfTrainer,
    /// A loop with accelerate.
    Accelerate,
    /// Lightning's Trainer.
    Lightning,
}

impl Loop {
    pub(super) fn all() -> Vec<Loop> {
        Loop::value_variants().to_vec()
    }

    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub(super) fn ranks(self) -> u32 {
        if self == Loop::Hsdp { 4 } else { 2 }
    }

    pub(super) fn needs_torch_alone(self) -> bool {
        !matches!(self, Loop::DeepspeedZero1 | Loop::HfTrainer | Loop::Accelerate | Loop::Lightning)
    }

    /// Returns true if the program has a loop of its own, in which `taskd.steps` can be used.
    pub(super) fn has_steps(self) -> bool {
        !matches!(self, Loop::HfTrainer | Loop::Lightning)
    }
}
