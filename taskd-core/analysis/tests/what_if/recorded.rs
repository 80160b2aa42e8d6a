//! Files of operations: written and read again, incomplete, damaged, and a recorded one.

use crate::job::{Job, Plant};
use arrow_array::{ArrayRef, Float32Array, Int16Array, Int32Array, Int64Array, RecordBatch, StringArray};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;
use taskd_analysis::what_if::{Model, Operation, ParquetTraceError, attribute, read_parquet};

fn job() -> Job {
    Job {
        seed: 3,
        data: 3,
        stages: 2,
        chunks: 2,
        micro_batches: 4,
        steps: 6,
        last_stage: 1.1,
        lengths: 0.05,
        is_overlapped: true,
        has_empty_transfers: true,
        plants: vec![Plant { data: 2, stage: Some(1), onset: 2, end: 6, factor: 1.5 }],
    }
}

type Columns = Vec<(&'static str, ArrayRef)>;

fn columns(operations: &[Operation]) -> Columns {
    let short = |value: &dyn Fn(&Operation) -> Option<u32>| -> ArrayRef {
        let values =
            operations.iter().map(|operation| value(operation).map_or(-1, |value| i16::try_from(value).unwrap()));
        Arc::new(Int16Array::from_iter_values(values))
    };
    let seconds = |value: &dyn Fn(&Operation) -> f64| -> ArrayRef {
        Arc::new(Float32Array::from_iter_values(operations.iter().map(|operation| value(operation) as f32)))
    };
    vec![
        ("dp_rank", short(&|operation| Some(operation.worker.data))),
        ("stage", short(&|operation| Some(operation.worker.stage))),
        ("rank", short(&|operation| Some(operation.worker.rank))),
        ("step", Arc::new(Int64Array::from_iter_values(operations.iter().map(|operation| operation.step as i64)))),
        ("optype", Arc::new(StringArray::from_iter_values(operations.iter().map(|operation| operation.kind.name())))),
        ("start_ts", seconds(&|operation| operation.start)),
        ("duration", seconds(&|operation| operation.duration)),
        (
            "seq_id",
            Arc::new(Int32Array::from_iter_values(operations.iter().map(|operation| operation.sequence as i32))),
        ),
        ("mc", short(&|operation| operation.chunk)),
        ("mb_id", short(&|operation| operation.micro_batch)),
        ("gmc", short(&|operation| operation.global_chunk)),
    ]
}

fn file(columns: Columns) -> Bytes {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties =
        WriterProperties::builder().set_compression(Compression::SNAPPY).set_max_row_group_row_count(Some(500)).build();
    let mut file = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    file.write(&batch).unwrap();
    Bytes::from(file.into_inner().unwrap())
}

fn replaced(name: &str, column: ArrayRef) -> Columns {
    let mut columns = columns(&job().run().operations);
    columns.iter_mut().find(|(known, _)| *known == name).unwrap().1 = column;
    columns
}

#[test]
fn written_operations_are_read_back() {
    let operations = job().run().operations;
    assert!(operations.len() > 1000, "more than two row groups: {}", operations.len());
    let trace = read_parquet(file(columns(&operations))).unwrap();
    assert_eq!((trace.unknown_rows, trace.operations == operations), (0, true));
}

#[test]
fn file_without_a_column_is_refused_with_its_name() {
    for name in ["dp_rank", "optype", "start_ts", "gmc"] {
        let mut columns = columns(&job().run().operations);
        columns.retain(|(known, _)| *known != name);
        let error = read_parquet(file(columns)).unwrap_err();
        assert!(error.to_string().starts_with(&format!("the trace has no column {name}:")), "{error}");
    }
}

#[test]
fn column_of_another_type_is_refused_with_both_types() {
    let count = job().run().operations.len();
    let text: ArrayRef = Arc::new(StringArray::from_iter_values((0..count).map(|row| row.to_string())));
    let error = read_parquet(file(replaced("duration", text))).unwrap_err();
    assert_eq!(error.to_string(), "column duration has values of type Utf8, not float");
}

#[test]
fn rank_below_zero_is_refused_with_its_row() {
    let count = job().run().operations.len() as i16;
    let column: ArrayRef =
        Arc::new(Int16Array::from_iter_values((0..count).map(|row| if row == 700 { -7 } else { 0 })));
    let error = read_parquet(file(replaced("rank", column))).unwrap_err();
    assert!(matches!(error, ParquetTraceError::Value { column: "rank", row: 700, .. }), "{error}");
}

#[test]
fn unknown_operation_types_are_counted_and_left_out() {
    let operations = job().run().operations;
    let name = |operation: &Operation| if operation.sequence == 1 { "moe-all-to-all" } else { operation.kind.name() };
    let column: ArrayRef = Arc::new(StringArray::from_iter_values(operations.iter().map(name)));
    let trace = read_parquet(file(replaced("optype", column))).unwrap();
    let expected = operations.iter().filter(|operation| operation.sequence == 1).count() as u64;
    assert_eq!((trace.unknown_rows, trace.unknown.get("moe-all-to-all")), (expected, Some(&expected)));
    assert_eq!(trace.operations.len() as u64 + expected, operations.len() as u64);
}

#[test]
fn page_that_claims_more_than_it_contains_is_refused_before_it_is_decoded() {
    let whole = file(columns(&job().run().operations));
    assert_eq!(whole[4..7], [0x15, 0x04, 0x15], "the first page is a dictionary");
    let varint = |mut value: u64| {
        let mut bytes = vec![0x15];
        value *= 2; // of signed numbers
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    };
    for (content, values, claim) in [
        (8, 1 << 30, "1073741824 values in a dictionary, at most 8 are possible"),
        ((1 << 31) - 1, 2, "2147483647 bytes, at most 67108864 are possible"),
    ] {
        let head = [vec![0x15, 0x04], varint(content), varint(10), vec![0x4c], varint(values), vec![0x15, 0, 0, 0]];
        let mut damaged = whole.to_vec();
        let head = head.concat();
        damaged[4..4 + head.len()].copy_from_slice(&head);
        let error = read_parquet(Bytes::from(damaged)).unwrap_err().to_string();
        assert_eq!(error, format!("the trace is damaged: a page of column dp_rank claims {claim}"));
    }
}

#[test]
fn page_with_a_list_that_the_file_does_not_contain_is_refused_before_it_is_decoded() {
    let mut damaged = file(columns(&job().run().operations)).to_vec();
    // The first field of the first header is a list of 2^31 - 1 doubles.
    damaged[4..11].copy_from_slice(&[0x19, 0xf7, 0xff, 0xff, 0xff, 0xff, 0x07]);
    let error = read_parquet(Bytes::from(damaged)).unwrap_err();
    assert!(matches!(error, ParquetTraceError::Damaged), "{error}");
}

#[test]
fn truncated_file_is_refused() {
    let file = file(columns(&job().run().operations));
    for length in (0..file.len()).step_by(997) {
        read_parquet(file.slice(..length)).unwrap_err();
    }
}

/// Returns the steps of the operations in halves, quarters, and all.
fn parts(operations: &[Operation]) -> Vec<Vec<Operation>> {
    let steps: Vec<u64> =
        operations.iter().map(|operation| operation.step).collect::<BTreeSet<u64>>().into_iter().collect();
    let part = |steps: &[u64]| {
        operations.iter().filter(|operation| steps.contains(&operation.step)).copied().collect::<Vec<Operation>>()
    };
    let quarter = steps.len().div_ceil(4).max(1);
    let half = steps.len().div_ceil(2).max(1);
    steps.chunks(quarter).chain(steps.chunks(half)).chain([&steps[..]]).map(part).collect()
}

/// The trace in the file that `TASKD_STRAGGLER_TRACE` names, in which one worker is slow: the whole trace, each half and
/// each quarter of its steps blame one worker, the same, and the worker has the largest S_w.
#[test]
fn recorded_trace_blames_one_worker_in_all_of_its_parts() {
    let Some(path) = std::env::var_os("TASKD_STRAGGLER_TRACE") else {
        println!("TASKD_STRAGGLER_TRACE names no file: the recorded trace was not read");
        return;
    };
    let trace = read_parquet(File::open(path).unwrap()).unwrap();
    let mut blamed = BTreeSet::new();
    for part in parts(&trace.operations) {
        let findings = attribute(&Model::new(part).unwrap());
        println!("{}", findings.verdict.sentence);
        let [blame] = &findings.verdict.blamed[..] else { panic!("{:?}", findings.verdict) };
        blame.evidence.iter().for_each(|item| println!("  - {}", item.text));
        assert_eq!(blame.ranks, [findings.published.by_worker[0].0.rank]);
        let error = findings.what_if.modelled_us.abs_diff(findings.what_if.measured_us);
        assert!(
            error * 50 < findings.what_if.measured_us,
            "the model is wrong by more than 2 %: {:?}",
            findings.what_if
        );
        blamed.insert(blame.component.clone());
    }
    assert_eq!(blamed.len(), 1, "{blamed:?}");
}

/// Figures that the authors publish with their trace `AR`: S, T_ideal, M_W, M_S.
const PUBLISHED: [f64; 4] = [1.973_045_096_726, 23.484_700_209_738, 1.001_701_277_729, -0.001_211_964_046];

/// Number of operations of the trace `AR`.
const PUBLISHED_OPERATIONS: usize = 117_216;

#[test]
fn recorded_trace_has_the_figures_that_its_authors_publish() {
    let Some(path) = std::env::var_os("TASKD_STRAGGLER_TRACE") else { return };
    let trace = read_parquet(File::open(path).unwrap()).unwrap();
    if trace.operations.len() != PUBLISHED_OPERATIONS {
        println!("this is another trace than AR");
        return;
    }
    let published = attribute(&Model::new(trace.operations).unwrap()).published;
    let shares = [published.slowest_workers_share.unwrap(), published.last_stage_share.unwrap()];
    let figures = [published.slowdown, published.ideal_s, shares[0], shares[1]];
    for (figure, expected) in figures.into_iter().zip(PUBLISHED) {
        assert!((figure - expected).abs() < 1e-6, "{figures:?} instead of {PUBLISHED:?}");
    }
}

#[test]
fn damaged_files_are_read_or_refused_without_a_panic() {
    let whole = file(columns(&Job { steps: 1, plants: Vec::new(), ..job() }.run().operations));
    let mut random = StdRng::seed_from_u64(11);
    let mut refused = 0;
    for _ in 0..DAMAGED {
        let mut damaged = whole.to_vec();
        // Half of the damage is in the metadata at the end.
        let range = if random.random() { 0..damaged.len() } else { damaged.len() - 3000..damaged.len() };
        for _ in 0..random.random_range(1..4) {
            damaged[random.random_range(range.clone())] = random.random();
        }
        let read = read_parquet(Bytes::from(damaged)).map(|trace| Model::new(trace.operations));
        refused += usize::from(!matches!(read, Ok(Ok(_))));
    }
    println!("{refused} of {DAMAGED} damaged files were refused");
}

/// Number of damaged files.
const DAMAGED: usize = 300;
