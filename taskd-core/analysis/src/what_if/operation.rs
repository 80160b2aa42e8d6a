//! Operations of hybrid-parallel training: the input of the model.

/// Place of a process in the job's dimensions of parallelism.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Worker {
    /// Data-parallel rank: number of the replica of the model.
    pub data: u32,
    /// Pipeline stage.
    pub stage: u32,
    /// Tensor-parallel rank. A trace that records one process of each tensor-parallel group has 0.
    pub tensor: u32,
    /// Global rank.
    pub rank: u32,
}

impl Worker {
    /// Returns the worker in words, such as `rank 12 (dp 3, stage 0)`.
    #[must_use]
    pub fn to_words(self) -> String {
        let Worker { data, stage, tensor, rank } = self;
        if tensor == 0 {
            format!("rank {rank} (dp {data}, stage {stage})")
        } else {
            format!("rank {rank} (dp {data}, stage {stage}, tp {tensor})")
        }
    }
}

/// Kind of an operation. The order is the order of kinds that begin at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum OperationKind {
    /// All-gather of the parameters over the data-parallel group (`params-all-gather`).
    ParameterGather,
    /// Forward pass of one micro-batch through one model chunk (`forward-compute`).
    Forward,
    /// Backward pass of one micro-batch through one model chunk (`backward-compute`).
    Backward,
    /// Send of activations to the next stage (`forward-send`).
    ForwardSend,
    /// Receive of activations from the previous stage (`forward-recv`).
    ForwardReceive,
    /// Send of gradients to the previous stage (`backward-send`).
    BackwardSend,
    /// Receive of gradients from the next stage (`backward-recv`).
    BackwardReceive,
    /// Garbage collection of the language runtime (`gc`).
    GarbageCollection,
    /// All-reduce of the layer norms' gradients over the tensor-parallel group (`layernorm-grads-all-reduce`).
    LayerNormSync,
    /// All-reduce of the embedding's gradients between the first and the last stage (`embedding-grads-all-reduce`).
    EmbeddingSync,
    /// Reduce-scatter of the gradients over the data-parallel group (`grads-reduce-scatter`).
    GradientSync,
    /// All-reduce over the data-parallel group of gradients that are not sharded (`separate-grads-all-reduce`).
    SeparateGradientSync,
    /// Norm of the gradients over all workers, and clipping (`optimizer-clip-main-grad`).
    ClipGradient,
    /// The optimizer's update (`optimizer`).
    Optimizer,
}

/// Names of the kinds in operation traces.
const NAMES: [(OperationKind, &str); 14] = [
    (OperationKind::ParameterGather, "params-all-gather"),
    (OperationKind::Forward, "forward-compute"),
    (OperationKind::Backward, "backward-compute"),
    (OperationKind::ForwardSend, "forward-send"),
    (OperationKind::ForwardReceive, "forward-recv"),
    (OperationKind::BackwardSend, "backward-send"),
    (OperationKind::BackwardReceive, "backward-recv"),
    (OperationKind::GarbageCollection, "gc"),
    (OperationKind::LayerNormSync, "layernorm-grads-all-reduce"),
    (OperationKind::EmbeddingSync, "embedding-grads-all-reduce"),
    (OperationKind::GradientSync, "grads-reduce-scatter"),
    (OperationKind::SeparateGradientSync, "separate-grads-all-reduce"),
    (OperationKind::ClipGradient, "optimizer-clip-main-grad"),
    (OperationKind::Optimizer, "optimizer"),
];

impl OperationKind {
    /// All kinds, in their order.
    pub fn all() -> impl Iterator<Item = OperationKind> {
        NAMES.iter().map(|(kind, _)| *kind)
    }

    /// Returns the kind's name in operation traces, such as `forward-compute`.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    /// Returns the kind with this name in operation traces.
    #[must_use]
    pub fn from_name(name: &str) -> Option<OperationKind> {
        NAMES.iter().find(|(_, known)| *known == name).map(|(kind, _)| *kind)
    }

    /// Returns true for computation: its expected time is the mean. The expected time of communication is the median.
    #[must_use]
    pub const fn is_compute(self) -> bool {
        matches!(
            self,
            OperationKind::Forward
                | OperationKind::Backward
                | OperationKind::GarbageCollection
                | OperationKind::Optimizer
        )
    }

    /// Returns true for sends and receives between pipeline stages.
    #[must_use]
    pub const fn is_point_to_point(self) -> bool {
        matches!(
            self,
            OperationKind::ForwardSend
                | OperationKind::ForwardReceive
                | OperationKind::BackwardSend
                | OperationKind::BackwardReceive
        )
    }
}

/// One operation of one worker in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Operation {
    /// Worker that ran the operation.
    pub worker: Worker,
    /// Number of the step.
    pub step: u64,
    /// Kind of the operation.
    pub kind: OperationKind,
    /// Start in seconds. Starts are compared within a step only.
    pub start: f64,
    /// Length in seconds.
    pub duration: f64,
    /// Number of the operation among those of its kind in the worker's step, by start.
    pub sequence: u32,
    /// Model chunk on the stage (virtual stage); `None`: the operation belongs to no chunk.
    pub chunk: Option<u32>,
    /// Model chunk in the whole model: `chunk * stages + stage`.
    pub global_chunk: Option<u32>,
    /// Number of the micro-batch.
    pub micro_batch: Option<u32>,
}

impl Operation {
    /// Returns the end in seconds.
    #[must_use]
    pub fn end(&self) -> f64 {
        self.start + self.duration
    }
}
