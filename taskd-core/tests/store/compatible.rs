//! The compatible format: what other readers see, what comes back, and files of others.

use super::batches::{batches, shown, training};
use proptest::prelude::*;
use std::sync::Arc;
use taskd_core::job::{Incarnation, Rank};
use taskd_core::trace::recorder::{Communication, DataType, Detail, DeviceWork, Event, Kind, NameId, Op};
use taskd_core::trace::store::compatible::{CompatibleReader, CompatibleWriter, LINE_BYTES_MAX};
use taskd_core::trace::store::{Problem, Skipped};
use taskd_core::trace::{NameTable, Origin, RecordBatch, TimedRecord};

fn written(batches: &[RecordBatch]) -> Vec<u8> {
    let mut writer = CompatibleWriter::new(Vec::new());
    batches.iter().for_each(|batch| writer.append(batch).unwrap());
    writer.into_inner()
}

pub(crate) fn read(bytes: &[u8]) -> (Vec<RecordBatch>, Skipped) {
    let mut reader = CompatibleReader::new(bytes, Rank(0));
    let batches = reader.by_ref().collect();
    (batches, reader.skipped().clone())
}

/// Every record with its process and its names as texts, and how many are missing: what must not depend on the format.
pub(crate) fn records_of(batches: &[RecordBatch]) -> (u64, Vec<String>) {
    let one = |batch: &RecordBatch| {
        let mut table = NameTable::default();
        let mut renamed = batch.clone();
        let mut id = |name: &mut NameId| {
            let text = batch.names.get(*name);
            *name = if text.is_empty() { NameId(0) } else { table.push(text) };
        };
        for record in &mut renamed.records {
            id(&mut record.name);
            if let Some(group) = group_of(&mut record.detail) {
                id(group);
            }
        }
        let texts: Vec<String> = table.iter().map(|(_, name)| name.to_owned()).collect();
        (batch.origin, renamed, texts)
    };
    let mut all = Vec::new();
    for (origin, batch, texts) in batches.iter().map(one) {
        let text = |id: NameId| (id.0 as usize).checked_sub(1).map_or("", |at| texts[at].as_str());
        for record in &batch.records {
            let mut bare = *record;
            bare.name = NameId(0);
            let group = group_of(&mut bare.detail).map(std::mem::take).unwrap_or_default();
            let bare = RecordBatch { lost: 0, names: Arc::default(), origin, records: vec![bare] };
            all.push(format!("{:?} {} {}", shown(&[bare]), text(record.name), text(group)));
        }
    }
    (batches.iter().fold(0, |lost, batch| lost.wrapping_add(batch.lost)), all)
}

fn group_of(detail: &mut Detail) -> Option<&mut NameId> {
    match detail {
        Detail::Communication(communication) => Some(&mut communication.group),
        Detail::DeviceCommunication(communication) => Some(&mut communication.group),
        _ => None,
    }
}

fn of_rank_0(mut batches: Vec<RecordBatch>) -> Vec<RecordBatch> {
    for batch in &mut batches {
        batch.origin.rank = Rank(0);
        batch.lost >>= 8; // so that their sum has room
    }
    if batches.last().is_some_and(|last| last.records.is_empty()) {
        batches.pop();
    }
    batches
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn native_records_come_back_through_the_compatible_format(batches in batches().prop_map(of_rank_0)) {
        let bytes = written(&batches);
        let (back, skipped) = read(&bytes);
        let (mut was, is) = (records_of(&batches), records_of(&back));
        if batches.iter().rev().take_while(|batch| batch.records.is_empty()).count() > 0 {
            was.0 = is.0; // reported with a record that has not come
        }
        prop_assert_eq!(is, was);
        prop_assert!(skipped.is_empty());
        prop_assert_eq!((skipped.device_records, skipped.other_records, skipped.unpaired_records), (0, 0, 0));
    }
}

#[test]
fn a_training_trace_comes_back_from_one_format_to_the_other() {
    let batches = training(0, 100, 10);
    assert!(records_of(&read(&written(&batches)).0) == records_of(&batches));
}

