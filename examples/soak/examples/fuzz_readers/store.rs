//! taskd's own stores: files in both formats, and batches of records of which some fields are damaged, to a trace.

use super::random::Random;
use super::{Outcome, Target, mutate};
use std::sync::Arc;
use taskd_core::analysis::records::Records;
use taskd_core::job::{Incarnation, Rank};
use taskd_core::trace::recorder::{Communication, DataType, Detail, DeviceWork, Event, Kind, NameId, Op};
use taskd_core::trace::store::compatible::{CompatibleReader, CompatibleWriter};
use taskd_core::trace::store::native::{NativeHead, NativeReader, NativeWriter};
use taskd_core::trace::{NameTable, Origin, RecordBatch, TimedRecord};
use taskd_examples::program::Failure;

struct Store {
    batch: RecordBatch,
    native: Vec<Vec<u8>>,
    compatible: Vec<Vec<u8>>,
}

const ORIGIN: Origin = Origin { rank: Rank(3), incarnation: Incarnation(1), pid: 77 };

/// A step with each form of record.
fn batch() -> RecordBatch {
    let mut names = NameTable::default();
    let (group, kernel) = (names.push("dp#2|1-3:2"), names.push("gemm"));
    let record = |unix_nanos: u64, kind: Kind, event: Event, detail: Detail| TimedRecord {
        unix_nanos: 1_790_857_026_000_000_000 + unix_nanos,
        thread: 9,
        kind,
        event,
        name: kernel,
        detail,
    };
    let step = Detail::Step { number: 17, cpu_nanos: 0 };
    let reduce = Communication {
        op: Op::AllReduce,
        data_type: DataType::F32,
        group,
        elements: 2,
        bytes: 8,
        peer: Some(1),
        sequence: Some(5),
    };
    let work = DeviceWork { device: 0, stream: 7, correlation: 4, bytes: 64 };
    let records = vec![
        record(1_000, Kind::Step, Event::Begin { range: 1 }, step),
        record(1_500, Kind::Forward, Event::Begin { range: 2 }, Detail::None),
        record(2_000, Kind::Communication, Event::Span { nanos: 700 }, Detail::Device(work)),
        record(3_000, Kind::Forward, Event::End { range: 2 }, Detail::None),
        record(4_000, Kind::Communication, Event::Begin { range: 3 }, Detail::Communication(reduce)),
        record(8_000, Kind::Communication, Event::End { range: 3 }, Detail::None),
        record(8_500, Kind::Step, Event::Counter { value: 2.0 }, Detail::None),
        record(9_000, Kind::Step, Event::End { range: 1 }, Detail::None),
    ];
    RecordBatch { origin: ORIGIN, names: Arc::new(names), lost: 0, records }
}

pub(crate) fn target() -> Result<Box<dyn Target>, Failure> {
    let batch = batch();
    let mut native = NativeWriter::create(Vec::new(), &NativeHead { job: "job".into(), origin: ORIGIN })?;
    native.append(&batch)?;
    let mut compatible = CompatibleWriter::new(Vec::new());
    compatible.append(&batch)?;
    compatible.flush()?;
    Ok(Box::new(Store { batch, native: vec![native.into_inner()], compatible: vec![compatible.into_inner()] }))
}

fn damage(random: &mut Random, batch: &mut RecordBatch) {
    if batch.records.is_empty() {
        return;
    }
    let at = random.below(batch.records.len());
    let number = random.extreme();
    let other = batch.records[random.below(batch.records.len())];
    let Some(record) = batch.records.get_mut(at) else { return };
    match random.below(12) {
        0 => record.unix_nanos = number,
        1 => record.event = Event::Span { nanos: number },
        2 => record.event = Event::Begin { range: number % 5 },
        3 => record.event = Event::End { range: number % 5 },
        4 => record.event = Event::Counter { value: f64::from_bits(random.next()) },
        5 => record.kind = other.kind,
        6 => record.detail = other.detail,
        7 => record.name = NameId(random.next().to_le_bytes()[0].into()),
        8 => record.detail = Detail::Step { number, cpu_nanos: random.extreme() },
        9 => _ = batch.records.remove(at),
        10 => batch.records.push(other),
        _ => damage_detail(random, record),
    }
    if random.is_one_in(8) {
        batch.lost = random.extreme();
    }
}

fn damage_detail(random: &mut Random, record: &mut TimedRecord) {
    if let Detail::Communication(details) = &mut record.detail {
        match random.below(4) {
            0 => details.bytes = random.extreme(),
            1 => details.sequence = Some(random.extreme()),
            2 => details.peer = Some(u32::try_from(random.extreme() >> 32).unwrap_or_default()),
            _ => details.group = NameId(random.next().to_le_bytes()[0].into()),
        }
    }
}

impl Target for Store {
    fn case(&mut self, random: &mut Random) -> Outcome {
        let mut records = Records::default();
        let mut messages = Vec::new();
        match random.below(4) {
            0 => {
                let input = mutate::bytes(random, &self.native[0], &self.native);
                let mut reader = NativeReader::new(&input[..]);
                reader.by_ref().for_each(|batch| records.take(&batch));
                messages.extend(reader.skipped().problems.iter().map(ToString::to_string));
            }
            1 => {
                let input = mutate::bytes(random, &self.compatible[0], &self.compatible);
                let mut reader = CompatibleReader::new(&input[..], Rank(3));
                reader.by_ref().for_each(|batch| records.take(&batch));
                messages.extend(reader.skipped().problems.iter().map(ToString::to_string));
            }
            _ => {
                for _ in 0..=random.below(3) {
                    let mut batch = self.batch.clone();
                    batch.origin.incarnation = Incarnation(if random.is_one_in(2) { 1 } else { 2 });
                    for _ in 0..=random.below(4) {
                        damage(random, &mut batch);
                    }
                    records.take(&batch);
                }
            }
        }
        let trace = records.finish("job");
        messages.extend(trace.missing.into_iter().map(|missing| missing.what));
        if messages.is_empty() { Outcome::Whole } else { Outcome::Part(messages) }
    }

    fn is_clear(&self, message: &str) -> bool {
        // The reader of a directory names the file before the problem.
        ["rank ", "byte ", "not a file of records", "format version"].iter().any(|place| message.contains(place))
    }
}
