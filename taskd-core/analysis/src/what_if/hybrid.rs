//! Dependencies of hybrid-parallel training: data, tensor and pipeline parallelism, with or without interleaved model
//! chunks.

use super::model::ModelCounts;
use super::operation::{Operation, OperationKind, Worker};
use super::replay::GraphBuilder;
use std::collections::BTreeMap;

/// Error of the clock within one worker, in seconds: a receive that starts later than this after the last pass, or a
/// send that ends earlier than this before the first one, belongs to no pass.
const OWN_CLOCK_ERROR: f64 = 5e-5;

/// Number of stages, and of model chunks per stage.
#[derive(Clone, Copy, Debug)]
struct Shape {
    stages: u32,
    chunks: u32,
}

/// What a send and its receive share: step, replica, slot, kind, stage of the sender, number.
type Pair = (u64, u32, u32, OperationKind, u32, u32);

/// What the members of a collective share: step, kind, replica, stage, slot, number. Dimensions over which the collective
/// goes are 0.
type Collective = (u64, OperationKind, u32, u32, u32, u32);

/// Members of transfers over several workers, by what they share.
#[derive(Default)]
struct Meetings {
    pairs: BTreeMap<Pair, Vec<u32>>,
    collectives: BTreeMap<Collective, Vec<u32>>,
}

/// Returns the dependencies of operations that are sorted by step, worker and start.
pub(super) fn dependencies(operations: &[Operation], counts: &mut ModelCounts) -> GraphBuilder {
    let shape = Shape {
        stages: operations.iter().map(|operation| operation.worker.stage).max().map_or(1, |last| last + 1),
        chunks: operations.iter().filter_map(|operation| operation.chunk).max().map_or(1, |last| last + 1),
    };
    let (mut graph, mut meetings) = (GraphBuilder::default(), Meetings::default());
    let mut first = 0;
    for operations in operations.chunk_by(|a, b| (a.step, a.worker) == (b.step, b.worker)) {
        let own = Own::new(operations, first);
        own.link(&mut graph);
        own.link_passes(shape, &mut graph, &mut meetings, counts);
        own.meet(&mut meetings);
        first += u32::try_from(operations.len()).unwrap_or(u32::MAX);
    }
    counts.unpaired += meetings.pairs.values().filter(|members| members.len() == 1).count() as u64;
    graph.groups.extend(meetings.pairs.into_values());
    graph.groups.extend(meetings.collectives.into_values());
    graph
}

/// Operations of one worker in one step.
struct Own<'a> {
    operations: &'a [Operation],
    first: u32,
    worker: Worker,
    /// End of the last pass.
    passed: f64,
}

