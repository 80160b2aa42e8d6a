//! The dependency model of a job: operations, what each waits for, and how long each takes without its waiting.

use super::operation::{Operation, OperationKind, Worker};
use super::replay::{Graph, GraphBuilder};
use super::{hybrid, statistics};
use std::collections::BTreeMap;

/// Largest error of the workers' clocks, in seconds. A transfer that ends earlier than its last member starts, by more
/// than this, is counted and takes no time.
pub(super) const CLOCK_ERROR: f64 = 0.010;

/// Largest ratio of the spread of the ends of collectives between two workers to the spread of their starts.
const APART_MAX: f64 = 0.8;

/// Smallest number of collectives of two workers from which the spreads are computed.
const MEETINGS_MIN: usize = 8;

/// Largest start and length of an operation that is accepted, in seconds.
const TIME_MAX: f64 = 1e10;

/// No number, for fields of [`Op`].
pub(super) const NONE: u32 = u32::MAX;

/// Reasons for which no model can be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// There is no operation.
    #[error("the trace has no operation that the model knows: record forward and backward passes or kernels")]
    Empty,
    /// There are more operations than the model can number.
    #[error("the trace has {operations} operations, and the model at most {max}: analyse fewer steps")]
    TooMany {
        /// Number of operations in the trace.
        operations: usize,
        /// Maximum number of operations.
        max: usize,
    },
    /// An operation has a start or a length that is not a number or is beyond 300 years, or a negative length.
    #[error(
        "{kind} {sequence} of {worker} in step {step} has no valid time: its start is {start} s, its length {duration} s"
    )]
    Time {
        /// Kind of the operation.
        kind: &'static str,
        /// Number of the operation among those of its kind.
        sequence: u32,
        /// The worker in words.
        worker: String,
        /// Number of the step.
        step: u64,
        /// Start as read.
        start: String,
        /// Length as read.
        duration: String,
    },
    /// The operations wait for each other in a circle, so the order of some of them was read wrongly.
    #[error(
        "operations of {worker} in step {step} wait for each other in a circle, first {class}: check the clocks and the sequence numbers of the trace"
    )]
    Circle {
        /// The worker in words.
        worker: String,
        /// Number of the step.
        step: u64,
        /// Class of the first operation in the circle.
        class: String,
    },
}

/// Counts of what the model could not take as recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelCounts {
    /// Sends and receives without the other side: the transfer starts when they start.
    pub unpaired: u64,
    /// Sends and receives without the pass that they belong to.
    pub unmatched: u64,
    /// Transfers that ended more than 10 ms earlier than their last member started, by the clocks: they take no time.
    pub clamped: u64,
}

/// Operations with one expected time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Class {
    /// Name for reports.
    pub(super) name: String,
    /// True for computation.
    pub(super) is_compute: bool,
    /// True for sends and receives.
    pub(super) is_point_to_point: bool,
    /// What the host waits for, if the operations are such waits.
    pub(super) waits: Option<Waits>,
}

impl Class {
    /// Returns true for communication.
    pub(super) const fn is_communication(&self) -> bool {
        !self.is_compute && self.waits.is_none()
    }
}

/// Waits of the host, in which it does not launch work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Waits {
    /// For input data.
    Input,
    /// For the storage of a checkpoint.
    Storage,
}

impl Waits {
    /// Returns what is waited for.
    pub(super) const fn object(self) -> &'static str {
        match self {
            Waits::Input => "input data",
            Waits::Storage => "the storage of checkpoints",
        }
    }
}

/// One operation, in numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Op {
    /// Index in [`Model::steps`].
    pub(super) step: u32,
    /// Index in [`Model::workers`].
    pub(super) worker: u32,
    /// Index in [`Model::classes`].
    pub(super) class: u32,
    /// Model chunk, or [`NONE`].
    pub(super) chunk: u32,
    /// Micro-batch, or [`NONE`].
    pub(super) micro_batch: u32,
    /// Start in seconds.
    pub(super) start: f64,
    /// Length in seconds.
    pub(super) duration: f64,
}

