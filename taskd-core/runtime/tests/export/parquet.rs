//! The Parquet file, read back with the crate that wrote it: no record changes on the way.

use super::support::{all_reduce, batch, batches, begin, end, origin, record};
use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Int32Type, TimestampNanosecondType, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch as Columns};
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use proptest::prelude::*;
use taskd_core::job::{Incarnation, Rank};
use taskd_core::trace::export::parquet::{GROUP_ROWS_MAX, LOST_KEY, ParquetSummary, ParquetWriter};
use taskd_core::trace::recorder::{
    Communication, DataType, Detail, DeviceCommunication, DeviceWork, Event, Kind, NameId, Op,
};
use taskd_core::trace::{NameTable, Origin, RecordBatch, TimedRecord};

fn export(batches: &[RecordBatch]) -> (Bytes, ParquetSummary) {
    let mut writer = ParquetWriter::new(Vec::new()).unwrap();
    for batch in batches {
        writer.batch(batch).unwrap();
    }
    let (file, summary) = writer.finish().unwrap();
    (file.into(), summary)
}

/// Every row of a file.
fn rows(file: Bytes) -> Vec<Row> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    reader.flat_map(|columns| read(&columns.unwrap())).collect()
}

/// A record with its process and its names, as texts.
#[derive(Debug, PartialEq)]
struct Row {
    origin: Origin,
    lost: u64,
    name: String,
    group: String,
    /// Without the numbers of names.
    record: TimedRecord,
}

/// The rows that batches are to become.
fn expected(batches: &[RecordBatch]) -> Vec<Row> {
    let rows = batches.iter().flat_map(|batch| batch.records.iter().enumerate().map(move |row| (batch, row)));
    rows.map(|(batch, (at, record))| {
        let mut plain = *record;
        plain.unix_nanos = record.unix_nanos.min(i64::MAX as u64);
        plain.name = NameId(0);
        let mut group = NameId(0);
        match &mut plain.detail {
            Detail::Communication(call) => group = std::mem::take(&mut call.group),
            Detail::DeviceCommunication(call) => group = std::mem::take(&mut call.group),
            _ => (),
        }
        let [name, group] = [record.name, group].map(|id| batch.names.get(id).to_owned());
        Row { origin: batch.origin, lost: if at == 0 { batch.lost } else { 0 }, name, group, record: plain }
    })
    .collect()
}

fn read(columns: &Columns) -> Vec<Row> {
    (0..columns.num_rows()).map(|at| row(columns, at)).collect()
}

fn number<T: ArrowPrimitiveType>(columns: &Columns, name: &str, at: usize) -> Option<T::Native> {
    let column = columns.column_by_name(name).unwrap().as_primitive::<T>();
    column.is_valid(at).then(|| column.value(at))
}

fn text<'a>(columns: &'a Columns, name: &str, at: usize) -> Option<&'a str> {
    let column = columns.column_by_name(name).unwrap().as_dictionary::<Int32Type>();
    let texts = column.values().as_string::<i32>();
    column.key(at).map(|key| texts.value(key))
}

fn row(columns: &Columns, at: usize) -> Row {
    let small = |name| number::<UInt32Type>(columns, name, at);
    let large = |name| number::<UInt64Type>(columns, name, at);
    let text = |name| text(columns, name, at);
    let origin = Origin {
        rank: Rank(small("rank").unwrap()),
        incarnation: Incarnation(small("incarnation").unwrap()),
        pid: small("pid").unwrap(),
    };
    let event = match text("event").unwrap() {
        "begin" => Event::Begin { range: large("range").unwrap() },
        "end" => Event::End { range: large("range").unwrap() },
        "instant" => Event::Instant,
        "span" => Event::Span { nanos: large("duration").unwrap() },
        _ => Event::Counter { value: number::<arrow_array::types::Float64Type>(columns, "value", at).unwrap() },
    };
    let step = large("step").map(|number| Detail::Step { number, cpu_nanos: large("cpu_nanos").unwrap() });
    let work = small("device").map(|device| DeviceWork {
        device,
        stream: small("stream").unwrap(),
        correlation: large("correlation").unwrap(),
        bytes: large("bytes").unwrap(),
    });
    let call = text("op").map(|op| {
        let (op, data_type) = (code(op, Op::of_code), code(text("data_type").unwrap(), DataType::of_code));
        let (group, peer) = (NameId(0), small("peer"));
        match work {
            Some(work) => Detail::DeviceCommunication(DeviceCommunication { op, data_type, group, peer, work }),
            None => {
                let (elements, bytes) = (large("elements").unwrap(), large("bytes").unwrap());
                let sequence = large("sequence");
                Detail::Communication(Communication { op, data_type, group, elements, bytes, peer, sequence })
            }
        }
    });
    let time = number::<TimestampNanosecondType>(columns, "time", at).unwrap();
    let record = TimedRecord {
        unix_nanos: time.try_into().unwrap(),
        thread: small("thread").unwrap(),
        kind: kind(text("kind").unwrap()),
        event,
        name: NameId(0),
        detail: step.or(call).or(work.map(Detail::Device)).unwrap_or_default(),
    };
    let text_of = |name| text(name).unwrap_or_default().to_owned();
    Row { origin, lost: large("lost").unwrap(), name: text_of("name"), group: text_of("group"), record }
}

