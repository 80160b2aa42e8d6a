//! Busy and idle time, computation, communication and their overlap per rank, and kernels by name: the temporal breakdown
//! of a trace of any size.
//!
//! Also the launches of kernels, the queue of each stream, the bandwidth of copies and the annotations.
//!
//! Memory does not depend on the size of the files in the [exact mode](Mode::Exact), except for the gaps between
//! kernels (16 bytes each, and 24 for those of a stream), calls of the runtime (24 bytes each), launched kernels (32
//! each) and copies (40 each); in the [HTA mode](Mode::Hta) a kernel costs 40 bytes, a launch 32, a copy 24 and an
//! annotation 32. At the end of a file each launch takes 56 bytes for a moment.
//!
//! | figure | exact mode | HTA mode | effect |
//! |---|---|---|---|
//! | times | integer nanoseconds | starts rounded up, ends down, to microseconds | HTA's idle time is larger, and kernels below 1 us last 0 or -1 us |
//! | range | the whole trace | kernels launched before the last step starts | HTA omits the last step |
//! | type of a kernel | category of the event, then name | name alone | a name with `Sync` is no computation in HTA |
//! | kernels per name | all names, of durations | at most ten names and those of sums below 0, then `others` | beyond ten names HTA's counts, extremes and means are those of sums per name |
//! | memory | union of copies and fills | part of non-compute time | |
//! | idle time of a stream | gaps in the union of its kernels | starts minus the end of the kernel before | overlaps count negatively in HTA |
//! | launch of a kernel | the call with its correlation | the same, or the first row of the file | a kernel without a call can be a host wait in HTA |
//! | calls that launch | all with a kernel | five names; eleven for queues | HTA omits CUDA graphs |
//! | times of launches | nanoseconds | microseconds | short calls and delays are up to 2 us shorter in HTA |
//! | queue of a stream | per launch | per kernel | HTA has the full queues of one stream per rank |
//! | bandwidth of copies | bytes by nanoseconds | as stated, summed as floats | HTA adds copies that touch |
//! | annotations | all names, of durations | a thousand names, then `others`; not those of the last step | |

mod annotations;
mod bandwidth;
mod exact;
mod figures;
mod hta;
mod hta_idle;
mod hta_launches;
mod hta_table;
mod idle;
mod intervals;
mod kernels;
mod launch_figures;
mod launches;
mod queues;
mod statistics;

pub use annotations::AnnotationRow;
pub use bandwidth::{COPIES_MAX, COPY_KINDS_MAX, CopyBandwidth};
pub use hta::HTA_KERNELS_MAX;
pub use idle::{IDLE_MAX, KERNEL_WAIT_NS, STREAMS_MAX, StreamIdle};
pub use kernels::KERNEL_NAMES_MAX;
pub use launches::{LATE_KERNEL_NS, LAUNCHES_MAX, LaunchTimes, SLOW_CALL_NS};
pub use queues::{QUEUE_MAX, QueueLengths};
pub use statistics::Statistics;

use super::document::{self, Document};
use super::files::{self, KinetoError, Part};
use exact::Exact;
use hta::Hta;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::ops::BitOr;
use std::path::{Path, PathBuf};
use taskd_core::analysis::model::Missing;

/// Rules by which times are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Integer nanoseconds of the whole trace.
    #[default]
    Exact,
    /// The rules of `HolisticTraceAnalysis` 0.5.0.
    Hta,
}

/// Class of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// A collective, a send or a receive.
    Communication,
    /// Computation.
    Compute,
    /// A copy or a fill of memory.
    Memory,
    /// In HTA mode: none of the others by its name. The exact mode has no such kernels.
    Other,
}

/// Classes of kernels that run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Label(u8);

impl Label {
    /// Computation.
    pub const COMPUTE: Self = Self(1);
    /// Communication.
    pub const COMMUNICATION: Self = Self(2);
    /// Copies and fills of memory.
    pub const MEMORY: Self = Self(4);

    /// HTA's number of the classes.
    const fn status(self) -> i64 {
        self.0 as i64
    }

    /// Returns the classes of HTA's number, of which only the lowest bits count.
    const fn from_status(status: i64) -> Self {
        Self((status & 7) as u8)
    }
}

impl BitOr for Label {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(Self::COMPUTE, "computation"), (Self::COMMUNICATION, "communication"), (Self::MEMORY, "memory")];
        let mut between = "";
        for (_, name) in names.iter().filter(|(label, _)| self.0 & label.0 != 0) {
            write!(formatter, "{between}{name}")?;
            between = " overlapping ";
        }
        Ok(())
    }
}

/// Breakdown of all ranks of a job.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Breakdown {
    /// Rules by which the times were counted.
    pub mode: Mode,
    /// Ranks in ascending order.
    pub ranks: Vec<RankBreakdown>,
    /// Number of events in all files.
    pub events: u64,
    /// Missing parts: files and events that could not be used, each as a sentence.
    #[serde(skip)]
    pub missing: Vec<Missing>,
}

