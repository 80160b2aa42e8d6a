//! Size of stored records and the speed of writing and reading them, compared with other formats.

use super::cost::per_one;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::Serialize;
use std::hint::black_box;
use std::io;
use taskd_core::job::Rank;
use taskd_core::trace::store::compatible::{CompatibleReader, CompatibleWriter};
use taskd_core::trace::store::native::{NativeHead, NativeReader, NativeWriter};
use taskd_core::trace::synthetic::SyntheticJob;
use taskd_core::trace::{RecordBatch, TimedRecord};
use taskd_examples::program::Failure;
use taskd_examples::samples::Samples;

/// Bytes of a record, and records per second of a thread's CPU time, each the median of all rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    bytes_per_record: f64,
    jsonl_bytes_per_record: f64,
    gzip_jsonl_bytes_per_record: f64,
    store_records_per_s: f64,
    read_records_per_s: f64,
    jsonl_store_records_per_s: f64,
    jsonl_read_records_per_s: f64,
    /// Only with the feature `parquet`.
    #[serde(skip_serializing_if = "Option::is_none")]
    parquet_bytes_per_record: Option<f64>,
}

/// Steps in a batch: those of one second, which the store writes at once.
const STEPS_PER_BATCH: usize = 10;
/// All-reduces in a step.
const BUCKETS: u32 = 5;

/// Measures, prints a table, and returns the figures.
pub(crate) fn measure(quick: bool) -> Result<Figures, Failure> {
    let (rounds, steps) = if quick { (3, 100) } else { (21, 5_000) };
    let batches = batches(steps);
    let [mut native, mut lines, mut gzip] = std::array::from_fn(|_| Format::default());
    for _ in 0..rounds {
        native.round(&batches, to_native, |bytes| NativeReader::new(bytes).map(count).sum())?;
        lines.round(&batches, to_lines, |bytes| CompatibleReader::new(bytes, Rank(0)).map(count).sum())?;
        gzip.round(&batches, to_gzip, |bytes| CompatibleReader::new(GzDecoder::new(bytes), Rank(0)).map(count).sum())?;
    }
    println!(
        "\nrecords of {steps} steps of 100 ms of a synthetic job, {BUCKETS} all-reduces each; {rounds} rounds in turns,"
    );
    println!("of one thread's time on the CPU: median (least to most)\n");
    println!("| stored as | bytes a record | million records a second written | read |\n|---|---|---|---|");
    println!("| native | {native} |\n| JSON lines | {lines} |\n| JSON lines, gzip | {gzip} |");
    let parquet = parquet(&batches)?;
    if let Some(bytes) = parquet {
        println!("| Parquet, zstd | {bytes:.2} | | |");
    }
    Ok(Figures {
        bytes_per_record: native.bytes,
        jsonl_bytes_per_record: lines.bytes,
        gzip_jsonl_bytes_per_record: gzip.bytes,
        store_records_per_s: native.written.median() * 1e6,
        read_records_per_s: native.read.median() * 1e6,
        jsonl_store_records_per_s: lines.written.median() * 1e6,
        jsonl_read_records_per_s: lines.read.median() * 1e6,
        parquet_bytes_per_record: parquet,
    })
}

/// Returns the records of a rank of four, in batches as the store writes them: thread by thread.
fn batches(steps: u64) -> Vec<RecordBatch> {
    let job = SyntheticJob::new(4).steps(steps).buckets(BUCKETS);
    let of_rank: Vec<RecordBatch> = job.run().filter(|batch| batch.origin.rank == Rank(0)).collect();
    let together = |steps: &[RecordBatch]| {
        let mut records: Vec<TimedRecord> = steps.iter().flat_map(|step| step.records.clone()).collect();
        records.sort_by_key(|record| record.thread);
        RecordBatch { records, ..steps[0].clone() }
    };
    of_rank.chunks(STEPS_PER_BATCH).map(together).collect()
}

/// The figures of a format.
#[derive(Debug, Default)]
struct Format {
    /// Bytes of a record.
    bytes: f64,
    /// Millions of records per second.
    written: Samples,
    read: Samples,
}

impl Format {
    fn round(
        &mut self,
        batches: &[RecordBatch],
        write: fn(&[RecordBatch]) -> io::Result<Vec<u8>>,
        read: fn(&[u8]) -> usize,
    ) -> Result<(), Failure> {
        let records: usize = batches.iter().map(|batch| batch.records.len()).sum();
        let mut stored = Ok(Vec::new());
        let nanos = per_one(1, || stored = write(black_box(batches)));
        self.written.push(records as f64 * 1e3 / nanos);
        let stored = stored?;
        let mut back = 0;
        let nanos = per_one(1, || back = read(black_box(&stored)));
        self.read.push(records as f64 * 1e3 / nanos);
        if back != records {
            return Err(format!("{back} of {records} records were read back").into());
        }
        self.bytes = stored.len() as f64 / records as f64;
        Ok(())
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} | {} | {}", self.bytes, self.written, self.read)
    }
}

fn to_native(batches: &[RecordBatch]) -> io::Result<Vec<u8>> {
    let head = NativeHead { job: "bench".into(), origin: batches[0].origin };
    let mut writer = NativeWriter::create(Vec::new(), &head)?;
    batches.iter().try_for_each(|batch| writer.append(batch))?;
    Ok(writer.into_inner())
}

fn to_lines(batches: &[RecordBatch]) -> io::Result<Vec<u8>> {
    let mut writer = CompatibleWriter::new(Vec::new());
    batches.iter().try_for_each(|batch| writer.append(batch))?;
    Ok(writer.into_inner())
}

fn to_gzip(batches: &[RecordBatch]) -> io::Result<Vec<u8>> {
    let mut writer = CompatibleWriter::new(GzEncoder::new(Vec::new(), Compression::default()));
    batches.iter().try_for_each(|batch| writer.append(batch))?;
    writer.into_inner().finish()
}

/// Returns the bytes of a record in a Parquet file of all records.
#[cfg(feature = "parquet")]
fn parquet(batches: &[RecordBatch]) -> io::Result<Option<f64>> {
    let mut writer = taskd_core::trace::export::parquet::ParquetWriter::new(Vec::new())?;
    batches.iter().try_for_each(|batch| writer.batch(batch))?;
    let (file, summary) = writer.finish()?;
    Ok(Some(file.len() as f64 / summary.records as f64))
}

#[cfg(not(feature = "parquet"))]
fn parquet(_batches: &[RecordBatch]) -> io::Result<Option<f64>> {
    Ok(None)
}

fn count(batch: RecordBatch) -> usize {
    black_box(batch).records.len()
}
