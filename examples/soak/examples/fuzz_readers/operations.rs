//! Operation traces in Parquet files, and the dependency model of operations of which some fields are damaged.

use super::random::Random;
use super::{Outcome, Target, mutate};
use arrow_array::{ArrayRef, Float32Array, Int16Array, Int32Array, Int64Array, RecordBatch, StringArray};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use std::sync::Arc;
use taskd_core::analysis::what_if::{Model, Operation, OperationKind, Worker, attribute, read_parquet};
use taskd_examples::program::Failure;

const STEPS: u64 = 4;

struct Operations {
    operations: Vec<Operation>,
    files: Vec<Vec<u8>>,
}

/// Two replicas of a pipeline of two stages, each with one micro-batch.
fn operations() -> Vec<Operation> {
    let mut all = Vec::new();
    for (step, data, stage) in (0..STEPS).flat_map(|step| (0..4_u32).map(move |rank| (step, rank / 2, rank % 2))) {
        let kinds = [
            OperationKind::ParameterGather,
            if stage == 0 { OperationKind::Forward } else { OperationKind::ForwardReceive },
            if stage == 0 { OperationKind::ForwardSend } else { OperationKind::Forward },
            if stage == 0 { OperationKind::BackwardReceive } else { OperationKind::Backward },
            if stage == 0 { OperationKind::Backward } else { OperationKind::BackwardSend },
            OperationKind::GradientSync,
            OperationKind::Optimizer,
        ];
        for (number, kind) in (0_u32..).zip(kinds) {
            all.push(Operation {
                worker: Worker { data, stage, tensor: 0, rank: data * 2 + stage },
                step,
                kind,
                start: f64::from(number) * 0.1,
                duration: 0.09,
                sequence: 0,
                chunk: Some(0),
                global_chunk: Some(stage),
                micro_batch: Some(0),
            });
        }
    }
    all
}

fn file(operations: &[Operation]) -> Result<Vec<u8>, Failure> {
    let short = |value: &dyn Fn(&Operation) -> Option<u32>| -> ArrayRef {
        let number = |operation: &Operation| value(operation).and_then(|value| i16::try_from(value).ok()).unwrap_or(-1);
        Arc::new(Int16Array::from_iter_values(operations.iter().map(number)))
    };
    #[allow(clippy::cast_possible_truncation, reason = "the format has floats of 32 bits")]
    let seconds = |value: &dyn Fn(&Operation) -> f64| -> ArrayRef {
        Arc::new(Float32Array::from_iter_values(operations.iter().map(|operation| value(operation) as f32)))
    };
    let steps = operations.iter().map(|operation| operation.step.cast_signed());
    let sequences = operations.iter().map(|operation| operation.sequence.cast_signed());
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("dp_rank", short(&|operation| Some(operation.worker.data))),
        ("stage", short(&|operation| Some(operation.worker.stage))),
        ("rank", short(&|operation| Some(operation.worker.rank))),
        ("step", Arc::new(Int64Array::from_iter_values(steps))),
        ("optype", Arc::new(StringArray::from_iter_values(operations.iter().map(|operation| operation.kind.name())))),
        ("start_ts", seconds(&|operation| operation.start)),
        ("duration", seconds(&|operation| operation.duration)),
        ("seq_id", Arc::new(Int32Array::from_iter_values(sequences))),
        ("mc", short(&|operation| operation.chunk)),
        ("mb_id", short(&|operation| operation.micro_batch)),
        ("gmc", short(&|operation| operation.global_chunk)),
    ];
    let batch = RecordBatch::try_from_iter(columns)?;
    let mut file = ArrowWriter::try_new(Vec::new(), batch.schema(), None)?;
    file.write(&batch)?;
    Ok(file.into_inner()?)
}

pub(crate) fn target() -> Result<Box<dyn Target>, Failure> {
    let operations = operations();
    let files = vec![file(&operations)?, file(operations.get(..7).unwrap_or_default())?];
    Ok(Box::new(Operations { operations, files }))
}

fn damage(random: &mut Random, operations: &mut Vec<Operation>) {
    let other = *random.pick(operations);
    let at = random.below(operations.len());
    let small = |random: &mut Random| u32::try_from(random.below(5)).unwrap_or_default();
    let damage = random.below(12);
    if damage == 11 && operations.len() > 1 {
        operations.remove(at);
        return;
    }
    let Some(operation) = operations.get_mut(at) else { return };
    match damage {
        0 => operation.start = f64::from_bits(random.next()),
        1 => operation.duration = f64::from_bits(random.next()),
        2 => operation.start = -operation.start,
        3 => operation.kind = other.kind,
        4 => operation.worker = Worker { stage: small(random), ..other.worker },
        5 => operation.worker.rank = u32::try_from(random.extreme() >> 32).unwrap_or_default(),
        6 => operation.step = random.extreme(),
        7 => operation.chunk = Some(small(random)),
        8 => operation.global_chunk = if random.is_one_in(2) { None } else { Some(small(random)) },
        9 => operation.sequence = u32::try_from(random.extreme() >> 32).unwrap_or_default(),
        10 => operations.push(other),
        _ => operation.micro_batch = None,
    }
}

impl Target for Operations {
    fn case(&mut self, random: &mut Random) -> Outcome {
        let operations = if random.is_one_in(2) {
            let file = random.pick(&self.files).clone();
            let bytes = mutate::bytes(random, &file, &self.files);
            match read_parquet(Bytes::from(bytes)) {
                Ok(trace) => trace.operations,
                Err(error) => return Outcome::Refused(error.to_string()),
            }
        } else {
            let mut operations = self.operations.clone();
            for _ in 0..=random.below(6) {
                damage(random, &mut operations);
            }
            operations
        };
        match Model::new(operations) {
            Err(error) => Outcome::Refused(error.to_string()),
            Ok(model) => {
                drop(attribute(&model));
                Outcome::Whole
            }
        }
    }

    fn is_clear(&self, message: &str) -> bool {
        ["trace", "column", "row", "rank", "Parquet"].iter().any(|place| message.contains(place))
    }
}