impl<'a> Own<'a> {
    fn new(operations: &'a [Operation], first: u32) -> Own<'a> {
        let is_pass =
            |operation: &&Operation| matches!(operation.kind, OperationKind::Forward | OperationKind::Backward);
        let passed = operations.iter().filter(is_pass).map(Operation::end).fold(f64::MIN, f64::max);
        Own { operations, first, worker: operations[0].worker, passed }
    }

    fn at(&self, op: u32) -> &Operation {
        &self.operations[(op - self.first) as usize]
    }

    /// Returns the numbers of the operations that the predicate selects, in the order of their starts.
    fn select(&self, is_selected: impl Fn(&Operation) -> bool) -> Vec<u32> {
        (self.first..)
            .zip(self.operations)
            .filter(|(_, operation)| is_selected(operation))
            .map(|(number, _)| number)
            .collect()
    }

    fn of_kind(&self, kind: OperationKind) -> Vec<u32> {
        self.select(|operation| operation.kind == kind)
    }

    /// Returns true for an operation that runs after the passes: all that follow each other until the end of the step.
    fn is_tail(&self, operation: &Operation) -> bool {
        match operation.kind {
            OperationKind::GarbageCollection
            | OperationKind::LayerNormSync
            | OperationKind::EmbeddingSync
            | OperationKind::SeparateGradientSync
            | OperationKind::ClipGradient
            | OperationKind::Optimizer => true,
            OperationKind::GradientSync => operation.start >= self.passed - OWN_CLOCK_ERROR,
            _ => false,
        }
    }

    /// Adds the dependencies between passes, parameters, gradients and the end of the step.
    fn link(&self, graph: &mut GraphBuilder) {
        let passes =
            self.select(|operation| matches!(operation.kind, OperationKind::Forward | OperationKind::Backward));
        graph.chain(&passes);
        let data = self
            .select(|operation| matches!(operation.kind, OperationKind::ParameterGather | OperationKind::GradientSync));
        graph.chain(&data);
        let tail = self.select(|operation| self.is_tail(operation));
        graph.chain(&tail);
        let last = passes.iter().max_by(|a, b| self.at(**a).end().total_cmp(&self.at(**b).end()));
        graph.edges.extend(last.copied().zip(tail.first().copied()));
        self.link_parameters(&data, &passes, graph);
        self.link_gradients(&data, &passes, &tail, graph);
        self.link_first_backward(&passes, graph);
    }

    /// The first forward pass of a chunk waits for the last gathering of the chunk's parameters.
    fn link_parameters(&self, data: &[u32], passes: &[u32], graph: &mut GraphBuilder) {
        let mut chunks = Vec::new();
        for gather in data.iter().rev().filter(|op| self.at(**op).kind == OperationKind::ParameterGather) {
            let chunk = self.at(*gather).chunk;
            if chunks.contains(&chunk) {
                continue;
            }
            chunks.push(chunk);
            let is_first = |op: &&u32| self.at(**op).kind == OperationKind::Forward && self.at(**op).chunk == chunk;
            graph.edges.extend(passes.iter().find(is_first).map(|pass| (*gather, *pass)));
        }
    }

    /// The first reduction of a chunk's gradients that overlaps the passes waits for the chunk's last backward pass; the
    /// end of the step waits for the last of them.
    fn link_gradients(&self, data: &[u32], passes: &[u32], tail: &[u32], graph: &mut GraphBuilder) {
        let is_early = |op: &&u32| {
            let operation = self.at(**op);
            operation.kind == OperationKind::GradientSync && !self.is_tail(operation)
        };
        let mut chunks = Vec::new();
        for sync in data.iter().filter(is_early) {
            let chunk = self.at(*sync).chunk;
            if chunks.contains(&chunk) {
                continue;
            }
            chunks.push(chunk);
            let of_chunk = |op: &&u32| self.at(**op).kind == OperationKind::Backward && self.at(**op).chunk == chunk;
            let last = passes.iter().filter(of_chunk).max_by(|a, b| self.at(**a).end().total_cmp(&self.at(**b).end()));
            graph.edges.extend(last.map(|pass| (*pass, *sync)));
        }
        let last = data.iter().rfind(is_early);
        graph.edges.extend(last.copied().zip(tail.first().copied()));
    }

    /// The first backward send and receive are issued after the second pass before the first backward pass.
    fn link_first_backward(&self, passes: &[u32], graph: &mut GraphBuilder) {
        let Some(backward) = passes.iter().position(|op| self.at(*op).kind == OperationKind::Backward) else { return };
        if backward < 2 {
            return;
        }
        for kind in [OperationKind::BackwardSend, OperationKind::BackwardReceive] {
            graph.edges.extend(self.of_kind(kind).first().map(|op| (passes[backward - 2], *op)));
        }
    }

    /// Adds the dependencies between passes and the sends and receives of one kind, and pairs these with the other side.
    fn link_passes(&self, shape: Shape, graph: &mut GraphBuilder, meetings: &mut Meetings, counts: &mut ModelCounts) {
        for (kind, pass) in [
            (OperationKind::ForwardSend, OperationKind::Forward),
            (OperationKind::ForwardReceive, OperationKind::Forward),
            (OperationKind::BackwardSend, OperationKind::Backward),
            (OperationKind::BackwardReceive, OperationKind::Backward),
        ] {
            let (transfers, passes) = (self.of_kind(kind), self.of_kind(pass));
            graph.chain(&transfers);
            self.link_kind(kind, &transfers, &passes, shape, graph, meetings, counts);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "one loop over the transfers of a kind, with what it adds to")]
    fn link_kind(
        &self,
        kind: OperationKind,
        transfers: &[u32],
        passes: &[u32],
        shape: Shape,
        graph: &mut GraphBuilder,
        meetings: &mut Meetings,
        counts: &mut ModelCounts,
    ) {
        let is_send = matches!(kind, OperationKind::ForwardSend | OperationKind::BackwardSend);
        let starts = passes.last().map_or(f64::MIN, |op| self.at(*op).start);
        let ends = passes.iter().map(|op| self.at(*op).end()).fold(f64::MAX, f64::min);
        let belongs = |op: &&u32| {
            if is_send {
                self.at(**op).end() >= ends - OWN_CLOCK_ERROR
            } else {
                self.at(**op).start <= starts + OWN_CLOCK_ERROR
            }
        };
        let matched = transfers.iter().filter(belongs).count();
        let needs = |op: &u32| sender(kind, self.at(*op), shape).is_some();
        let needed: Vec<usize> = (0..passes.len()).filter(|index| needs(&passes[*index])).collect();
        // Some traces have a transfer for each pass, though nothing is transferred at the ends of the model, or the very
        // first receive is missing; others have only the real ones.
        let targets = if matched == needed.len() {
            needed
        } else {
            (usize::from(!is_send && matched + 1 == passes.len())..passes.len()).collect()
        };
        counts.unmatched += matched.saturating_sub(targets.len()) as u64;
        let mut number = 0;
        for (transfer, index) in transfers.iter().filter(belongs).zip(targets) {
            let pass = &passes[index];
            if is_send {
                graph.edges.push((*pass, *transfer));
            } else {
                graph.edges.push((*transfer, *pass));
                graph.edges.extend(index.checked_sub(1).map(|before| (passes[before], *transfer)));
            }
            if let Some(sender) = sender(kind, self.at(*pass), shape) {
                let key =
                    (self.at(*transfer).step, self.worker.data, self.worker.tensor, direction(kind), sender, number);
                meetings.pairs.entry(key).or_default().push(*transfer);
                number += 1;
            }
        }
    }

    /// Adds the operations to the collectives of which they are a part.
    fn meet(&self, meetings: &mut Meetings) {
        let Worker { data, stage, tensor, .. } = self.worker;
        let mut numbers: BTreeMap<OperationKind, u32> = BTreeMap::new();
        for (op, operation) in (self.first..).zip(self.operations) {
            let (data, stage, tensor) = match operation.kind {
                OperationKind::ParameterGather | OperationKind::GradientSync | OperationKind::SeparateGradientSync => {
                    (0, stage, tensor)
                }
                OperationKind::EmbeddingSync => (data, 0, tensor),
                OperationKind::ClipGradient => (0, 0, 0),
                _ => continue,
            };
            let number = numbers.entry(operation.kind).or_default();
            let key = (operation.step, operation.kind, data, stage, tensor, *number);
            meetings.collectives.entry(key).or_default().push(op);
            *number += 1;
        }
    }
}

/// Both sides of a transfer have the kind of its send.
const fn direction(kind: OperationKind) -> OperationKind {
    match kind {
        OperationKind::ForwardReceive => OperationKind::ForwardSend,
        OperationKind::BackwardReceive => OperationKind::BackwardSend,
        other => other,
    }
}

/// Returns the stage of the sender; `None`: the pass is at an end of the model, so nothing is transferred.
fn sender(kind: OperationKind, pass: &Operation, shape: Shape) -> Option<u32> {
    let stage = pass.worker.stage;
    let chunk = pass.global_chunk.unwrap_or_else(|| pass.chunk.unwrap_or(0) * shape.stages + stage);
    let next = (chunk + 1 < shape.stages * shape.chunks).then(|| (stage + 1) % shape.stages);
    let previous = (chunk > 0).then(|| (stage + shape.stages - 1) % shape.stages);
    match kind {
        OperationKind::ForwardSend => next.map(|_| stage),
        OperationKind::BackwardSend => previous.map(|_| stage),
        OperationKind::ForwardReceive => previous,
        OperationKind::BackwardReceive => next,
        _ => None,
    }
}
