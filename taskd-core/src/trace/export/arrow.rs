//! Records as columns in the memory format of [Apache Arrow](https://arrow.apache.org).
//!
//! It changes their form and nothing else: no pairing, no reckoning.
//!
//! | column | type | what |
//! |---|---|---|
//! | `rank`, `incarnation`, `pid` | u32 | which process |
//! | `lost` | u64 | records of the process that are missing right before this one |
//! | `time` | timestamp, ns, UTC | when; times after the year 2262 are 2262 |
//! | `thread` | u32 | the thread's id in the system |
//! | `kind` | text | `Step`, `DataLoader`, `SaveCheckpoint`, `FP`, `Communication`, `Kernel`, `Copy`, `API`, `Marker`, `User 0` to `User 47` |
//! | `event` | text | `begin`, `end`, `instant`, `counter`, `span` |
//! | `name` | text | how it is called, as its beginning says |
//! | `range` | u64 | what beginning and end of a range share, within the process |
//! | `value` | f64 | of a counter |
//! | `step` | u64 | the step's number |
//! | `cpu_nanos` | u64 | at the end of a step: nanoseconds that its thread was on the CPU since its beginning |
//! | `op`, `data_type` | text | what is communicated, such as `all_reduce` and `bf16` |
//! | `group` | text | the process group, with its members behind the last bar: `dp_1\|1-7:2` |
//! | `elements`, `bytes` | u64 | of the input on this rank; `bytes` also of what a device has copied |
//! | `peer` | u32 | the other rank of a point-to-point operation, or the root |
//! | `sequence` | u64 | the number of the operation in its group |
//! | `duration` | u64 | of a span: nanoseconds, its beginning is `time` |
//! | `device`, `stream` | u32 | where a device has worked |
//! | `correlation` | u64 | what a device's work and the call that has asked for it have in common; 0 for none |
//!
//! What does not apply is null: `step` is there for steps, and `op` for communications. The table only grows: a later version
//! adds columns behind these.

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

/// The columns of records.
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

/// Records as columns, in the same order.
///
/// # Errors
/// Those of Arrow when columns do not fit its schema; no records lead to one.
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

/// What is told of a communication, whoever carries it out.
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