/// Dependency model of a job, ready to be replayed.
#[derive(Clone, Debug)]
pub struct Model {
    pub(super) workers: Vec<Worker>,
    pub(super) steps: Vec<u64>,
    pub(super) classes: Vec<Class>,
    pub(super) ops: Vec<Op>,
    /// Time of each operation without its waiting: the length, or in a group the time from the start of the last
    /// member to the own end. In seconds.
    pub(super) work: Vec<f64>,
    pub(super) graph: Graph,
    pub(super) counts: ModelCounts,
}

impl Model {
    /// Maximum number of operations.
    pub const OPERATIONS_MAX: usize = 1 << 31;

    /// Builds the model of hybrid-parallel training from operations in any order.
    ///
    /// The dependencies are those of *Understanding Stragglers in Large Model Training Using What-if Analysis* (OSDI
    /// 2025): passes of one worker follow each other; a send waits for its pass, a pass for its receive; sends and
    /// receives of one kind follow each other on their stream; a send and its receive transfer together, and so do the
    /// members of a collective; the first forward pass of a model chunk waits for its parameters; gradients are reduced
    /// after the last backward pass of their chunk.
    ///
    /// # Errors
    /// Returns an error if there is no operation, if a time is not valid, or if operations wait for each other in a
    /// circle.
    pub fn new(mut operations: Vec<Operation>) -> Result<Model, ModelError> {
        check(&operations)?;
        operations.sort_unstable_by(|a, b| {
            (a.step, a.worker)
                .cmp(&(b.step, b.worker))
                .then(a.start.total_cmp(&b.start))
                .then((a.sequence, a.kind).cmp(&(b.sequence, b.kind)))
        });
        let workers = distinct(operations.iter().map(|operation| operation.worker));
        let steps = distinct(operations.iter().map(|operation| operation.step));
        let classes = OperationKind::all().map(|kind| Class {
            name: kind.name().to_owned(),
            is_compute: kind.is_compute(),
            is_point_to_point: kind.is_point_to_point(),
            waits: None,
        });
        let place = |index: Result<usize, usize>| u32::try_from(index.unwrap_or(0)).unwrap_or(0);
        let ops = operations.iter().map(|operation| Op {
            step: place(steps.binary_search(&operation.step)),
            worker: place(workers.binary_search(&operation.worker)),
            class: operation.kind as u32,
            chunk: operation.chunk.unwrap_or(NONE),
            micro_batch: operation.micro_batch.unwrap_or(NONE),
            start: operation.start,
            duration: operation.duration,
        });
        let ops = ops.collect();
        let mut counts = ModelCounts::default();
        let graph = hybrid::dependencies(&operations, &mut counts);
        drop(operations);
        Model::from_parts(workers, steps, classes.collect(), ops, graph, counts)
    }

    /// Builds a model from numbered operations and their dependencies.
    pub(super) fn from_parts(
        workers: Vec<Worker>,
        steps: Vec<u64>,
        classes: Vec<Class>,
        ops: Vec<Op>,
        graph: GraphBuilder,
        mut counts: ModelCounts,
    ) -> Result<Model, ModelError> {
        let step_of: Vec<u32> = ops.iter().map(|op| op.step).collect();
        let graph = graph.build(&step_of).map_err(|op| {
            let op = ops[op as usize];
            ModelError::Circle {
                worker: workers[op.worker as usize].to_words(),
                step: steps[op.step as usize],
                class: classes[op.class as usize].name.clone(),
            }
        })?;
        let mut work: Vec<f64> = ops.iter().map(|op| op.duration).collect();
        for members in graph.groups() {
            let begun = members.iter().map(|op| ops[*op as usize].start).fold(f64::MIN, f64::max);
            for member in members {
                let op = ops[*member as usize];
                let transfer = op.start + op.duration - begun;
                counts.clamped += u64::from(transfer <= -CLOCK_ERROR);
                work[*member as usize] = if transfer <= -CLOCK_ERROR { 0.0 } else { transfer };
            }
        }
        Ok(Model { workers, steps, classes, ops, work, graph, counts })
    }

    /// Returns the workers, sorted.
    #[must_use]
    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// Returns the numbers of the steps, sorted.
    #[must_use]
    pub fn steps(&self) -> &[u64] {
        &self.steps
    }

