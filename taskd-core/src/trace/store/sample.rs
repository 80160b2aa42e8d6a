//! Records as training leaves them, made up: for tests and measurements of what stores, exports or reduces them.
//!
//! It measures nothing itself. One seed always gives the same records.

use crate::job::{Incarnation, Rank};
use crate::trace::recorder::{Communication, DataType, Detail, Event, Kind, NameId, Op};
use crate::trace::{NameTable, Origin, RecordBatch, TimedRecord};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

/// Data-parallel training: every rank's steps with data loading, forward pass, the all-reduces of its gradients from the
/// backward pass's own thread, and their ends from a third one.
#[derive(Clone, Copy, Debug)]
pub struct Training {
    /// How many ranks.
    pub ranks: u32,
    /// All-reduces of a step.
    pub buckets: u32,
    /// The length of a step; every part of it varies by a tenth either way.
    pub step: Duration,
    /// What the variation is drawn from.
    pub seed: u64,
}

impl Default for Training {
    /// Four ranks, five all-reduces a step, steps of 100 ms.
    fn default() -> Training {
        Training { ranks: 4, buckets: 5, step: Duration::from_millis(100), seed: 1 }
    }
}

const NAMES: [&str; 3] = ["forward", "allreduce", "default|0-3"];
const FORWARD: NameId = NameId(1);
const ALL_REDUCE: NameId = NameId(2);
const GROUP: NameId = NameId(3);
/// When training began, in nanoseconds since 1970.
const BEGAN: u64 = 1_790_000_000_123_456_789;

impl Training {
    /// The records of so many steps of a rank, in batches of so many steps.
    pub fn batches(self, rank: u32, steps: u64, steps_per_batch: u64) -> impl Iterator<Item = RecordBatch> {
        let origin = Origin { rank: Rank(rank), incarnation: Incarnation(1), pid: 4000 + rank };
        let names = Arc::new(NameTable::from_iter(NAMES));
        let mut process = Process::begin(self, rank);
        let starts = (0..steps).step_by(usize::try_from(steps_per_batch.max(1)).unwrap_or(usize::MAX));
        starts.map(move |first| {
            (first..steps.min(first + steps_per_batch)).for_each(|step| process.step(step));
            let records = process.threads.iter_mut().flat_map(|thread| std::mem::take(&mut thread.records)).collect();
            RecordBatch { origin, names: Arc::clone(&names), lost: 0, records }
        })
    }
}

/// A rank's process at one moment of its training.
struct Process {
    training: Training,
    random: StdRng,
    now: u64,
    calls: u64,
    threads: [Thread; 3],
}

struct Thread {
    id: u32,
    claim: u64,
    ranges: u64,
    records: Vec<TimedRecord>,
}

impl Process {
    fn begin(training: Training, rank: u32) -> Process {
        let id = 4000 + rank;
        let thread =
            |claim: u32| Thread { id: id + 100 * claim, claim: u64::from(claim) + 1, ranges: 0, records: Vec::new() };
        let random = StdRng::seed_from_u64(training.seed ^ u64::from(rank) << 32);
        Process { training, random, now: BEGAN, calls: 0, threads: [0, 1, 2].map(thread) }
    }

    /// Lets part of a step pass, in thousandths of it.
    fn pass(&mut self, permille: u64) {
        let nanos = u64::try_from(self.training.step.as_nanos()).unwrap_or(u64::MAX) / 1000 * permille;
        self.now += nanos - nanos / 10 + self.random.random_range(0..=nanos / 5);
    }

    fn step(&mut self, number: u64) {
        let of_step = |cpu_nanos| Detail::Step { number, cpu_nanos };
        let step = self.begin_range(0, Kind::Step, NameId(0), of_step(0));
        let loader = self.begin_range(0, Kind::DataLoader, NameId(0), Detail::None);
        self.pass(20);
        self.end_range(0, Kind::DataLoader, loader, Detail::None);
        let forward = self.begin_range(0, Kind::Forward, FORWARD, Detail::None);
        self.pass(280);
        self.end_range(0, Kind::Forward, forward, Detail::None);
        let mut under_way = None;
        for bucket in 0..self.training.buckets {
            self.pass(550 / u64::from(self.training.buckets));
            let before = under_way.replace(self.call(bucket));
            self.pass(10);
            before.into_iter().for_each(|range| self.end_range(2, Kind::Communication, range, Detail::None));
        }
        self.pass(60);
        under_way.into_iter().for_each(|range| self.end_range(2, Kind::Communication, range, Detail::None));
        self.pass(30);
        let cpu_nanos = self.random.random_range(60_000_000..80_000_000);
        self.end_range(0, Kind::Step, step, of_step(cpu_nanos));
    }

    /// Begins an all-reduce.
    fn call(&mut self, bucket: u32) -> u64 {
        let elements = 1_000_000 + u64::from(bucket) * 65_536;
        let communication = Communication {
            op: Op::AllReduce,
            data_type: DataType::F32,
            group: GROUP,
            elements,
            bytes: 4 * elements,
            peer: None,
            sequence: Some(self.calls),
        };
        self.calls += 1;
        self.begin_range(1, Kind::Communication, ALL_REDUCE, Detail::Communication(communication))
    }

    fn begin_range(&mut self, thread: usize, kind: Kind, name: NameId, detail: Detail) -> u64 {
        let Thread { claim, ranges, .. } = &mut self.threads[thread];
        *ranges += 1;
        let range = u64::from(kind.number()) << 58 | *claim << 36 | *ranges;
        self.record(thread, kind, Event::Begin { range }, name, detail);
        range
    }

    fn end_range(&mut self, thread: usize, kind: Kind, range: u64, detail: Detail) {
        self.record(thread, kind, Event::End { range }, NameId(0), detail);
    }

    fn record(&mut self, thread: usize, kind: Kind, event: Event, name: NameId, detail: Detail) {
        self.now += self.random.random_range(2_000..20_000);
        let thread = &mut self.threads[thread];
        thread.records.push(TimedRecord { unix_nanos: self.now, thread: thread.id, kind, event, name, detail });
    }
}
