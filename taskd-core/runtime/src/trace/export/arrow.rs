//! Records as columns in the memory format of [Apache Arrow](https://arrow.apache.org).
//!
//! Only the format changes: ranges are not paired and nothing is computed.
//!
//! | column | type | contents |
//! |---|---|---|
//! | `rank`, `incarnation`, `pid` | u32 | the process |
//! | `lost` | u64 | number of records of the process that were lost right before this one |
//! | `time` | timestamp, ns, UTC | time of the record; times after the year 2262 are stored as 2262 |
//! | `thread` | u32 | system thread id |
//! | `kind` | text | `Step`, `DataLoader`, `SaveCheckpoint`, `FP`, `Communication`, `Kernel`, `Copy`, `API`, `Marker`, `User 0` to `User 47` |
//! | `event` | text | `begin`, `end`, `instant`, `counter`, `span` |
//! | `name` | text | name, as given at the beginning |
//! | `range` | u64 | number shared by beginning and end of a range, unique within the process |
//! | `value` | f64 | value of a counter |
//! | `step` | u64 | the step's number |
//! | `cpu_nanos` | u64 | at the end of a step: CPU time of its thread since its beginning, in nanoseconds |
//! | `op`, `data_type` | text | operation and element type of a communication, such as `all_reduce` and `bf16` |
//! | `group` | text | the process group, with its members after the last bar: `dp_1\|1-7:2` |
//! | `elements`, `bytes` | u64 | size of the input on this rank; `bytes` also for a copy on a device |
//! | `peer` | u32 | the other rank of a point-to-point operation, or the root |
//! | `sequence` | u64 | sequence number of the operation in its group |
//! | `duration` | u64 | duration of a span in nanoseconds; its beginning is `time` |
//! | `device`, `stream` | u32 | place of a device's work |
//! | `correlation` | u64 | number shared by a device's work and the call that launched it; 0 for none |
//!
//! Columns that do not apply are null: `step` is set for steps, and `op` for communications. Later versions only append
//! columns.

use super::words;
use crate::trace::recorder::{
    Communication, DataType as ElementType, Detail, DeviceCommunication, DeviceWork, Event, NameId, Op,
};
use crate::trace::{RecordBatch, TimedRecord};
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, DictionaryArray, Float64Array, TimestampNanosecondArray, UInt32Array, UInt64Array};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use std::iter;
use std::sync::Arc;

/// Returns the Arrow schema of the columns to which records are converted.
#[must_use]
pub fn schema() -> SchemaRef {
    let text = || DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let column = |name, of| Field::new(name, of, false);
    let optional = |name, of| Field::new(name, of, true);
    Arc::new(Schema::new(vec![
        column("rank", DataType::UInt32),
        column("incarnation", DataType::UInt32),
        column("pid", DataType::UInt32),
        column("lost", DataType::UInt64),
        column("time", DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))),
        column("thread", DataType::UInt32),
        column("kind", text()),
        column("event", text()),
        optional("name", text()),
        optional("range", DataType::UInt64),
        optional("value", DataType::Float64),
        optional("step", DataType::UInt64),
        optional("cpu_nanos", DataType::UInt64),
        optional("op", text()),
        optional("data_type", text()),
        optional("group", text()),
        optional("elements", DataType::UInt64),
        optional("bytes", DataType::UInt64),
        optional("peer", DataType::UInt32),
        optional("sequence", DataType::UInt64),
        optional("duration", DataType::UInt64),
        optional("device", DataType::UInt32),
        optional("stream", DataType::UInt32),
        optional("correlation", DataType::UInt64),
    ]))
}

