//! The throughput of records: sustained with a live drain, in a burst, and beyond the size of a ring.

use super::cost::DRAIN_EVERY;
use serde::Serialize;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taskd_core::trace::recorder::{
    Detail, Event, Kind, Losses, NameId, Recorder, RecorderConfig, RecorderReader, ThreadRecorder, WhenFull,
};
use taskd_examples::program::Failure;

/// Records in a ring of this measurement: 4 MiB.
const RING: usize = 1 << 16;
/// Records in a batch.
const BATCH: u64 = 1000;
/// The interval between two batches: 4.2 million records per second.
const EVERY: Duration = Duration::from_nanos(238_095);

/// Throughput and losses.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    sustained_records_per_s: f64,
    sustained_drops: u64,
    burst_drops: u64,
    /// True if the read and the lost records add up to the recorded ones, in both modes of a full ring.
    overrun_count_exact: bool,
}

/// Measures, prints the results, and returns the figures.
pub(crate) fn measure(quick: bool) -> Result<Figures, Failure> {
    let time = if quick { Duration::from_millis(50) } else { Duration::from_secs(10) };
    let (sustained_records_per_s, sustained_drops) = sustained(time)?;
    let (_, taken, losses) = filled(WhenFull::DropNewest, RING as u64)?;
    let burst_drops = losses.records() + (RING as u64).abs_diff(taken);
    let mut overrun_count_exact = true;
    for when_full in [WhenFull::DropNewest, WhenFull::DropOldest] {
        let (recorded, taken, losses) = filled(when_full, 5 * RING as u64 + 123)?;
        overrun_count_exact &= recorded == taken + losses.records();
    }
    println!(
        "\n{:.2} million records a second for {time:?}, paced, with a live drain: {sustained_drops} dropped",
        sustained_records_per_s / 1e6
    );
    println!("a burst of {RING} records into a ring of {RING}: {burst_drops} dropped");
    println!("five times as many: every loss counted: {overrun_count_exact}");
    Ok(Figures { sustained_records_per_s, sustained_drops, burst_drops, overrun_count_exact })
}

fn pair(when_full: WhenFull) -> Result<(Recorder, RecorderReader), Failure> {
    let config = RecorderConfig { records_per_thread: RING, when_full, ..RecorderConfig::default() };
    let memory = config.memory()?;
    Ok((Recorder::create(memory.try_clone()?, config)?, RecorderReader::open(memory)?))
}

fn record(thread: &mut ThreadRecorder<'_>, records: u64) {
    for _ in 0..records {
        thread.record(Kind::Forward, Event::Instant, NameId(0), Detail::None);
    }
}

/// Returns records per second, and the number of lost records.
fn sustained(time: Duration) -> Result<(f64, u64), Failure> {
    let (recorder, mut recording) = pair(WhenFull::DropNewest)?;
    let (is_over, mut taken) = (AtomicBool::new(false), 0);
    let (made, took, drained) = std::thread::scope(|scope| {
        let drain = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                recording.take(|one| taken += u64::from(black_box(one).ring == 0))?;
                recording.commit()?;
                std::thread::park_timeout(DRAIN_EVERY);
            }
            std::io::Result::Ok(())
        });
        let mut thread = recorder.thread();
        let (begun, mut made) = (Instant::now(), 0);
        while begun.elapsed() < time {
            record(&mut thread, BATCH);
            made += BATCH;
            let next = EVERY * u32::try_from(made / BATCH).unwrap_or(u32::MAX);
            while begun.elapsed() < next {
                std::hint::spin_loop();
            }
        }
        let took = begun.elapsed();
        is_over.store(true, Ordering::Relaxed);
        (made, took, drain.join())
    });
    drained.map_err(|_| "the drain has panicked")??;
    recording.take(|_| taken += 1)?;
    let lost = recording.losses().records();
    if made != taken + lost {
        return Err(format!("{made} records were made, {taken} read and {lost} counted as lost").into());
    }
    Ok((made as f64 / took.as_secs_f64(), lost))
}

/// Records `records` events without a reader; returns their number, the number of events read afterwards, and the
/// losses.
fn filled(when_full: WhenFull, records: u64) -> Result<(u64, u64, Losses), Failure> {
    let (recorder, mut recording) = pair(when_full)?;
    record(&mut recorder.thread(), records);
    let mut taken = 0;
    recording.take(|_| taken += 1)?;
    Ok((records, taken, recording.losses()))
}