/// Breakdown of one rank. Times are in nanoseconds; in HTA mode they are multiples of 1000, and sums can be negative.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RankBreakdown {
    /// Global rank.
    pub rank: u32,
    /// Number of kernels, copies and fills that count.
    pub count: u64,
    /// Time from the start of the first kernel to the end of the last one.
    pub kernel_time_ns: i64,
    /// Time in which at least one kernel, copy or fill runs.
    pub busy_ns: i64,
    /// Time between the first and the last kernel in which none runs.
    pub idle_ns: i64,
    /// Time in which at least one computation runs.
    pub compute_ns: i64,
    /// Time in which at least one communication runs.
    pub communication_ns: i64,
    /// Time in which at least one copy or fill runs.
    pub memory_ns: i64,
    /// Time in which computation and communication run.
    pub overlap_ns: i64,
    /// Time in which exactly these classes run.
    pub types: Vec<(Label, i64)>,
    /// Idle time of each stream, in the order of their numbers.
    pub idle: Vec<StreamIdle>,
    /// True if the file has calls that launch kernels. In the exact mode no idle time is a wait for the host without them.
    pub has_launches: bool,
    /// Times of the launches; `None` without a recorded call that launched a kernel.
    pub launches: Option<LaunchTimes>,
    /// Queue of each stream, in the order of their numbers. Empty without launches, or if HTA's own computation fails.
    pub queues: Vec<QueueLengths>,
    /// Bandwidth of copies and fills by kind.
    pub bandwidth: Vec<CopyBandwidth>,
    /// Annotations by name, those of the device first.
    pub annotations: Vec<AnnotationRow>,
    /// Steps in the order of their starts; empty in HTA mode.
    pub steps: Vec<StepRow>,
    /// Kernels by name.
    pub kernels: Vec<KernelRow>,
}

impl RankBreakdown {
    /// Busy time without computation: communication and memory that no computation hides.
    #[must_use]
    pub const fn non_compute_ns(&self) -> i64 {
        self.kernel_time_ns - self.compute_ns - self.idle_ns
    }

    /// Returns the overlapped share of the communication, from 0 to 1; `None` without communication.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a ratio for display")]
    pub fn overlap_ratio(&self) -> Option<f64> {
        (self.communication_ns != 0).then(|| self.overlap_ns as f64 / self.communication_ns as f64)
    }
}

/// Times within one step, in nanoseconds, clipped to the step's interval on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StepRow {
    /// Number of the step, from `ProfilerStep#`.
    pub number: u64,
    /// Length of the step.
    pub duration_ns: i64,
    /// Time in which at least one kernel, copy or fill runs.
    pub busy_ns: i64,
    /// Time in which at least one computation runs.
    pub compute_ns: i64,
    /// Time in which at least one communication runs.
    pub communication_ns: i64,
    /// Time in which computation and communication run.
    pub overlap_ns: i64,
}

/// Kernels of one name on one rank. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelRow {
    /// Global rank.
    pub rank: u32,
    /// Class of the kernel.
    pub class: Class,
    /// Name of the kernel.
    pub name: String,
    /// Number of kernels.
    pub count: u64,
    /// Sum of the durations.
    pub sum_ns: i64,
    /// Shortest duration.
    pub min_ns: i64,
    /// Longest duration.
    pub max_ns: i64,
    /// Mean of the durations.
    pub mean_ns: f64,
    /// Standard deviation of the durations, of a sample; 0 for one kernel.
    pub deviation_ns: f64,
}

/// Returns the breakdown of all trace files in a directory (`*.json`, `*.json.gz`), one file per rank. As many files are
/// read at the same time as the machine has cores.
///
/// # Errors
/// Fails if the directory cannot be read or has no trace file. A file that cannot be used, or not completely, is listed in
/// [`Breakdown::missing`].
pub fn of_directory(directory: &Path, mode: Mode) -> Result<Breakdown, KinetoError> {
    Ok(of_files(&files::find(directory)?, mode))
}

/// Returns the breakdown of these files, one file per rank.
#[must_use]
pub fn of_files(paths: &[PathBuf], mode: Mode) -> Breakdown {
    combine(files::read_all(paths, |source| scan(source, mode)), mode)
}

/// Returns the breakdown of one rank from an open file, which may be compressed. The rank is the one in the file, or 0.
#[must_use]
pub fn of_reader(source: impl Read + Send, mode: Mode) -> Breakdown {
    combine(vec![files::read_one("the trace", source, |source| scan(source, mode))], mode)
}

/// Figures of one file, before the files of the other ranks are known.
enum Scanned {
    Exact(Box<Exact>),
    Hta(Box<Hta>),
    Done { names: BTreeSet<Box<[u8]>>, finished: Option<Box<Finished>> },
}

