//! Reader of operation traces in Parquet files with the columns of ByteDance's StragglerAnalysis.
//!
//! Columns: `dp_rank`, `stage`, `rank`, `step`, `optype`, `start_ts` and `duration` (seconds), `seq_id`, `mc` (model
//! chunk on the stage), `mb_id` (micro-batch), `gmc` (model chunk in the model); −1 or null: none. A column `tp_rank` is
//! read if the file has it. Other columns are ignored. The rows are read batch by batch: besides the operations, the
//! memory holds one compressed row group and [`BATCH_ROWS`] rows.

use super::operation::{Operation, OperationKind, Worker};
use super::pages::{self, Shared};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrowPrimitiveType, RecordBatch};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::ChunkReader;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// Number of rows that are decoded together.
pub const BATCH_ROWS: usize = 8192;

/// Maximum number of distinct unknown operation types that are reported by name.
pub const UNKNOWN_MAX: usize = 16;

const REQUIRED: [&str; 11] =
    ["dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id", "gmc"];
const TENSOR: &str = "tp_rank";

/// Reasons for which a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParquetTraceError {
    /// The file is not Parquet, is damaged, or uses an unknown codec.
    #[error("the trace cannot be read as Parquet: {0}")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// The metadata of the file names a part that cannot exist.
    #[error("the metadata of the trace is damaged: a part of the file has a negative size or place")]
    Layout,
    /// A page claims more than it can contain: the decoder would reserve memory for that.
    #[error("the trace is damaged: a page of column {column} claims {claimed} {what}, at most {most} are possible")]
    Page {
        /// Name of the column.
        column: String,
        /// What the page claims.
        what: &'static str,
        /// The claimed number.
        claimed: u64,
        /// The largest possible number.
        most: u64,
    },
    /// The decoder failed on the content of the file.
    #[error("the trace is damaged: the Parquet decoder failed on its content")]
    Damaged,
    /// A batch of rows cannot be decoded.
    #[error("rows of the trace cannot be decoded: {0}")]
    Arrow(String),
    /// A column is missing.
    #[error("the trace has no column {column}: an operation trace has the columns {}", REQUIRED.join(", "))]
    Column {
        /// Name of the column.
        column: &'static str,
    },
    /// A column has values of another type.
    #[error("column {column} has values of type {found}, not {expected}")]
    Type {
        /// Name of the column.
        column: &'static str,
        /// Type of its values.
        found: String,
        /// Type that was expected.
        expected: &'static str,
    },
    /// A value is outside of the range that is possible.
    #[error("column {column} has the value {value} in row {row}, which no operation has")]
    Value {
        /// Name of the column.
        column: &'static str,
        /// The value; `null` if there is none.
        value: String,
        /// Number of the row, from 0.
        row: u64,
    },
}

/// Operations of a file, and what was left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperationTrace {
    /// The operations, in the order of the rows.
    pub operations: Vec<Operation>,
    /// Number of rows of operation types that the model does not know, by type; at most [`UNKNOWN_MAX`] types.
    pub unknown: BTreeMap<String, u64>,
    /// Number of all rows of unknown types.
    pub unknown_rows: u64,
}

/// Reads the operations of a file.
///
/// # Errors
/// Returns an error if the file is not Parquet, is damaged, lacks a column, or has a value of another type or outside of
/// its range.
pub fn read_parquet<R: ChunkReader + 'static>(file: R) -> Result<OperationTrace, ParquetTraceError> {
    // The decoder panics on some damaged files. Its state and the file are dropped then.
    std::panic::catch_unwind(AssertUnwindSafe(|| read(file))).unwrap_or(Err(ParquetTraceError::Damaged))
}

