//! Queue of each stream: how many launched operations have not begun.
//!
//! The length grows at the start of a call and shrinks at the start of its kernel. The figures are those of
//! `HolisticTraceAnalysis` 0.5.0 (`analyzers/trace_counters.py`, `get_queue_length_summary`,
//! `get_time_spent_blocked_on_full_queue`). Its table of full queues has only the last stream of a rank, because each
//! stream replaces the one before; here each stream has its time.

use super::statistics::Statistics;
use serde::Serialize;
use std::collections::BTreeMap;

/// Length at which a queue is full, so that the next call blocks: HTA's default for CUDA.
pub const QUEUE_MAX: i64 = 1024;

/// Queue of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct QueueLengths {
    /// Number of the stream.
    pub stream: i64,
    /// Lengths after each change: two for each launch. A length below 0 is a kernel that began before its call.
    pub lengths: Statistics,
    /// Time in which the queue has at least [`QUEUE_MAX`] operations, in nanoseconds.
    pub full_ns: i64,
    /// Moments at which a call and a kernel of the stream start. The call counts first; HTA's order depends on its
    /// sort, and with it the length between both.
    pub ties: u64,
}

/// Starts of calls and kernels of each stream.
#[derive(Debug)]
pub(super) struct Queues {
    streams: BTreeMap<i64, (Vec<i64>, Vec<i64>)>,
    streams_max: usize,
    /// Launches on further streams.
    pub(super) lost: u64,
}

impl Queues {
    pub(super) const fn new(streams_max: usize) -> Self {
        Self { streams: BTreeMap::new(), streams_max, lost: 0 }
    }

    /// Adds a launch: the start of the call and that of the kernel.
    pub(super) fn add(&mut self, stream: i64, call: i64, kernel: i64) {
        if self.streams.len() >= self.streams_max && !self.streams.contains_key(&stream) {
            self.lost += 1;
            return;
        }
        let (calls, kernels) = self.streams.entry(stream).or_default();
        calls.push(call);
        kernels.push(kernel);
    }

    /// Returns the queues in the order of the streams. `unit` is the number of nanoseconds in one unit of the starts.
    pub(super) fn finish(self, unit: i64) -> Vec<QueueLengths> {
        self.streams
            .into_iter()
            .map(|(stream, (calls, kernels))| {
                let queue = of_stream(calls, kernels);
                QueueLengths { stream, full_ns: queue.full_ns.saturating_mul(unit), ..queue }
            })
            .collect()
    }
}

fn of_stream(mut calls: Vec<i64>, mut kernels: Vec<i64>) -> QueueLengths {
    calls.sort();
    kernels.sort();
    let mut queue = QueueLengths::default();
    let mut lengths = Vec::with_capacity(calls.len() + kernels.len());
    let (mut length, mut before, mut tied) = (0, None, None);
    let (mut calls, mut kernels) = (calls.into_iter().peekable(), kernels.into_iter().peekable());
    loop {
        let (change, at) = match (calls.peek(), kernels.peek()) {
            (None, None) => break,
            (Some(call), kernel) if kernel.is_none_or(|kernel| call <= kernel) => (1, calls.next()),
            _ => (-1, kernels.next()),
        };
        let Some(at) = at else { break };
        if let Some(before) = before.filter(|_| length >= QUEUE_MAX) {
            queue.full_ns = queue.full_ns.saturating_add(at.saturating_sub(before));
        }
        if change > 0 && kernels.peek() == Some(&at) && tied != Some(at) {
            queue.ties += 1;
            tied = Some(at);
        }
        length += change;
        lengths.push(length);
        before = Some(at);
    }
    queue.lengths = Statistics::of(&mut lengths);
    queue
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_grows_with_calls_and_shrinks_with_kernels() {
        let mut queues = Queues::new(2);
        // Lengths 1 2 1 2 1 0: at 30 a call comes before the kernel.
        for (call, kernel) in [(0, 20), (10, 30), (30, 40)] {
            queues.add(7, call, kernel);
        }
        queues.add(9, 5, 4);
        queues.add(11, 0, 0);
        assert_eq!(queues.lost, 1);
        let found = queues.finish(1);
        let [first, second] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((first.stream, first.lengths.count, first.lengths.max, first.lengths.min), (7, 6, 2.0, 0.0));
        assert_eq!((first.lengths.median, first.ties, first.full_ns), (1.0, 1, 0));
        assert_eq!((second.stream, second.lengths.min, second.lengths.max), (9, -1.0, 0.0));
    }

    #[test]
    fn a_full_queue_has_the_time_until_it_is_shorter() {
        let mut queues = Queues::new(1);
        // Call number 1023 is the 1024th; the first kernel begins 77 units later.
        for number in 0..1030 {
            queues.add(7, number, 1100 + number);
        }
        let found = queues.finish(1000);
        // From 1023 on, and until the seventh kernel at 1106 has made the length 1023.
        assert_eq!((found[0].lengths.max, found[0].full_ns), (1030.0, 83_000));
    }
}
