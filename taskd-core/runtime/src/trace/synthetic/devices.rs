//! Records of a simulated job on devices: processes that launch work, and devices that do it and report it later.
//!
//! The simulated devices are a stand-in for the vendors' trace interfaces, and no device has been near their records.

use super::mix;
use crate::job::{Incarnation, Rank};
use crate::trace::recorder::{DataType, Detail, DeviceCommunication, DeviceWork, Event, Kind, NameId, Op};
use crate::trace::{NameTable, Origin, Pace, RecordBatch, StoredSource, TimedRecord};
use std::sync::Arc;

/// Start of the simulation, in nanoseconds since 1970.
const BEGIN: u64 = 1_700_000_000_000_000_000;
const MS: u64 = 1_000_000;
/// Number of kernels of a step. Each second one runs on another stream as well.
const KERNELS: u64 = 20;
/// Usual computation of a device in a step.
const COMPUTE: u64 = 100 * MS;
/// Duration of an all-reduce once all devices have reached it.
const TRANSFER: u64 = 8 * MS;
/// Time in which a process launches the work of a step.
const LAUNCH: u64 = 12 * MS;
/// Number of steps that a process may be ahead of its device.
const AHEAD: usize = 2;
/// Random deviation of a kernel's duration, in permille.
const JITTER: u64 = 20;
/// Time from the end of an activity to its delivery.
const DELIVERY: u64 = 700 * MS;

const GEMM: NameId = NameId(1);
const ALL_REDUCE: NameId = NameId(2);
const GROUP: NameId = NameId(3);
const COPY: NameId = NameId(4);

/// What the processes of a [`SyntheticDevices`] do after they have launched the work of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceHost {
    /// They return at once, and are up to two steps ahead of their devices.
    ReturnsEarly,
    /// They wait until their device has done the work: the steps of all ranks then look equal.
    WaitsForDevice,
}

/// A simulated data-parallel job on one device per rank: kernels on two streams, and an all-reduce that ends on all
/// devices together. Activity of the devices is delivered 0.7 s after its end, the latest first.
#[derive(Clone, Debug)]
pub struct SyntheticDevices {
    ranks: u32,
    seed: u64,
    steps: u64,
    host: DeviceHost,
    slow: Option<(Rank, u64, u64)>,
    without: Option<Rank>,
}

impl SyntheticDevices {
    /// Creates a job with this number of ranks (at least 1) and 200 steps, with seed 1.
    #[must_use]
    pub fn new(ranks: u32, host: DeviceHost) -> SyntheticDevices {
        SyntheticDevices { ranks: ranks.max(1), seed: 1, steps: 200, host, slow: None, without: None }
    }

    /// Sets the seed of the random numbers. The same job with the same seed gives the same records.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> SyntheticDevices {
        self.seed = seed;
        self
    }

    /// Sets the number of steps.
    #[must_use]
    pub const fn steps(mut self, steps: u64) -> SyntheticDevices {
        self.steps = steps;
        self
    }

    /// Makes the kernels of a rank's device take `percent` percent longer from a step on.
    #[must_use]
    pub const fn slow(mut self, rank: Rank, from_step: u64, percent: u64) -> SyntheticDevices {
        self.slow = Some((rank, from_step, percent));
        self
    }

    /// Leaves out all activity of a rank's device, as without the vendor's trace interface.
    #[must_use]
    pub const fn without_spans(mut self, rank: Rank) -> SyntheticDevices {
        self.without = Some(rank);
        self
    }

    /// Runs the simulation: one batch per rank and step, and a last one per rank.
    pub fn run(self) -> impl Iterator<Item = RecordBatch> + Send + use<> {
        let names = ["gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "default|0", "memcpy host to device"];
        let names: Arc<NameTable> = Arc::new(names.into_iter().collect());
        let mut timeline = Timeline::of(&self);
        (1..=self.steps + 1).flat_map(move |step| {
            timeline.batches(&self, step).into_iter().zip(0..).map({
                let names = Arc::clone(&names);
                move |(records, rank)| {
                    let origin = Origin { rank: Rank(rank), incarnation: Incarnation(1), pid: 1000 + rank };
                    RecordBatch { origin, names: Arc::clone(&names), lost: 0, records }
                }
            })
        })
    }

    /// Runs the job in real time, as a trace source that is marked as a [stand-in](crate::trace::SourceInfo::stand_in).
    #[must_use]
    pub fn source(self) -> StoredSource<Box<dyn Iterator<Item = RecordBatch> + Send>> {
        let batches: Box<dyn Iterator<Item = RecordBatch> + Send> = Box::new(self.run());
        StoredSource::new(batches).named("synthetic-devices").pace(Pace::RealTime).lingering().stand_in()
    }

    /// Returns the duration of one kernel.
    fn kernel(&self, rank: u32, step: u64, kernel: u64) -> u64 {
        let drawn = [u64::from(rank), step, kernel].into_iter().fold(mix(self.seed), |state, part| mix(state ^ part));
        let permille = 1000 - JITTER + drawn % (2 * JITTER + 1);
        let percent = match self.slow {
            Some((slow, from_step, percent)) if slow.0 == rank && step >= from_step => 100 + percent,
            _ => 100,
        };
        COMPUTE / KERNELS * permille / 1000 * percent / 100
    }
}

