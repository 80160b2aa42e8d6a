//! The records of a simulated job, as an operation trace has them.

use crate::job::Job;
use taskd_analysis::what_if::{Operation, OperationKind, Worker};

/// Recorded operations of one step.
pub(crate) struct Records<'a> {
    job: &'a Job,
    step: u64,
    operations: Vec<Operation>,
}

impl<'a> Records<'a> {
    pub(crate) fn new(job: &'a Job, step: u64) -> Records<'a> {
        Records { job, step, operations: Vec::new() }
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn add(
        &mut self,
        data: usize,
        stage: usize,
        kind: OperationKind,
        chunk: Option<usize>,
        micro_batch: Option<usize>,
        start: f64,
        end: f64,
    ) {
        let number = |value: usize| u32::try_from(value).unwrap();
        // Recorded times are 32-bit floats.
        let start = start as f32;
        let rank = number((data + stage * self.job.data) * 4);
        self.operations.push(Operation {
            worker: Worker { data: number(data), stage: number(stage), tensor: 0, rank },
            step: self.step,
            kind,
            start: f64::from(start),
            duration: f64::from((end - f64::from(start)).max(0.0) as f32),
            sequence: 0,
            chunk: chunk.map(number),
            global_chunk: chunk.map(|chunk| number(chunk * self.job.stages + stage)),
            micro_batch: micro_batch.map(number),
        });
    }

    /// Records a collective of a stage's replicas that takes `time`, and returns its end.
    pub(crate) fn collective(
        &mut self,
        kind: OperationKind,
        stage: usize,
        chunk: Option<usize>,
        starts: &[f64],
        time: f64,
    ) -> f64 {
        let end = starts.iter().copied().fold(0.0, f64::max) + time;
        for (data, start) in starts.iter().enumerate() {
            self.add(data, stage, kind, chunk, None, *start, end);
        }
        end
    }

    /// Records a send or receive. `order` is its place among those of its kind: they run on one stream.
    pub(crate) fn transfer(
        &mut self,
        data: usize,
        stage: usize,
        kind: OperationKind,
        order: u32,
        start: f64,
        end: f64,
    ) {
        self.add(data, stage, kind, None, None, start, end);
        self.operations.iter_mut().rev().take(1).for_each(|operation| operation.sequence = order);
    }

    /// Numbers the operations of each worker and kind in their order.
    pub(crate) fn numbered(mut self) -> Vec<Operation> {
        let key = |operation: &Operation| (operation.worker, operation.kind);
        self.operations
            .sort_by(|a, b| key(a).cmp(&key(b)).then(a.sequence.cmp(&b.sequence)).then(a.start.total_cmp(&b.start)));
        for operations in self.operations.chunk_by_mut(|a, b| key(a) == key(b)) {
            let mut start: f64 = 0.0;
            for (number, operation) in (0..).zip(operations) {
                operation.sequence = number;
                // An empty transfer begins after the transfers before it on its stream.
                start = start.max(operation.start);
                operation.start = start;
            }
        }
        self.operations
    }
}
