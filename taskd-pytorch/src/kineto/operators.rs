//! Operators: which sequences of kernels each one launches, how often, and how long the kernels wait.
//!
//! `HolisticTraceAnalysis` 0.5.0 has two tables of this (`analyzers/cuda_kernel_analysis.py`): the kernels of each ATen operator
//! with their delays (`get_aten_op_kernels_and_delay`, here [`Level::Innermost`]), and the frequent kernel sequences below an
//! operator of the model (`get_frequent_cuda_kernel_sequences`, here [`Level::Outermost`]). HTA takes an operator of any
//! thread that encloses a launch, and rounds to microseconds; here only operators of the launching thread count, in
//! nanoseconds. A launch outside of all operators is counted in [`RankOperators::outside`].

use super::classify;
use super::decimal;
use super::document::{self, Document, Sink};
use super::event::RawEvent;
use super::files::{self, Part};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use taskd_core::analysis::model::Missing;

/// Operators, launches and kernels that are kept per rank, each. Further ones are counted and reported.
pub const OPERATORS_MAX: usize = 20_000_000;

/// Kernels of one sequence that are kept. The rest of a longer sequence counts, but is not in its name.
pub const SEQUENCE_MAX: usize = 64;

/// Operators that enclose one another at one time. Deeper ones are counted and reported: a trace has some tens.
pub const DEPTH_MAX: usize = 256;

/// Which operator a launch belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The operator that no other one encloses, such as `aten::linear`.
    Outermost,
    /// The ATen operator that encloses no other one around the launch, such as `aten::addmm`.
    Innermost,
}

/// Sequences of all ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Operators {
    /// Ranks in ascending order.
    pub ranks: Vec<RankOperators>,
    /// Missing parts: files and events that could not be used, each as a sentence.
    #[serde(skip)]
    pub missing: Vec<Missing>,
}

/// Sequences of one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RankOperators {
    /// Global rank.
    pub rank: u32,
    /// One row per level, operator and sequence; the most frequent one first.
    pub rows: Vec<SequenceRow>,
    /// Launches of kernels outside of all operators.
    pub outside: u64,
    /// Operators below [`DEPTH_MAX`] others, which are not counted.
    pub deeper: u64,
}

/// Calls of one operator that launched the same kernels. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SequenceRow {
    /// Which operator of a launch counts.
    pub level: Level,
    /// Name of the operator.
    pub operator: String,
    /// Names of the kernels in the order of their launches, at most [`SEQUENCE_MAX`].
    pub kernels: Vec<String>,
    /// Calls of the operator that launched this sequence.
    pub count: u64,
    /// Sum of the operator's times on the host.
    pub host_ns: i64,
    /// Sum of the kernels' times on the device.
    pub device_ns: i64,
    /// Mean time from the start of the operator to that of its first launch.
    pub launch_delay_ns: f64,
    /// Mean time from the start of the first launch to that of its kernel. Negative if the clocks disagree.
    pub start_delay_ns: f64,
}

/// Returns the sequences of kernels in these files, one file per rank.
#[must_use]
pub fn of_files(paths: &[PathBuf]) -> Operators {
    combine(files::read_all(paths, collect))
}

/// Returns the sequences of kernels of one rank from an open file, which may be compressed. The rank is the one in the file,
/// or 0.
#[must_use]
pub fn of_reader(source: impl Read + Send) -> Operators {
    combine(vec![files::read_one("the trace", source, collect)])
}

fn collect(source: &mut dyn Read) -> (Document, Collected) {
    let mut sink = Collected::default();
    let document = document::read(source, &mut sink);
    (document, sink)
}

fn combine(parts: Vec<Part<Collected>>) -> Operators {
    let (parts, missing) = files::by_rank(parts);
    let mut operators = Operators { ranks: Vec::new(), missing };
    for (rank, part) in parts {
        if part.value.lost > 0 {
            let what = format!("{} has {} operators, calls or kernels beyond the limit", part.name, part.value.lost);
            operators.missing.push(Missing { rank: Some(rank), what });
        }
        operators.ranks.push(part.value.finish(rank));
    }
    operators
}

