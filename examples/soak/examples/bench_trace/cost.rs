//! CPU time of a record in the thread that makes it.

use super::rivals::{Fastrace, Tracing};
use serde::Serialize;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taskd_core::trace::recorder::{
    Detail, Event, Kind, NameId, Recorder, RecorderConfig, RecorderReader, Switches, ThreadRecorder,
};
use taskd_examples::program::Failure;
use taskd_examples::samples::Samples;

/// Records in a ring: more than are made between two reads.
const RING: usize = 1 << 18;
/// The interval at which the live drain reads records.
pub(crate) const DRAIN_EVERY: Duration = Duration::from_millis(1);

/// CPU time of a thread in nanoseconds, each the median of all rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    record_ns_1thread: f64,
    range_ns_1thread: f64,
    record_ns_2threads: f64,
    disabled_ns: f64,
    fastrace_span_ns: f64,
    tracing_span_ns: f64,
    /// The clock alone, as the recorder reads it.
    clock_ns: f64,
}

/// Measures, prints a table, and returns the figures.
pub(crate) fn measure(quick: bool) -> Result<Figures, Failure> {
    let (rounds, times) = if quick { (3, 1_000) } else { (51, 100_000) };
    let [mut record, mut range, mut pair, mut disabled, mut clock] = std::array::from_fn(|_| Samples::default());
    let (fastrace, tracing) = (Fastrace::start(), Tracing::start());
    let (mut fastrace_ns, mut tracing_ns) = (Samples::default(), Samples::default());
    let live = Live::start()?;
    let name = live.recorder.name("forward");
    live.drained(|| {
        let mut thread = live.recorder.thread();
        for _ in 0..rounds {
            live.recorder.switch(Switches::ALL);
            record.push(per_one(times, || instant(&mut thread, name)));
            range.push(per_one(times, || {
                let range = black_box(thread.begin(Kind::Forward, name, Detail::None));
                if let Some(range) = range {
                    thread.end(range);
                }
            }));
            fastrace_ns.push(fastrace.per_span(times));
            tracing_ns.push(tracing.per_span(times));
            live.recorder.switch(Switches::NONE);
            disabled.push(per_one(times, || instant(&mut thread, name)));
            clock.push(per_one(times, || _ = black_box(live.recorder.clock().ticks())));
        }
        drop(thread);
        live.recorder.switch(Switches::ALL);
        for _ in 0..rounds {
            two_at_once(&live.recorder, times).into_iter().for_each(|ns| pair.push(ns));
        }
    });
    println!("\nnanoseconds of its thread's own time, {rounds} rounds of {times}, in turns: median (least to most)");
    println!("records are read every {DRAIN_EVERY:?}\n");
    println!("| what | taskd | fastrace | tracing, kept |\n|---|---|---|---|");
    println!("| a record | {record} | | |");
    println!("| a range (taskd: two records), a span | {range} | {fastrace_ns} | {tracing_ns} |");
    println!("| a record, of two threads that record at once | {pair} | | |");
    println!("| a record of a kind that is off | {disabled} | | |");
    println!("| the clock alone | {clock} | | |");
    Ok(Figures {
        record_ns_1thread: record.median(),
        range_ns_1thread: range.median(),
        record_ns_2threads: pair.median(),
        disabled_ns: disabled.median(),
        fastrace_span_ns: fastrace_ns.median(),
        tracing_span_ns: tracing_ns.median(),
        clock_ns: clock.median(),
    })
}

#[inline]
fn instant(thread: &mut ThreadRecorder<'_>, name: NameId) {
    black_box(thread.record(Kind::Forward, Event::Instant, name, Detail::None));
}

/// Returns the CPU time of this thread for one call of `what`, in nanoseconds, as the mean of `times` calls.
pub(crate) fn per_one(times: u32, mut what: impl FnMut()) -> f64 {
    let before = cpu_nanos();
    for _ in 0..times {
        what();
    }
    (cpu_nanos() - before) as f64 / f64::from(times)
}

pub(crate) fn cpu_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Records in two threads at the same time; returns the cost of a record in each.
fn two_at_once(recorder: &Recorder, times: u32) -> [f64; 2] {
    let begin = Barrier::new(2);
    let one = || {
        let mut thread = recorder.thread();
        begin.wait();
        per_one(times, || instant(&mut thread, NameId(0)))
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(one);
        [one(), other.join().unwrap_or(f64::NAN)]
    })
}

/// A recorder whose records are read while they are made.
struct Live {
    recorder: Recorder,
    memory: std::fs::File,
}

impl Live {
    fn start() -> Result<Live, Failure> {
        let config = RecorderConfig { records_per_thread: RING, ..RecorderConfig::default() };
        let memory = config.memory()?;
        Ok(Live { recorder: Recorder::create(memory.try_clone()?, config)?, memory })
    }

    /// Runs `what` while another thread reads all records.
    fn drained(&self, what: impl FnOnce()) {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let drain = scope.spawn(|| {
                let mut recording = RecorderReader::open(self.memory.try_clone().ok()?).ok()?;
                let mut taken = 0u64;
                while !is_over.load(Ordering::Relaxed) {
                    recording.take(|one| taken += u64::from(black_box(one).number < u64::MAX)).ok()?;
                    recording.commit().ok()?;
                    std::thread::park_timeout(DRAIN_EVERY);
                }
                Some((taken, recording.losses().records()))
            });
            what();
            is_over.store(true, Ordering::Relaxed);
            if let Ok(Some((taken, lost))) = drain.join() {
                println!("\n{taken} records were read meanwhile, {lost} overwritten before they were read");
            }
        });
    }
}