fn read<R: ChunkReader + 'static>(file: R) -> Result<OperationTrace, ParquetTraceError> {
    // The types are those of Parquet: a column of categories is then a column of strings.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let file = Arc::new(file);
    let reader = ParquetRecordBatchReaderBuilder::try_new_with_options(Shared(Arc::clone(&file)), options)?;
    for column in REQUIRED {
        reader.schema().index_of(column).map_err(|_| ParquetTraceError::Column { column })?;
    }
    check_layout(reader.metadata())?;
    for column in reader.metadata().row_groups().iter().flat_map(|group| group.columns()) {
        let name = column.column_path().string();
        if REQUIRED.contains(&name.as_str()) || name == TENSOR {
            pages::check(&*file, column)?;
        }
    }
    let columns = ProjectionMask::columns(reader.parquet_schema(), REQUIRED.into_iter().chain([TENSOR]));
    let rows = reader.metadata().file_metadata().num_rows();
    let mut trace = OperationTrace::default();
    // A damaged file may claim any number of rows: the list grows by itself beyond this.
    trace.operations.reserve(usize::try_from(rows).unwrap_or(0).min(1 << 20));
    let mut row = 0;
    for batch in reader.with_projection(columns).with_batch_size(BATCH_ROWS).build()? {
        let batch = batch.map_err(|error| ParquetTraceError::Arrow(error.to_string()))?;
        append(&batch, row, &mut trace)?;
        row += batch.num_rows() as u64;
    }
    Ok(trace)
}

/// Refuses metadata with negative sizes or places.
fn check_layout(metadata: &ParquetMetaData) -> Result<(), ParquetTraceError> {
    let is_valid = metadata.row_groups().iter().all(|group| {
        group.num_rows() >= 0
            && group.columns().iter().all(|column| {
                column.data_page_offset() >= 0
                    && column.dictionary_page_offset().is_none_or(|offset| offset >= 0)
                    && column.compressed_size() >= 0
                    && column.num_values() >= 0
            })
    });
    if is_valid { Ok(()) } else { Err(ParquetTraceError::Layout) }
}

/// Columns of one batch.
struct Columns<'a> {
    optype: &'a arrow_array::StringArray,
    data: Integers,
    stage: Integers,
    rank: Integers,
    tensor: Option<Integers>,
    step: Integers,
    sequence: Integers,
    chunk: Integers,
    micro_batch: Integers,
    global_chunk: Integers,
    start: Vec<f64>,
    duration: Vec<f64>,
}