/// That of the word, whose spelling differs from the variant's in underscores only.
fn code<T: std::fmt::Debug>(word: &str, of_code: fn(u8) -> T) -> T {
    let spelled = |one: &T| format!("{one:?}").to_lowercase() == word.replace('_', "");
    (0..=u8::MAX).map(of_code).find(spelled).unwrap()
}

fn kind(word: &str) -> Kind {
    match word {
        "Step" => Kind::Step,
        "DataLoader" => Kind::DataLoader,
        "SaveCheckpoint" => Kind::SaveCheckpoint,
        "FP" => Kind::Forward,
        "Communication" => Kind::Communication,
        "Kernel" => Kind::Kernel,
        "Copy" => Kind::Copy,
        "API" => Kind::Api,
        "Marker" => Kind::Marker,
        user => Kind::User(user.strip_prefix("User ").unwrap().parse().unwrap()),
    }
}

#[test]
fn a_training_comes_back() {
    let records = vec![
        TimedRecord { detail: Detail::Step { number: 17, cpu_nanos: 0 }, ..begin(0, Kind::Step, 1) },
        TimedRecord { name: NameId(1), detail: all_reduce(5), ..begin(50, Kind::Communication, 4) },
        end(70, Kind::Communication, 4),
        TimedRecord { name: NameId(1), ..record(80, Kind::User(3), Event::Counter { value: 2.5 }) },
        TimedRecord { detail: Detail::Step { number: 17, cpu_nanos: 1_500 }, ..end(90, Kind::Step, 1) },
    ];
    let batches = [
        batch(origin(3, 1), &["allreduce", "dp_1|1-7:2"], records),
        RecordBatch { lost: 7, ..batch(origin(0, 2), &[], vec![record(95, Kind::Forward, Event::Instant)]) },
    ];
    let (file, summary) = export(&batches);
    assert_eq!(rows(file.clone()), expected(&batches));
    assert_eq!(summary, ParquetSummary { records: 6, lost: 7 });
    let metadata = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().metadata().file_metadata().clone();
    let text_of = metadata.key_value_metadata().unwrap().iter().find(|entry| entry.key == LOST_KEY).unwrap();
    assert_eq!(text_of.value.as_deref(), Some("7"));
}

#[test]
fn groups_of_rows_are_bounded() {
    let many = (0..10_000).map(|at| begin(at, Kind::Forward, at)).collect::<Vec<_>>();
    let batches = vec![batch(origin(0, 1), &[], many); GROUP_ROWS_MAX / 10_000 + 1];
    let (file, summary) = export(&batches);
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let groups: Vec<_> = reader.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
    assert_eq!(groups.iter().sum::<i64>().unsigned_abs(), summary.records);
    assert_eq!((groups.len(), groups[0]), (2, GROUP_ROWS_MAX as i64));
}

#[test]
fn a_file_without_records_is_a_file() {
    let (file, summary) = export(&[]);
    assert_eq!((rows(file), summary), (vec![], ParquetSummary::default()));
}

#[test]
fn a_time_beyond_the_type_is_the_last_one() {
    let late = TimedRecord { unix_nanos: u64::MAX, ..begin(0, Kind::Step, 1) };
    let batches = [RecordBatch { names: NameTable::default().into(), ..batch(origin(0, 1), &[], vec![late]) }];
    assert_eq!(rows(export(&batches).0)[0].record.unix_nanos, i64::MAX as u64);
}

/// NaN is not equal to itself, but comes back as it was.
fn plain(mut rows: Vec<Row>) -> Vec<(Option<u64>, Row)> {
    let value = |row: &mut Row| match &mut row.record.event {
        Event::Counter { value } => Some(std::mem::take(value).to_bits()),
        _ => None,
    };
    rows.drain(..).map(|mut row| (value(&mut row), row)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is recorded comes back, bit for bit.
    #[test]
    fn any_records_come_back(batches in batches()) {
        let (file, summary) = export(&batches);
        prop_assert_eq!(summary.records, expected(&batches).len() as u64);
        prop_assert_eq!(plain(rows(file)), plain(expected(&batches)));
    }
}
