//! CPU time of a span of a device in the reducer, beside that of a span that the reducer skips.

use super::cost::cpu_nanos;
use serde::Serialize;
use std::hint::black_box;
use std::sync::Arc;
use taskd_core::job::{Incarnation, Rank};
use taskd_core::trace::recorder::{Detail, DeviceWork, Event, Kind, NameId};
use taskd_core::trace::reduce::Reducer;
use taskd_core::trace::{NameTable, Origin, RecordBatch, TimedRecord};
use taskd_examples::samples::Samples;

/// Kernels of a step, on three streams.
const KERNELS: u64 = 2_000;
/// Duration of a step, and time from the end of a kernel to its delivery.
const STEP: u64 = 100_000_000;
const STEPS_LATE: u64 = 5;

/// CPU time of a thread in nanoseconds, each the median of all rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    /// A kernel, from the batch to the figures of its step.
    reduce_span_ns: f64,
    /// The same record as a call of the vendor's library, which the reducer skips.
    skip_span_ns: f64,
}

/// Measures, prints a table, and returns the figures.
pub(crate) fn measure(quick: bool) -> Figures {
    let (rounds, steps) = if quick { (3, 20) } else { (51, 200) };
    let (kernels, calls) = (batches(Kind::Kernel, steps), batches(Kind::Api, steps));
    let (mut reduced, mut skipped) = (Samples::default(), Samples::default());
    for _ in 0..rounds {
        reduced.push(per_span(&kernels));
        skipped.push(per_span(&calls));
    }
    println!("\n  one span in the reducer, ns of CPU time, median (least to most) of {rounds} rounds");
    println!("    kernel, to the figures of its step  {reduced}");
    println!("    call, skipped                       {skipped}");
    Figures { reduce_span_ns: reduced.median(), skip_span_ns: skipped.median() }
}

/// Reduces all batches; returns the time per span.
#[allow(clippy::cast_precision_loss)] // counts far below 2^52
fn per_span(batches: &[RecordBatch]) -> f64 {
    let mut reducer = Reducer::default();
    let before = cpu_nanos();
    for (batch, step) in batches.iter().zip(1..) {
        reducer.take(batch);
        black_box(reducer.settle(STEP * (step + 1)));
    }
    black_box(reducer.settle(u64::MAX));
    (cpu_nanos() - before) as f64 / (batches.len() as u64 * KERNELS) as f64
}

/// Returns a batch per step: the step itself, and the spans of an earlier one.
fn batches(kind: Kind, steps: u64) -> Vec<RecordBatch> {
    let names: Arc<NameTable> = Arc::new(["gemm"].into_iter().collect());
    let origin = Origin { rank: Rank(0), incarnation: Incarnation(1), pid: 1 };
    let of_step = |step: u64| {
        let at = STEP * step;
        let range = u64::from(Kind::Step.number()) << 58 | step;
        let host = |unix_nanos, event| {
            let detail = Detail::Step { number: step, cpu_nanos: 0 };
            TimedRecord { unix_nanos, thread: 1, kind: Kind::Step, event, name: NameId(0), detail }
        };
        let mut records = vec![host(at, Event::Begin { range }), host(at + STEP, Event::End { range })];
        let begin = STEP * step.saturating_sub(STEPS_LATE).max(1);
        records.extend((0..KERNELS).map(|number| {
            // Streams are delivered one after another: times go back at the beginning of each.
            let (stream, number) = (number * 3 / KERNELS, number % (KERNELS / 3 + 1));
            let at = number * (STEP / KERNELS * 3);
            let work =
                DeviceWork { device: 0, stream: u32::try_from(stream).unwrap_or(0), correlation: number, bytes: 0 };
            TimedRecord {
                unix_nanos: begin + at + stream * 1_000,
                thread: 0,
                kind,
                event: Event::Span { nanos: STEP / KERNELS * 2 },
                name: NameId(1),
                detail: Detail::Device(work),
            }
        }));
        RecordBatch { origin, names: Arc::clone(&names), lost: 0, records }
    };
    (1..=steps).map(of_step).collect()
}
