//! Records as a file of [Apache Parquet](https://parquet.apache.org), which pandas, Polars, DuckDB and Spark read.
//!
//! One row is one record, with the columns of [`arrow`]. It reads no such file.
//!
//! A file is whole when it is [finished](ParquetWriter::finish), and cannot be read before: Parquet's table of contents stands
//! at the end. Where the process may die, write the format of Perfetto, or the store's.
//!
//! pandas turns columns of numbers with nulls into floating-point numbers, which have no room for `range`;
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

/// So many rows at most are compressed together, and so many are in memory.
pub const GROUP_ROWS_MAX: usize = 131_072;

/// The key in the file's metadata under which [`ParquetSummary::lost`] stands, as a decimal number.
pub const LOST_KEY: &str = "taskd.lost";

/// Columns whose values mostly grow: their differences are stored.
const GROWING: [&str; 3] = ["time", "range", "sequence"];

/// Writes records into a Parquet file, compressed with zstd.
///
/// Memory is bounded by [`GROUP_ROWS_MAX`] rows and the longest batch.
pub struct ParquetWriter<W: Write + Send> {
    file: ArrowWriter<W>,
    summary: ParquetSummary,
}

/// What a file holds, and what it does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParquetSummary {
    /// Records in it.
    pub records: u64,
    /// Records that were lost before they came here, as the batches say.
    pub lost: u64,
}

impl<W: Write + Send> ParquetWriter<W> {
    /// A writer into an empty file.
    ///
    /// # Errors
    /// When the file cannot be written.
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

    /// Adds a batch.
    ///
    /// # Errors
    /// When the file cannot be written; the writer is of no use then.
    pub fn batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        self.summary.lost = self.summary.lost.saturating_add(batch.lost);
        self.summary.records += batch.records.len() as u64;
        let columns = arrow::columns(batch).map_err(io::Error::other)?;
        self.file.write(&columns).map_err(failed)
    }

    /// Completes the file, and returns it with an account of what is in it.
    ///
    /// # Errors
    /// When the file cannot be written.
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

/// The file's own error, where it is one.
fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(cause) => cause.downcast().map_or_else(io::Error::other, |cause| *cause),
        other => io::Error::other(other),
    }
}
