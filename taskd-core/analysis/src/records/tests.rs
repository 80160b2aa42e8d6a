use super::*;
use crate::model::{Event, GroupRole, Kind, StepSpan};
use std::sync::Arc;
use taskd_runtime::job::Rank;
use taskd_runtime::trace::recorder::{self, DataType, Detail, NameId, Op};
use taskd_runtime::trace::{NameTable, Origin, TimedRecord};

const ORIGIN: Origin = Origin { rank: Rank(3), incarnation: Incarnation(1), pid: 77 };

fn record(unix_nanos: u64, kind: recorder::Kind, event: recorder::Event) -> TimedRecord {
    TimedRecord { unix_nanos, thread: 9, kind, event, name: NameId(0), detail: Detail::None }
}

fn batch(origin: Origin, names: &NameTable, records: Vec<TimedRecord>) -> RecordBatch {
    RecordBatch { origin, names: Arc::new(names.clone()), lost: 0, records }
}

fn pair(kind: recorder::Kind, range: u64, from: u64, to: u64, detail: Detail) -> [TimedRecord; 2] {
    let begin = TimedRecord { detail, ..record(from, kind, recorder::Event::Begin { range }) };
    [begin, record(to, kind, recorder::Event::End { range })]
}

fn all_reduce(group: NameId) -> Detail {
    let (op, data_type) = (Op::AllReduce, DataType::F32);
    let what = recorder::Communication { op, data_type, group, elements: 2, bytes: 8, peer: None, sequence: Some(5) };
    Detail::Communication(what)
}

#[test]
fn ranges_become_events_on_one_axis() {
    let mut names = NameTable::default();
    let group = names.push("dp#2|1-3:2");
    let step = pair(recorder::Kind::Step, 1, 1_000, 9_000, Detail::Step { number: 17, cpu_nanos: 0 });
    let forward = pair(recorder::Kind::Forward, 2, 1_500, 3_000, Detail::None);
    let reduce = pair(recorder::Kind::Communication, 3, 4_000, 8_000, all_reduce(group));
    let mut records = Records::default();
    let all = [step[0], forward[0], forward[1], reduce[0], reduce[1], step[1]];
    records.take(&batch(ORIGIN, &names, all.to_vec()));
    let trace = records.finish("job");
    assert_eq!((trace.began_unix_ns, trace.missing.len()), (Some(1_000), 0));
    let rank = &trace.ranks[&3];
    assert_eq!(rank.steps, [StepSpan { number: 17, start_ns: 0, duration_ns: 8_000 }]);
    let spans: Vec<_> = rank.events.iter().map(|e| (e.kind, e.start_ns, e.duration_ns, e.lane)).collect();
    assert_eq!(spans, [(Kind::Forward, 500, 1_500, 9), (Kind::Collective, 3_000, 4_000, 9)]);
    let details = &rank.communications[rank.events[1].communication.expect("it is a collective") as usize];
    assert_eq!((rank.names.get(details.operation), details.sequence, details.bytes), ("all_reduce", Some(5), 8));
    let group = &rank.groups[details.group.expect("it has a group") as usize];
    assert_eq!((&*group.name, group.role, &*group.members), ("dp#2", GroupRole::Data, &[1, 3][..]));
}

#[test]
fn a_killed_process_leaves_its_pending_collective_until_its_last_record() {
    let mut names = NameTable::default();
    let group = names.push("0");
    let step = pair(recorder::Kind::Step, 1, 1_000, 0, Detail::Step { number: 4, cpu_nanos: 0 });
    let reduce = pair(recorder::Kind::Communication, 2, 2_000, 0, all_reduce(group));
    let forward = pair(recorder::Kind::Forward, 3, 2_500, 3_500, Detail::None);
    let mut records = Records::default();
    records.take(&batch(ORIGIN, &names, vec![step[0], reduce[0], forward[0], forward[1]]));
    let trace = records.finish("job");
    let rank = &trace.ranks[&3];
    assert!(rank.steps.is_empty(), "a step without an end has no length");
    let collective = rank.events.iter().find(|event| event.kind == Kind::Collective).expect("it is kept");
    assert_eq!((collective.start_ns, collective.end_ns()), (0, 1_500));
    assert_eq!(trace.missing.len(), 1);
    assert!(trace.missing[0].what.starts_with("rank 3: 2 ranges have no end"), "{:?}", trace.missing);
}

#[test]
fn work_of_the_device_is_on_its_stream_and_orphan_ends_are_counted() {
    let mut names = NameTable::default();
    let name = names.push("gemm");
    let work = recorder::DeviceWork { device: 1, stream: 7, correlation: 3, bytes: 0 };
    let kernel = TimedRecord {
        name,
        detail: Detail::Device(work),
        ..record(5_000, recorder::Kind::Kernel, recorder::Event::Span { nanos: 300 })
    };
    let orphan = record(6_000, recorder::Kind::Forward, recorder::Event::End { range: 99 });
    let restarted = Origin { incarnation: Incarnation(2), pid: 78, ..ORIGIN };
    let mut records = Records::default();
    records.take(&batch(ORIGIN, &names, vec![kernel]));
    records.take(&RecordBatch { lost: 6, ..batch(restarted, &names, vec![orphan]) });
    let trace = records.finish("job");
    let rank = &trace.ranks[&3];
    let Event { kind, lane, duration_ns, name, .. } = rank.events[0];
    assert_eq!((kind, lane, duration_ns, rank.names.get(name)), (Kind::Compute, 7, 300, "gemm"));
    let missing: Vec<_> = trace.missing.iter().map(|missing| &*missing.what).collect();
    assert!(missing[0].starts_with("rank 3: 1 ends of ranges have no beginning"), "{missing:?}");
    assert!(missing[1].starts_with("rank 3: 6 records were lost"), "{missing:?}");
}
