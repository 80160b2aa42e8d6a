//! Records to be exported: some that a training could have made, and arbitrary ones.

use proptest::prelude::*;
use taskd_core::job::{Incarnation, Rank};
use taskd_core::trace::recorder::{
    Communication, DataType, Detail, DeviceCommunication, DeviceWork, Event, Kind, NameId, Op, USER_KINDS_MAX,
};
use taskd_core::trace::{NameTable, Origin, RecordBatch, TimedRecord};

/// 2026-11-22, in nanoseconds since 1970: no multiple of anything.
pub(crate) const DAY: u64 = 1_795_305_600_123_456_789;

pub(crate) fn origin(rank: u32, incarnation: u32) -> Origin {
    Origin { rank: Rank(rank), incarnation: Incarnation(incarnation), pid: 1 }
}

pub(crate) fn batch(origin: Origin, names: &[&str], records: Vec<TimedRecord>) -> RecordBatch {
    RecordBatch { origin, names: names.iter().collect::<NameTable>().into(), lost: 0, records }
}

/// Returns a record at `after` nanoseconds after [`DAY`].
pub(crate) fn record(after: u64, kind: Kind, event: Event) -> TimedRecord {
    TimedRecord { unix_nanos: DAY + after, thread: 7, kind, event, name: NameId(0), detail: Detail::None }
}

pub(crate) fn begin(after: u64, kind: Kind, range: u64) -> TimedRecord {
    record(after, kind, Event::Begin { range })
}

pub(crate) fn end(after: u64, kind: Kind, range: u64) -> TimedRecord {
    record(after, kind, Event::End { range })
}

/// An `all_reduce` of the group that is called by the second name.
pub(crate) fn all_reduce(sequence: u64) -> Detail {
    Detail::Communication(Communication {
        op: Op::AllReduce,
        data_type: DataType::Bf16,
        group: NameId(2),
        elements: 1024,
        bytes: 2048,
        peer: None,
        sequence: Some(sequence),
    })
}

fn kinds() -> impl Strategy<Value = Kind> {
    let user = (0..USER_KINDS_MAX).prop_map(Kind::User);
    let own = [Kind::Step, Kind::DataLoader, Kind::SaveCheckpoint, Kind::Forward, Kind::Communication];
    let of_devices = [Kind::Kernel, Kind::Copy, Kind::Api, Kind::Marker];
    prop_oneof![4 => prop::sample::select(own.to_vec()), 1 => prop::sample::select(of_devices.to_vec()), 1 => user]
}

/// Few range numbers, so that some begin twice, end twice or end first.
fn events() -> impl Strategy<Value = Event> {
    let range = prop_oneof![9 => 0..6u64, 1 => any::<u64>()];
    prop_oneof![
        4 => range.clone().prop_map(|range| Event::Begin { range }),
        4 => range.prop_map(|range| Event::End { range }),
        1 => Just(Event::Instant),
        2 => prop_oneof![0..9u64, any::<u64>()].prop_map(|nanos| Event::Span { nanos }),
        1 => prop::num::f64::ANY.prop_map(|value| Event::Counter { value }),
    ]
}

fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), Just(u64::MAX - 1), Just(1 << 63), any::<u64>()]
}

fn details() -> impl Strategy<Value = Detail> {
    let step = (extreme(), extreme()).prop_map(|(number, cpu_nanos)| Detail::Step { number, cpu_nanos });
    let codes = (0..14u8, 0..16u8, 0..8u32);
    let figures = (extreme(), extreme(), prop::option::of(0..u32::MAX), prop::option::of(0..u64::MAX));
    let communication = (codes, figures).prop_map(|((op, data_type, group), (elements, bytes, peer, sequence))| {
        let (op, data_type) = (Op::of_code(op), DataType::of_code(data_type));
        Detail::Communication(Communication { op, data_type, group: NameId(group), elements, bytes, peer, sequence })
    });
    let place = || prop_oneof![3 => 0..3u32, 1 => Just(u32::MAX), 1 => any::<u32>()];
    let work = || {
        (place(), place(), extreme(), extreme()).prop_map(|(device, stream, correlation, bytes)| DeviceWork {
            device,
            stream,
            correlation,
            bytes,
        })
    };
    let of_a_device = (0..12u8, 0..14u8, 0..8u32, prop::option::of(0..u32::MAX), work()).prop_map(
        |(op, data_type, group, peer, work)| {
            let (op, data_type, group) = (Op::of_code(op), DataType::of_code(data_type), NameId(group));
            Detail::DeviceCommunication(DeviceCommunication { op, data_type, group, peer, work })
        },
    );
    prop_oneof![Just(Detail::None), step, communication, work().prop_map(Detail::Device), of_a_device]
}

/// Near each other, so that ranges overlap, or anywhere.
fn times() -> impl Strategy<Value = u64> {
    prop_oneof![8 => DAY..DAY + 20, 1 => extreme()]
}

fn records() -> impl Strategy<Value = TimedRecord> {
    (times(), any::<u32>(), kinds(), events(), 0..8u32, details()).prop_map(
        |(unix_nanos, thread, kind, event, name, detail)| TimedRecord {
            unix_nanos,
            thread,
            kind,
            event,
            name: NameId(name),
            detail,
        },
    )
}

/// Names that no program should choose.
fn names() -> impl Strategy<Value = NameTable> {
    let name = prop_oneof![
        any::<String>(),
        prop::sample::select(vec!["", "\"", "\\", "\0\n\u{1b}[2J", "|0-3", "🦀 forward", "a\u{202e}b", "</script>"])
            .prop_map(String::from),
    ];
    prop::collection::vec(name, 0..6).prop_map(|names| names.into_iter().collect())
}

/// Batches of a few processes, in any order, of anything.
pub(crate) fn batches() -> impl Strategy<Value = Vec<RecordBatch>> {
    let rank = prop_oneof![3 => 0..3u32, 1 => Just(u32::MAX)];
    let origin = (rank, 0..2u32, 1..3u32).prop_map(|(rank, incarnation, pid)| Origin {
        rank: Rank(rank),
        incarnation: Incarnation(incarnation),
        pid,
    });
    let lost = prop_oneof![3 => Just(0), 1 => extreme()];
    let batch = (origin, names(), lost, prop::collection::vec(records(), 0..24));
    let batch =
        batch.prop_map(|(origin, names, lost, records)| RecordBatch { origin, names: names.into(), lost, records });
    prop::collection::vec(batch, 0..8)
}