/// State of the simulation.
#[derive(Debug)]
struct Timeline {
    /// Times at which the devices began their latest steps.
    begins: Vec<u64>,
    /// Activity that is not delivered yet, by rank.
    pending: Vec<Vec<TimedRecord>>,
    /// Time at which each process began its latest step ends.
    free: u64,
}

impl Timeline {
    fn of(job: &SyntheticDevices) -> Timeline {
        Timeline { begins: vec![BEGIN], pending: vec![Vec::new(); job.ranks as usize], free: BEGIN }
    }

    /// Returns the records of a step, by rank; of the one after the last, the activity that is still to be delivered.
    fn batches(&mut self, job: &SyntheticDevices, step: u64) -> Vec<Vec<TimedRecord>> {
        if step > job.steps {
            return std::mem::take(&mut self.pending);
        }
        let at = |back: usize| self.begins.len().checked_sub(back + 1).and_then(|at| self.begins.get(at)).copied();
        let launched = match job.host {
            DeviceHost::ReturnsEarly => self.free.max(at(AHEAD).unwrap_or(BEGIN)),
            DeviceHost::WaitsForDevice => at(0).unwrap_or(BEGIN),
        };
        let begin = at(0).unwrap_or(BEGIN).max(launched + MS);
        let end = self.work(job, step, begin);
        let returned = match job.host {
            DeviceHost::ReturnsEarly => launched + LAUNCH,
            DeviceHost::WaitsForDevice => end,
        };
        (self.free, self.begins) =
            (returned, self.begins.iter().copied().rev().take(AHEAD).rev().chain([end]).collect());
        let deliver = |pending: &mut Vec<TimedRecord>| {
            let mut records = range(launched, returned, step);
            let delivered = pending.extract_if(.., |span| end_of(span) + DELIVERY <= returned);
            let mut delivered: Vec<TimedRecord> = delivered.collect();
            delivered.reverse();
            records.extend(delivered);
            records
        };
        self.pending.iter_mut().map(deliver).collect()
    }

    /// Does the work of all devices in a step, and returns its end.
    fn work(&mut self, job: &SyntheticDevices, step: u64, begin: u64) -> u64 {
        let mut reached = Vec::new();
        for (rank, pending) in (0..).zip(&mut self.pending) {
            let is_traced = job.without != Some(Rank(rank));
            let mut now = begin;
            let mut record = |span| {
                if is_traced {
                    pending.push(span)
                }
            };
            record(copy(now, now + MS));
            for number in 0..KERNELS {
                let end = now + job.kernel(rank, step, number);
                record(kernel(7, now, end));
                if number % 2 == 1 {
                    record(kernel(8, now + MS, end)); // on another stream at the same time
                }
                now = end;
            }
            reached.push(now);
        }
        let end = reached.iter().copied().max().unwrap_or(begin) + TRANSFER;
        for ((rank, pending), from) in (0..).zip(&mut self.pending).zip(reached) {
            if job.without != Some(Rank(rank)) {
                pending.push(all_reduce(from - 5 * MS, end)); // beside the last kernel at first
            }
        }
        end
    }
}

fn end_of(span: &TimedRecord) -> u64 {
    let Event::Span { nanos } = span.event else { return span.unix_nanos };
    span.unix_nanos + nanos
}

/// Returns the records of a step of a process.
fn range(begin: u64, end: u64, number: u64) -> Vec<TimedRecord> {
    let range = u64::from(Kind::Step.number()) << 58 | number;
    let record = |unix_nanos, event| {
        let detail = Detail::Step { number, cpu_nanos: LAUNCH };
        TimedRecord { unix_nanos, thread: 1, kind: Kind::Step, event, name: NameId(0), detail }
    };
    vec![record(begin, Event::Begin { range }), record(end, Event::End { range })]
}

fn span(kind: Kind, name: NameId, begin: u64, end: u64, detail: Detail) -> TimedRecord {
    TimedRecord { unix_nanos: begin, thread: 0, kind, event: Event::Span { nanos: end - begin }, name, detail }
}

const fn on_stream(stream: u32) -> DeviceWork {
    DeviceWork { device: 0, stream, correlation: 0, bytes: 0 }
}

fn kernel(stream: u32, begin: u64, end: u64) -> TimedRecord {
    span(Kind::Kernel, GEMM, begin, end, Detail::Device(on_stream(stream)))
}

fn copy(begin: u64, end: u64) -> TimedRecord {
    span(Kind::Copy, COPY, begin, end, Detail::Device(on_stream(9)))
}

fn all_reduce(begin: u64, end: u64) -> TimedRecord {
    let (op, data_type, group, work) = (Op::AllReduce, DataType::F32, GROUP, on_stream(10));
    let detail = Detail::DeviceCommunication(DeviceCommunication { op, data_type, group, peer: None, work });
    span(Kind::Communication, ALL_REDUCE, begin, end, detail)
}