/// An operator on the host. The order is that of threads, then of starts; of two with one start the longer encloses the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Operator {
    thread: u32,
    start: i64,
    end: Reverse<i64>,
    name: u32,
}

/// A call of the runtime, and later its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Call {
    thread: u32,
    start: i64,
    end: i64,
    correlation: i64,
}

/// A kernel, copy or fill. The order is that of correlations, then of starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kernel {
    correlation: i64,
    start: i64,
    duration: i64,
    name: u32,
}

/// Numbers for texts.
#[derive(Debug, Default)]
struct Numbers(BTreeMap<Box<[u8]>, u32>);

impl Numbers {
    fn of(&mut self, text: &[u8]) -> u32 {
        if let Some(number) = self.0.get(text) {
            return *number;
        }
        let number = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0.insert(text.into(), number);
        number
    }

    /// Returns the texts in the order of their numbers.
    fn texts(&self) -> Vec<String> {
        let mut texts: Vec<(u32, &[u8])> = self.0.iter().map(|(text, number)| (*number, &**text)).collect();
        texts.sort_unstable();
        texts.into_iter().map(|(_, text)| String::from_utf8_lossy(text).into_owned()).collect()
    }
}

/// What is kept of a file while it is read. Memory: 32 bytes for each operator, call and kernel.
#[derive(Debug, Default)]
struct Collected {
    operators: Vec<Operator>,
    calls: Vec<Call>,
    kernels: Vec<Kernel>,
    names: Numbers,
    threads: Numbers,
    lost: u64,
}

impl Sink for Collected {
    fn event(&mut self, event: &RawEvent<'_>) {
        let category = event.category();
        let is_operator = category == b"cpu_op" || category == b"Operator";
        let (is_call, is_kernel) = (classify::is_runtime(category), classify::device(category).is_some());
        if !is_operator && !is_call && !is_kernel {
            return;
        }
        let (Some(start), Some(duration)) = (event.start_ns(), event.duration_ns()) else { return };
        let end = start.saturating_add_unsigned(duration);
        let correlation = event.correlation.and_then(decimal::integer);
        if self.operators.len().max(self.calls.len()).max(self.kernels.len()) >= OPERATORS_MAX {
            self.lost += 1;
        } else if is_operator {
            let (thread, name) = (self.thread(event), self.names.of(&event.name.bytes()));
            self.operators.push(Operator { thread, start, end: Reverse(end), name });
        } else if let Some(correlation) = correlation {
            if is_call {
                let thread = self.thread(event);
                self.calls.push(Call { thread, start, end, correlation });
            } else {
                let name = self.names.of(&event.name.bytes());
                self.kernels.push(Kernel { correlation, start, duration: end.saturating_sub(start), name });
            }
        }
    }
}

impl Collected {
    fn thread(&mut self, event: &RawEvent<'_>) -> u32 {
        let key = [event.process.unwrap_or_default(), event.thread.unwrap_or_default()].join(&b' ');
        self.threads.of(&key)
    }