/// Figures of one rank, and what has to be reported with them.
struct Finished {
    rank: RankBreakdown,
    notes: Vec<String>,
}

fn scan(source: &mut dyn Read, mode: Mode) -> (Document, Scanned) {
    match mode {
        Mode::Exact => {
            let mut sink = Exact::default();
            let document = document::read(source, &mut sink);
            let done = Scanned::Exact(Box::new(sink)).finish(true);
            (document, done)
        }
        Mode::Hta => {
            let mut sink = Hta::default();
            let document = document::read(source, &mut sink);
            // Whether the last step is dropped follows from this rank if it has two steps: the kernels can be freed.
            let is_known = sink.step_names.len() >= 2;
            let scanned = Scanned::Hta(Box::new(sink));
            (document, if is_known { scanned.finish(true) } else { scanned })
        }
    }
}

impl Default for Scanned {
    fn default() -> Self {
        Self::Done { names: BTreeSet::new(), finished: None }
    }
}

impl Scanned {
    fn step_names(&self) -> &BTreeSet<Box<[u8]>> {
        static NONE: BTreeSet<Box<[u8]>> = BTreeSet::new();
        match self {
            Self::Exact(_) => &NONE,
            Self::Hta(hta) => &hta.step_names,
            Self::Done { names, .. } => names,
        }
    }

    fn finish(self, drops_last_step: bool) -> Self {
        let names = self.step_names().clone();
        let mut notes = Vec::new();
        let mut note = |count: u64, what: &str| {
            if count > 0 {
                notes.push(format!("has {count} {what}"));
            }
        };
        let rank = match self {
            Self::Done { .. } => return self,
            Self::Exact(exact) => {
                note(exact.unreadable, "kernels or annotations without a readable time, which are not counted");
                note(exact.gaps.lost, "kernels beyond the limit, which the idle time per stream lacks");
                note(exact.launches.lost, "kernels or calls beyond the limit, which launches and idle times lack");
                note(exact.copies.lost, "copies beyond the limit, which the bandwidth lacks");
                let (rank, beyond) = exact.finish(0);
                note(beyond.kernels, "kernels of further names, which the table has in one row");
                note(beyond.annotations, "annotations of further names, which the table has in one row");
                note(beyond.queues, "launches on streams beyond the limit, which the queues lack");
                (rank.count > 0).then_some(rank)
            }
            Self::Hta(hta) => {
                note(hta.lost, "kernels beyond the limit of the HTA mode, which are not counted: use the exact mode");
                note(hta.unreadable, "events without a readable time, which are not counted");
                if hta.has_fractions() {
                    note(
                        1,
                        "starts in whole and durations in fractional microseconds, which HTA does not round: its figures differ",
                    );
                }
                let finished = hta.finish(0, drops_last_step);
                finished.map(|(rank, ambiguous)| {
                    note(ambiguous.starts, "starts of several kernels, one of them below 1 us, for which HTA's figures depend on the order of its sort");
                    note(ambiguous.gaps, "starts of several kernels of one stream, for which HTA's idle time depends on the order of its sort");
                    note(ambiguous.lost, "rows of launches beyond the limit, which launches and queues lack");
                    note(ambiguous.fails, "correlations of several calls or without a kernel: HTA fails at their queues");
                    note(ambiguous.repeated, "synchronizations without a correlation, which HTA repeats: its idle time differs");
                    rank
                })
            }
        };
        Self::Done { names, finished: rank.map(|rank| Box::new(Finished { rank, notes })) }
    }
}

fn combine(parts: Vec<Part<Scanned>>, mode: Mode) -> Breakdown {
    let names: BTreeSet<Box<[u8]>> = parts.iter().flat_map(|part| part.value.step_names().iter().cloned()).collect();
    let mut breakdown = Breakdown { mode, ..Breakdown::default() };
    let (parts, missing) = files::by_rank(parts);
    breakdown.missing = missing;
    for (number, part) in parts {
        breakdown.events += part.document.events;
        let Scanned::Done { finished, .. } = part.value.finish(names.len() >= 2) else { continue };
        let mut report = |what: String| {
            breakdown.missing.push(Missing { rank: Some(number), what: format!("{} {what}", part.name) });
        };
        let Some(mut finished) = finished else {
            report(match mode {
                Mode::Exact => "has no kernel: record with ProfilerActivity.CUDA".into(),
                Mode::Hta => {
                    "has no kernel that HTA counts: it has none, or no recorded call before the last step launched one"
                        .into()
                }
            });
            continue;
        };
        finished.notes.into_iter().for_each(&mut report);
        finished.rank.rank = number;
        finished.rank.kernels.iter_mut().for_each(|row| row.rank = number);
        finished.rank.annotations.iter_mut().for_each(|row| row.rank = number);
        breakdown.ranks.push(finished.rank);
    }
    breakdown
}