impl<'a> Columns<'a> {
    fn new(batch: &'a RecordBatch) -> Result<Columns<'a>, ParquetTraceError> {
        let optype = column(batch, "optype")?;
        Ok(Columns {
            optype: optype.as_string_opt().ok_or_else(|| mistyped("optype", optype, "string"))?,
            data: Integers::new(batch, "dp_rank")?,
            stage: Integers::new(batch, "stage")?,
            rank: Integers::new(batch, "rank")?,
            tensor: batch.column_by_name(TENSOR).map(|_| Integers::new(batch, TENSOR)).transpose()?,
            step: Integers::new(batch, "step")?,
            sequence: Integers::new(batch, "seq_id")?,
            chunk: Integers::new(batch, "mc")?,
            micro_batch: Integers::new(batch, "mb_id")?,
            global_chunk: Integers::new(batch, "gmc")?,
            start: seconds(batch, "start_ts")?,
            duration: seconds(batch, "duration")?,
        })
    }
}

fn append(batch: &RecordBatch, first: u64, trace: &mut OperationTrace) -> Result<(), ParquetTraceError> {
    let columns = Columns::new(batch)?;
    for index in 0..batch.num_rows() {
        let row = first + index as u64;
        let optype = if columns.optype.is_null(index) { "null" } else { columns.optype.value(index) };
        let Some(kind) = OperationKind::from_name(optype) else {
            trace.unknown_rows += 1;
            if trace.unknown.len() < UNKNOWN_MAX || trace.unknown.contains_key(optype) {
                *trace.unknown.entry(optype.to_owned()).or_default() += 1;
            }
            continue;
        };
        trace.operations.push(Operation {
            worker: Worker {
                data: columns.data.required(index, row)?,
                stage: columns.stage.required(index, row)?,
                tensor: columns.tensor.as_ref().map_or(Ok(0), |tensor| tensor.required(index, row))?,
                rank: columns.rank.required(index, row)?,
            },
            step: u64::from(columns.step.required(index, row)?),
            kind,
            start: columns.start[index],
            duration: columns.duration[index],
            sequence: columns.sequence.required(index, row)?,
            chunk: columns.chunk.optional(index, row)?,
            global_chunk: columns.global_chunk.optional(index, row)?,
            micro_batch: columns.micro_batch.optional(index, row)?,
        });
    }
    Ok(())
}

fn column<'a>(batch: &'a RecordBatch, name: &'static str) -> Result<&'a dyn Array, ParquetTraceError> {
    batch.column_by_name(name).map(AsRef::as_ref).ok_or(ParquetTraceError::Column { column: name })
}

fn mistyped(column: &'static str, found: &dyn Array, expected: &'static str) -> ParquetTraceError {
    ParquetTraceError::Type { column, found: found.data_type().to_string(), expected }
}

/// A column of integers of any width.
struct Integers {
    name: &'static str,
    values: Vec<Option<i64>>,
}

/// Largest number of a rank, stage, step or micro-batch that is accepted; the others reserve the numbers above.
const NUMBER_MAX: i64 = (u32::MAX - 1) as i64;

impl Integers {
    fn new(batch: &RecordBatch, name: &'static str) -> Result<Integers, ParquetTraceError> {
        let array = column(batch, name)?;
        let values = numbers::<Int8Type, i64>(array)
            .or_else(|| numbers::<Int16Type, i64>(array))
            .or_else(|| numbers::<Int32Type, i64>(array))
            .or_else(|| numbers::<Int64Type, i64>(array))
            .or_else(|| numbers::<UInt8Type, i64>(array))
            .or_else(|| numbers::<UInt16Type, i64>(array))
            .or_else(|| numbers::<UInt32Type, i64>(array))
            .or_else(|| {
                let array = array.as_primitive_opt::<UInt64Type>()?;
                Some(array.iter().map(|value| value.map(|value| i64::try_from(value).unwrap_or(i64::MAX))).collect())
            })
            .ok_or_else(|| mistyped(name, array, "integer"))?;
        Ok(Integers { name, values })
    }

    fn invalid(&self, index: usize, row: u64) -> ParquetTraceError {
        let value = self.values[index].map_or_else(|| "null".to_owned(), |value| value.to_string());
        ParquetTraceError::Value { column: self.name, value, row }
    }

    fn required(&self, index: usize, row: u64) -> Result<u32, ParquetTraceError> {
        self.optional(index, row)?.ok_or_else(|| self.invalid(index, row))
    }

    /// Returns `None` for −1 and null.
    fn optional(&self, index: usize, row: u64) -> Result<Option<u32>, ParquetTraceError> {
        match self.values[index] {
            None | Some(-1) => Ok(None),
            Some(value) if value <= NUMBER_MAX => u32::try_from(value).map(Some).map_err(|_| self.invalid(index, row)),
            Some(_) => Err(self.invalid(index, row)),
        }
    }
}

fn numbers<T: ArrowPrimitiveType, N: From<T::Native>>(array: &dyn Array) -> Option<Vec<Option<N>>> {
    Some(array.as_primitive_opt::<T>()?.iter().map(|value| value.map(N::from)).collect())
}

/// Returns a column of seconds; a null is not a number, which the model refuses with the operation's name.
fn seconds(batch: &RecordBatch, name: &'static str) -> Result<Vec<f64>, ParquetTraceError> {
    let array = column(batch, name)?;
    let values = numbers::<Float32Type, f64>(array)
        .or_else(|| numbers::<Float64Type, f64>(array))
        .ok_or_else(|| mistyped(name, array, "float"))?;
    Ok(values.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect())
}