    /// Returns the number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Returns true if there is no operation.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Returns what the model could not take as recorded.
    #[must_use]
    pub const fn counts(&self) -> ModelCounts {
        self.counts
    }

    /// Returns the measured time of each step in seconds: from its first start to its last end on any worker.
    #[must_use]
    pub fn measured(&self) -> Vec<f64> {
        let mut spans = vec![(f64::MAX, f64::MIN); self.steps.len()];
        for op in &self.ops {
            let (first, last) = &mut spans[op.step as usize];
            *first = first.min(op.start);
            *last = last.max(op.start + op.duration);
        }
        spans.iter().map(|(first, last)| last - first).collect()
    }

    /// Returns the modelled time of each step in seconds, with the measured times of the operations.
    #[must_use]
    pub fn modelled(&self) -> Vec<f64> {
        self.graph.replay(&self.work)
    }

    /// Returns true if waits for other workers are part of the computation, because only the launches of collectives were
    /// recorded: the members then end as far apart as they begin. A worker that waits would seem to compute.
    ///
    /// The members of a recorded collective end together, apart from the offset of their clocks, which is constant.
    pub(super) fn hides_waits(&self) -> bool {
        let mut pairs: BTreeMap<(u32, u32), (Vec<f64>, Vec<f64>)> = BTreeMap::new();
        for members in self.graph.groups() {
            let (Some(first), Some(last)) = (members.first(), members.last()) else { continue };
            let (one, other) = (&self.ops[*first as usize], &self.ops[*last as usize]);
            if one.worker == other.worker || self.classes[one.class as usize].is_point_to_point {
                continue;
            }
            let (starts, ends) = pairs.entry((one.worker, other.worker)).or_default();
            starts.push(one.start - other.start);
            ends.push(one.start + one.duration - other.start - other.duration);
        }
        let (mut begun, mut ended) = (0.0, 0.0);
        for (starts, ends) in pairs.values().filter(|pair| pair.0.len() >= MEETINGS_MIN) {
            begun += statistics::spread(starts);
            ended += statistics::spread(ends);
        }
        ended > begun * APART_MAX
    }

    /// Returns the mean time of a step in seconds, if the operations take these times.
    pub(super) fn mean_step(&self, work: &[f64]) -> f64 {
        statistics::mean(&self.graph.replay(work))
    }

    /// Returns the operation's stage.
    pub(super) fn stage(&self, op: &Op) -> u32 {
        self.workers[op.worker as usize].stage
    }

    /// Returns the expected time of each operation: over all workers and steps, the mean of its class for computation,
    /// and the median for communication.
    pub(super) fn expected(&self) -> Vec<f64> {
        let mut values: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for (op, work) in self.ops.iter().zip(&self.work) {
            values.entry(op.class).or_default().push(*work);
        }
        let expected: BTreeMap<u32, f64> = values
            .into_iter()
            .map(|(class, mut values)| {
                let is_compute = self.classes[class as usize].is_compute;
                let expected =
                    if is_compute { statistics::mean(&values) } else { statistics::median(&mut values).unwrap_or(0.0) };
                (class, expected)
            })
            .collect();
        self.ops.iter().map(|op| expected.get(&op.class).copied().unwrap_or(0.0)).collect()
    }
}

fn check(operations: &[Operation]) -> Result<(), ModelError> {
    if operations.is_empty() {
        return Err(ModelError::Empty);
    }
    if operations.len() > Model::OPERATIONS_MAX {
        return Err(ModelError::TooMany { operations: operations.len(), max: Model::OPERATIONS_MAX });
    }
    let is_valid =
        |operation: &Operation| operation.start.abs() <= TIME_MAX && (0.0..=TIME_MAX).contains(&operation.duration);
    match operations.iter().find(|operation| !is_valid(operation)) {
        None => Ok(()),
        Some(operation) => Err(ModelError::Time {
            kind: operation.kind.name(),
            sequence: operation.sequence,
            worker: operation.worker.to_words(),
            step: operation.step,
            start: operation.start.to_string(),
            duration: operation.duration.to_string(),
        }),
    }
}

fn distinct<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.collect::<std::collections::BTreeSet<T>>().into_iter().collect()
}