    fn finish(mut self, rank: u32) -> RankOperators {
        self.operators.sort_unstable();
        self.calls.sort_unstable();
        self.kernels.sort_unstable();
        let names = self.names.texts();
        let is_aten: Vec<bool> = names.iter().map(|name| name.starts_with("aten::")).collect();
        let mut enclosing: Vec<usize> = Vec::new();
        let mut launched: BTreeMap<(Level, usize), Launched> = BTreeMap::new();
        let (mut next, mut outside, mut deeper) = (0, 0, 0);
        for call in &self.calls {
            let first = self.kernels.partition_point(|kernel| kernel.correlation < call.correlation);
            let kernels = self.kernels.get(first..).unwrap_or_default();
            let count = kernels.iter().take_while(|kernel| kernel.correlation == call.correlation).count();
            let Some(kernels) = kernels.get(..count).filter(|kernels| !kernels.is_empty()) else { continue };
            while let Some(operator) = self.operators.get(next)
                && (operator.thread, operator.start) <= (call.thread, call.start)
            {
                enclosing.retain(|other| self.encloses(*other, operator.thread, operator.start));
                if enclosing.len() < DEPTH_MAX {
                    enclosing.push(next);
                } else {
                    deeper += 1;
                }
                next += 1;
            }
            enclosing.retain(|other| self.encloses(*other, call.thread, call.end));
            let aten = |operator: &&usize| {
                self.operators
                    .get(**operator)
                    .is_some_and(|operator| is_aten.get(operator.name as usize) == Some(&true))
            };
            let found = [
                enclosing.first().map(|operator| (Level::Outermost, *operator)),
                enclosing.iter().rev().find(aten).map(|operator| (Level::Innermost, *operator)),
            ];
            outside += u64::from(enclosing.is_empty());
            for key in found.into_iter().flatten() {
                launched.entry(key).or_default().add(call, kernels);
            }
        }
        RankOperators { rank, rows: self.rows(&launched, &names), outside, deeper }
    }

    /// Returns true if the operator with this number ends at or after `end`, on the same thread.
    fn encloses(&self, number: usize, thread: u32, end: i64) -> bool {
        self.operators.get(number).is_some_and(|operator| operator.thread == thread && operator.end.0 >= end)
    }

    fn rows(&self, launched: &BTreeMap<(Level, usize), Launched>, names: &[String]) -> Vec<SequenceRow> {
        let mut sums: BTreeMap<(Level, u32, &[u32]), Sums> = BTreeMap::new();
        for ((level, number), launched) in launched {
            let Some(operator) = self.operators.get(*number) else { continue };
            let sums = sums.entry((*level, operator.name, &launched.sequence)).or_default();
            sums.count += 1;
            sums.host += i128::from(operator.end.0) - i128::from(operator.start);
            sums.device += i128::from(launched.device);
            sums.launch_delay += i128::from(launched.first_call) - i128::from(operator.start);
            sums.start_delay += i128::from(launched.first_kernel) - i128::from(launched.first_call);
        }
        let name = |number: &u32| names.get(*number as usize).cloned().unwrap_or_default();
        let sum = |sum: i128| i64::try_from(sum).unwrap_or(i64::MAX);
        let mut rows: Vec<SequenceRow> = sums
            .into_iter()
            .map(|((level, operator, kernels), sums)| SequenceRow {
                level,
                operator: name(&operator),
                kernels: kernels.iter().map(name).collect(),
                count: sums.count,
                host_ns: sum(sums.host),
                device_ns: sum(sums.device),
                launch_delay_ns: mean(sums.launch_delay, sums.count),
                start_delay_ns: mean(sums.start_delay, sums.count),
            })
            .collect();
        let key = |row: &SequenceRow| (Reverse(row.count), row.operator.clone(), row.kernels.clone(), row.level);
        rows.sort_by_cached_key(key);
        rows
    }
}

/// What one call of an operator launched.
#[derive(Debug, Default)]
struct Launched {
    sequence: Vec<u32>,
    device: i64,
    first_call: i64,
    first_kernel: i64,
}

impl Launched {
    fn add(&mut self, call: &Call, kernels: &[Kernel]) {
        if self.sequence.is_empty() {
            self.first_call = call.start;
            self.first_kernel = kernels.first().map_or(call.start, |kernel| kernel.start);
        }
        for kernel in kernels {
            if self.sequence.len() < SEQUENCE_MAX {
                self.sequence.push(kernel.name);
            }
            self.device = self.device.saturating_add(kernel.duration);
        }
    }
}

/// Sums over the calls of one sequence, in nanoseconds.
#[derive(Debug, Default)]
struct Sums {
    count: u64,
    host: i128,
    device: i128,
    launch_delay: i128,
    start_delay: i128,
}

#[allow(clippy::cast_precision_loss, reason = "a mean for display")]
fn mean(sum: i128, count: u64) -> f64 {
    sum as f64 / count.max(1) as f64
}