/// Converts the trace records of a batch to Arrow columns: one row per record, in the same order.
///
/// # Errors
/// Returns Arrow's error if the columns do not match the schema, which no batch of records can cause.
pub fn columns(batch: &RecordBatch) -> Result<arrow_array::RecordBatch, ArrowError> {
    let (rows, count) = (&batch.records, batch.records.len());
    let origin = batch.origin;
    let same = |value| -> ArrayRef { Arc::new(UInt32Array::from_value(value, count)) };
    let name = |id: NameId| Some(batch.names.get(id)).filter(|name| !name.is_empty());
    let kinds: Vec<_> = rows.iter().map(|row| words::kind(row.kind)).collect();
    arrow_array::RecordBatch::try_new(
        schema(),
        vec![
            same(origin.rank.0),
            same(origin.incarnation.0),
            same(origin.pid),
            Arc::new(UInt64Array::from_iter_values(iter::once(batch.lost).chain(iter::repeat(0)).take(count))),
            Arc::new(TimestampNanosecondArray::from_iter_values(rows.iter().map(time)).with_timezone("UTC")),
            Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| row.thread))),
            texts(kinds.iter().map(|kind| Some(&**kind))),
            texts(rows.iter().map(|row| Some(event(row.event)))),
            texts(rows.iter().map(|row| name(row.name))),
            numbers(rows.iter().map(range)),
            Arc::new(rows.iter().map(value).collect::<Float64Array>()),
            numbers(rows.iter().map(|row| step(row).map(|(number, _)| number))),
            numbers(rows.iter().map(|row| step(row).map(|(_, cpu_nanos)| cpu_nanos))),
            texts(rows.iter().map(|row| call(row).map(|call| call.op.name()))),
            texts(rows.iter().map(|row| call(row).map(|call| call.data_type.name()))),
            texts(rows.iter().map(|row| call(row).and_then(|call| name(call.group)))),
            numbers(rows.iter().map(|row| issued(row).map(|call| call.elements))),
            numbers(rows.iter().map(|row| issued(row).map(|call| call.bytes).or(work(row).map(|work| work.bytes)))),
            small(rows.iter().map(|row| call(row).and_then(|call| call.peer))),
            numbers(rows.iter().map(|row| issued(row).and_then(|call| call.sequence))),
            numbers(rows.iter().map(duration)),
            small(rows.iter().map(|row| work(row).map(|work| work.device))),
            small(rows.iter().map(|row| work(row).map(|work| work.stream))),
            numbers(rows.iter().map(|row| work(row).map(|work| work.correlation))),
        ],
    )
}

fn texts<'a>(values: impl Iterator<Item = Option<&'a str>>) -> ArrayRef {
    Arc::new(values.collect::<DictionaryArray<Int32Type>>())
}

fn numbers(values: impl Iterator<Item = Option<u64>>) -> ArrayRef {
    Arc::new(values.collect::<UInt64Array>())
}

fn small(values: impl Iterator<Item = Option<u32>>) -> ArrayRef {
    Arc::new(values.collect::<UInt32Array>())
}

fn time(row: &TimedRecord) -> i64 {
    i64::try_from(row.unix_nanos).unwrap_or(i64::MAX)
}

const fn event(event: Event) -> &'static str {
    match event {
        Event::Begin { .. } => "begin",
        Event::End { .. } => "end",
        Event::Instant => "instant",
        Event::Counter { .. } => "counter",
        Event::Span { .. } => "span",
    }
}

const fn range(row: &TimedRecord) -> Option<u64> {
    match row.event {
        Event::Begin { range } | Event::End { range } => Some(range),
        Event::Instant | Event::Counter { .. } | Event::Span { .. } => None,
    }
}

const fn value(row: &TimedRecord) -> Option<f64> {
    if let Event::Counter { value } = row.event { Some(value) } else { None }
}

const fn step(row: &TimedRecord) -> Option<(u64, u64)> {
    if let Detail::Step { number, cpu_nanos } = row.detail { Some((number, cpu_nanos)) } else { None }
}

const fn duration(row: &TimedRecord) -> Option<u64> {
    if let Event::Span { nanos } = row.event { Some(nanos) } else { None }
}

const fn issued(row: &TimedRecord) -> Option<&Communication> {
    if let Detail::Communication(call) = &row.detail { Some(call) } else { None }
}

const fn work(row: &TimedRecord) -> Option<DeviceWork> {
    match row.detail {
        Detail::Device(work) => Some(work),
        Detail::DeviceCommunication(call) => Some(call.work),
        _ => None,
    }
}

/// Data of a communication, whether a device or the host carries it out.
struct Call {
    op: Op,
    data_type: ElementType,
    group: NameId,
    peer: Option<u32>,
}

const fn call(row: &TimedRecord) -> Option<Call> {
    match row.detail {
        Detail::Communication(Communication { op, data_type, group, peer, .. })
        | Detail::DeviceCommunication(DeviceCommunication { op, data_type, group, peer, .. }) => {
            Some(Call { op, data_type, group, peer })
        }
        _ => None,
    }
}
