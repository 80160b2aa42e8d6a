//! Batches of every sort, and how they are compared.

use proptest::prelude::*;
use std::sync::Arc;
use taskd_core::job::{Incarnation, Rank};
use taskd_core::trace::recorder::{
    Communication, DataType, Detail, DeviceCommunication, DeviceWork, Event, Kind, NameId, Op,
};
use taskd_core::trace::synthetic::SyntheticJob;
use taskd_core::trace::{NameTable, Origin, RecordBatch, TimedRecord};

/// Returns the records of a rank, in batches of `steps_per_batch` steps, each thread by thread as in the recorder.
pub(crate) fn of_job(job: SyntheticJob, rank: u32, steps_per_batch: usize) -> Vec<RecordBatch> {
    let steps: Vec<RecordBatch> = job.run().filter(|batch| batch.origin.rank == Rank(rank)).collect();
    let together = |steps: &[RecordBatch]| {
        let mut records: Vec<TimedRecord> = steps.iter().flat_map(|step| step.records.clone()).collect();
        records.sort_by_key(|record| record.thread);
        RecordBatch { records, ..steps[0].clone() }
    };
    steps.chunks(steps_per_batch).map(together).collect()
}

/// What a rank of data-parallel training records.
pub(crate) fn training(rank: u32, steps: u64, steps_per_batch: usize) -> Vec<RecordBatch> {
    of_job(SyntheticJob::new(4).steps(steps), rank, steps_per_batch)
}

/// How a record shows itself, so that figures which are no numbers can be compared too.
pub(crate) fn shown(batches: &[RecordBatch]) -> Vec<String> {
    let one = |batch: &RecordBatch| {
        let origin = format!("{:?} lost {} names {:?}", batch.origin, batch.lost, batch.names);
        let records = batch.records.iter().map(|record| match record.event {
            Event::Counter { value } => format!("{record:?} {:x}", value.to_bits()),
            _ => format!("{record:?}"),
        });
        std::iter::once(origin).chain(records).collect::<Vec<_>>()
    };
    batches.iter().flat_map(one).collect()
}

/// Numbers as they come, and such as are at the edge of something.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..300u64, any::<u64>(), Just(u64::MAX), (0..64u32).prop_map(|bit| 1 << bit)]
}

fn small() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..6u32, 1 => any::<u32>()]
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![(1..=9u8), (16..64u8)].prop_map(|number| Kind::of_number(number).unwrap())
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        number().prop_map(|range| Event::Begin { range }),
        number().prop_map(|range| Event::End { range }),
        Just(Event::Instant),
        number().prop_map(|nanos| Event::Span { nanos }),
        any::<u64>().prop_map(|bits| Event::Counter { value: f64::from_bits(bits) }),
        (-3..100i32).prop_map(|value| Event::Counter { value: value.into() }),
    ]
}

fn detail() -> impl Strategy<Value = Detail> {
    let work = || {
        (small(), small(), number(), number()).prop_map(|(device, stream, correlation, bytes)| DeviceWork {
            device,
            stream,
            correlation,
            bytes,
        })
    };
    let of_a_device =
        (0..=11u8, 0..=13u8, small(), any::<Option<u32>>(), work()).prop_map(|(op, data_type, group, peer, work)| {
            let (op, data_type, group) = (Op::of_code(op), DataType::of_code(data_type), NameId(group));
            Detail::DeviceCommunication(DeviceCommunication { op, data_type, group, peer, work })
        });
    let communication = (0..=11u8, 0..=13u8, small(), number(), number(), any::<Option<u32>>(), any::<Option<u64>>());
    prop_oneof![
        Just(Detail::None),
        (number(), number()).prop_map(|(number, cpu_nanos)| Detail::Step { number, cpu_nanos }),
        communication.prop_map(|(op, data_type, group, elements, bytes, peer, sequence)| {
            let (op, data_type, group) = (Op::of_code(op), DataType::of_code(data_type), NameId(group));
            Detail::Communication(Communication { op, data_type, group, elements, bytes, peer, sequence })
        }),
        work().prop_map(Detail::Device),
        of_a_device,
    ]
}

fn record() -> impl Strategy<Value = TimedRecord> {
    (number(), small(), kind(), event(), small(), detail()).prop_map(
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

/// A batch of anything.
pub(crate) fn batch() -> impl Strategy<Value = RecordBatch> {
    let names = prop::collection::vec(any::<String>(), 0..5);
    let origin = (0..3u32, 0..3u32, any::<u32>());
    (origin, names, number(), prop::collection::vec(record(), 0..40)).prop_map(|(origin, names, lost, records)| {
        let origin = Origin { rank: Rank(origin.0), incarnation: Incarnation(origin.1), pid: origin.2 };
        RecordBatch { origin, names: Arc::new(NameTable::from_iter(names)), lost, records }
    })
}

/// Several batches of several processes, some of which grow by some names.
pub(crate) fn batches() -> impl Strategy<Value = Vec<RecordBatch>> {
    prop::collection::vec((batch(), any::<bool>()), 0..8).prop_map(|batches| {
        let mut all: Vec<RecordBatch> = Vec::new();
        for (mut batch, goes_on) in batches {
            if let Some(last) = all.last().filter(|_| goes_on) {
                let (old, new) = (last.names.iter(), batch.names.iter());
                batch.names = Arc::new(old.chain(new).map(|(_, name)| name.to_owned()).collect());
                batch.origin = last.origin;
            }
            all.push(batch);
        }
        all
    })
}