fn one(record: TimedRecord, names: &[&str]) -> String {
    let origin = Origin { rank: Rank(0), incarnation: Incarnation(1), pid: 12 };
    let batch = RecordBatch { origin, names: Arc::new(NameTable::from_iter(names)), lost: 0, records: vec![record] };
    String::from_utf8(written(&[batch])).unwrap()
}

#[test]
fn a_plain_marker_has_the_formats_own_fields_and_no_others() {
    let range = 1 << 58 | 7;
    let begin = TimedRecord {
        unix_nanos: 1_718_000_000_123_456_789,
        thread: 34,
        kind: Kind::Step,
        event: Event::Begin { range },
        name: NameId(0),
        detail: Detail::Step { number: 12, cpu_nanos: 0 },
    };
    let step = r#"{"Kind":1,"Flag":2,"SourceKind":0,"Timestamp":1718000000123456789,"Id":288230376151711751,"MsptiObjectId":{"Pt":{"ProcessId":12,"ThreadId":34},"Ds":{"DeviceId":0,"StreamId":0}},"Name":"step 12","Domain":"default"}"#;
    assert_eq!(one(begin, &[]), format!("{step}\n"));
    let end = TimedRecord { event: Event::End { range }, detail: Detail::None, ..begin };
    let text = one(end, &[]);
    assert!(text.contains(r#""Flag":4,"#) && text.ends_with("\"Name\":\"\",\"Domain\":\"\"}\n"), "{text}");
    for (kind, name) in [(2, "dataloader"), (3, "save_checkpoint"), (4, "forward")] {
        let kind = Kind::of_number(kind).unwrap();
        let range = u64::from(kind.number()) << 58 | 9;
        let begin = TimedRecord { kind, event: Event::Begin { range }, detail: Detail::None, ..begin };
        let text = one(begin, &[]);
        assert!(text.ends_with(&format!("\"Name\":\"{name}\",\"Domain\":\"default\"}}\n")), "{text}");
    }
    let mark =
        TimedRecord { kind: Kind::User(0), event: Event::Instant, name: NameId(1), detail: Detail::None, ..begin };
    let text = one(mark, &["eval \"best\""]);
    assert!(
        text.contains(r#""Flag":1,"#) && text.ends_with("\"Name\":\"eval \\\"best\\\"\",\"Domain\":\"default\"}\n"),
        "{text}"
    );
}

#[test]
fn communication_name_is_parseable_json_with_extras_beside_it() {
    let communication = Communication {
        op: Op::AllReduce,
        data_type: DataType::F16,
        group: NameId(2),
        elements: 16_777_216,
        bytes: 33_554_432,
        peer: None,
        sequence: Some(4),
    };
    let record = TimedRecord {
        unix_nanos: 1,
        thread: 2,
        kind: Kind::Communication,
        event: Event::Begin { range: 5 << 58 | 1 },
        name: NameId(1),
        detail: Detail::Communication(communication),
    };
    let text = one(record, &["allreduce", "group_name_12|0-3"]);
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["Domain"], "communication");
    let name: serde_json::Value = serde_json::from_str(line["Name"].as_str().unwrap()).unwrap();
    let expected = r#"{"streamId":"na","count":"16777216","dataType":"fp16","opName":"HcclAllReduce","groupName":"group_name_12"}"#;
    assert_eq!(line["Name"], expected);
    assert_eq!(name["count"], "16777216", "all values are texts");
    let rest = serde_json::json!({ "Name": "allreduce", "Group": "group_name_12|0-3", "Sequence": 4 });
    assert_eq!(line["Taskd"], rest);
}

#[test]
fn a_span_has_the_two_lines_of_a_range_and_comes_back_as_one_record() {
    let work = DeviceWork { device: 3, stream: 7, correlation: 12, bytes: 0 };
    let span = TimedRecord {
        unix_nanos: 100,
        thread: 0,
        kind: Kind::Step,
        event: Event::Span { nanos: 50 },
        name: NameId(0),
        detail: Detail::Device(work),
    };
    let host = TimedRecord { thread: 8, detail: Detail::Step { number: 12, cpu_nanos: 0 }, ..span };
    let origin = Origin { rank: Rank(0), incarnation: Incarnation(1), pid: 7 };
    let batch = RecordBatch { origin, names: Arc::default(), lost: 0, records: vec![span, host] };
    let bytes = written(std::slice::from_ref(&batch));
    let lines: Vec<serde_json::Value> =
        bytes.split_inclusive(|byte| *byte == b'\n').map(|line| serde_json::from_slice(line).unwrap()).collect();
    let seen = |line: &serde_json::Value| {
        let number = |name: &str| line[name].as_u64().unwrap();
        let stream = line["MsptiObjectId"]["Ds"]["StreamId"].as_u64().unwrap();
        let name = line["Name"].as_str().unwrap().to_owned();
        (number("Flag"), number("SourceKind"), number("Timestamp"), number("Id"), stream, name)
    };
    let expected = [
        (16, 1, 100, 1, 7, "step 12".to_owned()),
        (32, 1, 150, 1, 7, String::new()),
        (2, 0, 100, 2, 0, "step 12".to_owned()),
        (4, 0, 150, 2, 0, String::new()),
    ];
    assert_eq!(lines.iter().map(seen).collect::<Vec<_>>(), expected);
    let (back, skipped) = read(&bytes);
    assert!(back == [batch] && skipped.is_empty() && skipped.device_records == 0);
}

/// As the reference system writes them: four records a range with a device, `NULL` where a text is missing.
const FOREIGN: &str = r#"{"Kind":1,"Flag":2,"SourceKind":0,"Timestamp":100,"Id":42,"MsptiObjectId":{"Pt":{"ProcessId":7,"ThreadId":8},"Ds":{"DeviceId":0,"StreamId":0}},"Name":"step 12","Domain":"default"}
{"Kind":1,"Flag":16,"SourceKind":1,"Timestamp":101,"Id":42,"MsptiObjectId":{"Pt":{"ProcessId":0,"ThreadId":0},"Ds":{"DeviceId":3,"StreamId":7}},"Name":"step 12","Domain":"default"}
{"Kind":1,"Flag":2,"SourceKind":0,"Timestamp":102,"Id":43,"MsptiObjectId":{"Pt":{"ProcessId":7,"ThreadId":9},"Ds":{"DeviceId":0,"StreamId":0}},"Name":"{\"streamId\":\"7\",\"count\":\"1024\",\"dataType\":\"bfp16\",\"opName\":\"HcclReduceScatter\",\"groupName\":\"group_name_12\"}","Domain":"communication"}
{"Kind":1,"Flag":4,"SourceKind":0,"Timestamp":103,"Id":43,"MsptiObjectId":{"Pt":{"ProcessId":7,"ThreadId":9},"Ds":{"DeviceId":0,"StreamId":0}},"Name":"NULL","Domain":"NULL"}
{"Kind":1,"Flag":32,"SourceKind":1,"Timestamp":104,"Id":42,"MsptiObjectId":{"Pt":{"ProcessId":0,"ThreadId":0},"Ds":{"DeviceId":3,"StreamId":7}},"Name":"","Domain":""}
{"Kind":1,"Flag":4,"SourceKind":0,"Timestamp":105,"Id":42,"MsptiObjectId":{"Pt":{"ProcessId":7,"ThreadId":8},"Ds":{"DeviceId":0,"StreamId":0}},"Name":"","Domain":""}
{"Kind":1,"Flag":4,"SourceKind":0,"Timestamp":106,"Id":41,"MsptiObjectId":{"Pt":{"ProcessId":7,"ThreadId":8},"Ds":{"DeviceId":0,"StreamId":0}},"Name":"","Domain":""}
{"Kind":2,"Start":1,"End":2,"Ds":{"DeviceId":3,"StreamId":7},"CorrelationId":9,"Type":"KERNEL","Name":"MatMul"}
{"Kind":3,"Start":1,"End":2,"Pt":{"ProcessId":7,"ThreadId":8},"CorrelationId":9,"Name":"NULL"}
{"Kind":1,"Flag":2,"SourceKind":0,"Timestamp":107,"Id":44,"MsptiObjectId":{"Pt":{"ProcessId":7,"ThreadId":9},"Ds":{"Device
{"Kind":1,"Flag":1,"SourceKind":0,"Timestamp":108,"Id":45,"MsptiObjectId":{"Pt":{"ProcessId":7,"ThreadId":8},"Ds":{"DeviceId":0,"StreamId":0}},"Name":"NULL","Domain":"NULL"}
"#;

#[test]
fn files_of_the_reference_are_read() {
    let (batches, skipped) = read(FOREIGN.as_bytes());
    let [batch] = &batches[..] else { panic!("one process, one batch: {batches:?}") };
    assert_eq!((batch.origin.pid, batch.origin.incarnation), (7, Incarnation(1)));
    let kinds: Vec<_> = batch.records.iter().map(|record| (record.kind, record.event, record.unix_nanos)).collect();
    let expected = [
        (Kind::Step, Event::Begin { range: 42 }, 100),
        (Kind::Communication, Event::Begin { range: 43 }, 102),
        (Kind::Communication, Event::End { range: 43 }, 103),
        (Kind::Step, Event::End { range: 42 }, 105),
        (Kind::User(0), Event::Instant, 108),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(batch.records[0].detail, Detail::Step { number: 12, cpu_nanos: 0 });
    let Detail::Communication(communication) = batch.records[1].detail else { panic!("{:?}", batch.records[1]) };
    assert_eq!((communication.op, communication.data_type), (Op::ReduceScatter, DataType::Bf16));
    assert_eq!((communication.elements, communication.bytes, communication.sequence), (1024, 2048, None));
    assert_eq!(batch.names.get(communication.group), "group_name_12");
    assert_eq!((skipped.device_records, skipped.other_records, skipped.unpaired_records), (2, 2, 1));
    let at = FOREIGN.lines().take(9).map(|line| line.len() as u64 + 1).sum();
    let bytes = FOREIGN.lines().nth(9).unwrap().len() as u64 + 1;
    assert_eq!(skipped.problems, [Problem::Damaged { at, bytes }], "a line that was cut at a fixed length");
}

#[test]
fn torn_line_is_reported_and_only_its_record_is_lost() {
    let batches = training(0, 2, 1);
    let bytes = written(&batches);
    let whole = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
    for cut in 0..bytes.len() {
        let (back, skipped) = read(&bytes[..cut]);
        let records: usize = back.iter().map(|batch| batch.records.len()).sum();
        let from = bytes[..cut].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let is_whole = bytes[cut] == b'\n'; // nothing but the end of the line is missing
        assert_eq!(records, whole(&bytes[..cut]) + usize::from(is_whole && cut > from), "cut at {cut}");
        assert_eq!(skipped.is_empty(), cut == from || is_whole, "cut at {cut}");
    }
}

#[test]
fn endless_lines_and_foreign_files_are_reported_as_problems() {
    let mut bytes = vec![b'x'; 3 * LINE_BYTES_MAX];
    bytes.push(b'\n');
    let foreign = bytes.len() as u64;
    assert_eq!(read(&bytes).1.problems, [Problem::Foreign { bytes: foreign }]);
    bytes.extend_from_slice(FOREIGN.as_bytes());
    let (batches, skipped) = read(&bytes);
    assert_eq!(batches[0].records.len(), 5);
    assert_eq!(skipped.problems[0], Problem::Damaged { at: 0, bytes: foreign });
    assert_eq!(read(b"\xff\xfe").1.problems, [Problem::Foreign { bytes: 2 }]);
    assert_eq!(read(b""), (Vec::new(), Skipped::default()));
}

#[test]
fn a_name_without_end_is_refused_and_the_next_batch_is_written() {
    let mut batch = training(0, 1, 1).remove(0);
    let whole = batch.clone();
    batch.names = Arc::new(NameTable::from_iter(["x".repeat(LINE_BYTES_MAX)]));
    let mut writer = CompatibleWriter::new(Vec::new());
    assert_eq!(writer.append(&batch).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    assert!(writer.get_ref().is_empty());
    writer.append(&whole).unwrap();
    assert!(records_of(&read(&writer.into_inner()).0) == records_of(&[whole]));
}
