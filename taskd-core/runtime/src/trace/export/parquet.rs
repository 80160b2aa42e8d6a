//! Records as a file of [Apache Parquet](https://parquet.apache.org), which pandas, Polars, DuckDB and Spark read.
//!
//! One row is one record, with the columns of [`arrow`]. This module does not read such files.
//!
//! A file is complete once it is [finished](ParquetWriter::finish), and unreadable before: Parquet's metadata is at the
//! end. If the process may die, write the format of Perfetto or of the store instead.
//!
//! pandas converts numeric columns with nulls to floating-point numbers, which are too short for `range`;
//! `pandas.read_parquet(path, dtype_backend="pyarrow")` does not.

use super::arrow;
use crate::trace::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;
use std::io::{self, Write};

/// Maximum number of rows in a Parquet row group. The rows of a group stay in memory until they are compressed
/// together.
pub const GROUP_ROWS_MAX: usize = 131_072;

/// Key in the metadata of a Parquet file, under which [`ParquetSummary::lost`] is stored as a decimal number.
pub const LOST_KEY: &str = "taskd.lost";

/// Columns whose values mostly increase: stored as differences.
const GROWING: [&str; 3] = ["time", "range", "sequence"];

/// Writes records to a Parquet file, compressed with zstd.
///
/// Memory is bounded by [`GROUP_ROWS_MAX`] rows and the longest batch.
pub struct ParquetWriter<W: Write + Send> {
    file: ArrowWriter<W>,
    summary: ParquetSummary,
}

/// Counts of the trace records in a Parquet file, and of the records that were lost before the export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParquetSummary {
    /// Number of records in the file.
    pub records: u64,
    /// Number of records lost before the export, as recorded in the batches.
    pub lost: u64,
}

impl<W: Write + Send> ParquetWriter<W> {
    /// Creates a writer to an empty file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn new(out: W) -> io::Result<ParquetWriter<W>> {
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(GROUP_ROWS_MAX));
        for column in GROWING.map(ColumnPath::from) {
            properties = properties
                .set_column_dictionary_enabled(column.clone(), false)
                .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
        }
        let file = ArrowWriter::try_new(out, arrow::schema(), Some(properties.build())).map_err(failed)?;
        Ok(ParquetWriter { file, summary: ParquetSummary::default() })
    }

    /// Adds the records of a batch to the file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written. The writer is unusable afterwards.
    pub fn batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        self.summary.lost = self.summary.lost.saturating_add(batch.lost);
        self.summary.records += batch.records.len() as u64;
        let columns = arrow::columns(batch).map_err(io::Error::other)?;
        self.file.write(&columns).map_err(failed)
    }

    /// Completes the file, and returns it with its counts.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn finish(mut self) -> io::Result<(W, ParquetSummary)> {
        let lost = KeyValue::new(LOST_KEY.to_owned(), self.summary.lost.to_string());
        self.file.append_key_value_metadata(lost);
        Ok((self.file.into_inner().map_err(failed)?, self.summary))
    }
}

impl<W: Write + Send> std::fmt::Debug for ParquetWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParquetWriter").field("summary", &self.summary).finish_non_exhaustive()
    }
}

/// Unwraps the underlying I/O error, if there is one.
fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(cause) => cause.downcast().map_or_else(io::Error::other, |cause| *cause),
        other => io::Error::other(other),
    }
}
