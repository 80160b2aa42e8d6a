//! The result of an analysis as data: what the report page shows, and what `--json` writes. The page and the JSON have
//! the same figures because both are this document.
//!
//! Times are microseconds, relative to [`Analysis::began_unix_ns`] where they are moments. A table of ranks and steps
//! has one row for each rank, in the order of [`Analysis::ranks`], and one column for each step, in the order of
//! [`Analysis::steps`]; `null`: the trace does not have the figure.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of this document. A reader refuses a newer one.
pub const VERSION: u32 = 1;

/// A table of ranks (rows) and steps (columns).
pub type Table = Vec<Vec<Option<u64>>>;

/// All figures of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Analysis {
    /// Version of the document's form: [`VERSION`].
    pub version: u32,
    /// Name of the job or of the directory.
    pub title: String,
    /// Kinds of traces from which the figures come, such as `Kineto` or `taskd store`.
    pub sources: Vec<String>,
    /// Time zero of all moments, in nanoseconds since 1970; `None` if unknown.
    pub began_unix_ns: Option<i64>,
    /// What is wrong, in one sentence, with the evidence.
    pub verdict: Verdict,
    /// The ranks, sorted by number.
    pub ranks: Vec<RankInfo>,
    /// Numbers of the steps, sorted.
    pub steps: Vec<u64>,
    /// Time of each step on each rank, and its parts.
    pub breakdown: Breakdown,
    /// Overlap of computation and communication.
    pub overlap: Overlap,
    /// Communication of each rank, and the links between ranks.
    pub communication: CommunicationFigures,
    /// Spans of each rank for the Marey timeline.
    pub timeline: Timeline,
    /// Pipeline stages, sends and receives.
    pub pipeline: Pipeline,
    /// The longest chain of events that depend on each other, per step.
    pub critical_path: Vec<CriticalStep>,
    /// How much faster the job would run without one cause.
    pub what_if: Option<WhatIf>,
    /// Incidents that the supervisor recorded.
    pub incidents: Vec<Incident>,
    /// Observations with their values, for example that a link is slower than others of its kind.
    pub hints: Vec<Hint>,
    /// Limits that the reference tools have, and whether they still apply here.
    pub limits: Vec<Limit>,
    /// Quality of the alignment of the ranks' clocks.
    pub clocks: Clocks,
    /// What the trace does not contain, each as a sentence.
    pub missing: Vec<String>,
    /// Means of the tables, and the ranks with which a reader begins.
    #[serde(default)]
    pub summary: Summary,
}

/// Figures that follow from the tables: [`summarize`](crate::summary::summarize) computes them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Rank with the longest mean step without its wait for other ranks; of equal ranks the first.
    pub slowest_rank: Option<u32>,
    /// Rank with the shortest mean step without its wait for other ranks; of equal ranks the first.
    pub fastest_rank: Option<u32>,
    /// Mean step of each rank without its wait for other ranks, in microseconds, in the order of [`Analysis::ranks`].
    pub own_us: Vec<Option<f64>>,
    /// Mean transfer divided by the sum of mean transfer and mean wait, from 0 to 1, in the order of [`Analysis::ranks`].
    pub transfer_share: Vec<Option<f64>>,
    /// Means of each table by its path, such as `breakdown.total_us`; empty tables are absent.
    pub means: BTreeMap<String, Means>,
}

/// Means of one table over the cells that have a value, in tenths of a microsecond.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Means {
    /// Mean over the steps, for each rank.
    pub of_ranks: Vec<Option<f64>>,
    /// Mean over the ranks, for each step.
    pub of_steps: Vec<Option<f64>>,
    /// Mean over all cells.
    pub all: Option<f64>,
}

/// What is wrong with the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The result in one sentence that begins the page, such as *Rank 3 computes 48 % longer than its peers since step
    /// 41; without it the job would run 1.44 times as fast*.
    pub sentence: String,
    /// True if nothing is wrong.
    pub is_healthy: bool,
    /// Components that cause a slowdown or a hang, the most certain first; empty if no component is at fault.
    pub blamed: Vec<Blame>,
}

/// A component that causes a slowdown or a hang.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Blame {
    /// The component in words, such as `rank 3`, `host node-7` or `link 2 -> 3`.
    pub component: String,
    /// Ranks of the component.
    pub ranks: Vec<u32>,
    /// Cause in the words of the detector, such as `slow-rank` or `slow-link`.
    pub cause: String,
    /// Number of the first affected step, if known.
    pub onset_step: Option<u64>,
    /// Excess time of the component over its expected time, in percent.
    pub slowdown_percent: f64,
    /// Confidence in permille.
    pub confidence_permille: u16,
    /// Reasons, each with its figure.
    pub evidence: Vec<EvidenceItem>,
}

/// One measured reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvidenceItem {
    /// Name of the quantity with its unit last.
    pub what: String,
    /// The measured value, if it is a number.
    pub value: Option<f64>,
    /// The value with which it was compared.
    pub usual: Option<f64>,
    /// The reason as a sentence.
    pub text: String,
}

/// One rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankInfo {
    /// Global rank.
    pub rank: u32,
    /// Name of the rank's host.
    pub host: Option<String>,
    /// Number of the device on its host.
    pub device: Option<u32>,
    /// Pipeline stage, from 0.
    pub stage: Option<u32>,
    /// Floating-point operations of one step.
    pub flop_per_step: Option<f64>,
    /// Floating-point operations per second.
    pub flop_per_second: Option<f64>,
    /// Largest memory use in bytes.
    pub peak_memory_bytes: Option<u64>,
    /// Memory of the device in bytes.
    pub memory_capacity_bytes: Option<u64>,
}

/// Time of each step on each rank, in microseconds. Parts that a trace does not distinguish are empty tables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Breakdown {
    /// Moment of the step's start.
    pub start_us: Table,
    /// Length of the step.
    pub total_us: Table,
    /// From the start of the step to the start of the forward pass: the input pipeline.
    pub interval_us: Table,
    /// Forward and backward pass.
    pub forward_backward_us: Table,
    /// From the end of the backward pass to the end of the step: gradient synchronization and optimizer.
    pub tail_us: Table,
    /// Wait for the next batch.
    pub data_loader_us: Table,
    /// Writing of checkpoints.
    pub save_checkpoint_us: Table,
    /// Neither computation nor communication.
    pub idle_us: Table,
}

/// The five indicators of overlap, in microseconds per rank and step.
///
/// With C the union of computation, R of receives, K of other communication and T the step:
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    /// T minus `communication_alone_us`.
    pub computation_us: Table,
    /// |(R ∪ K) \ C|: communication that is not overlapped by computation.
    pub communication_alone_us: Table,
    /// T minus `receive_alone_us`: time of the pipeline stage itself.
    pub stage_us: Table,
    /// |R \ (C ∪ K)|: the pipeline bubble.
    pub receive_alone_us: Table,
    /// |K \ C|: collectives that are not overlapped by computation.
    pub collective_alone_us: Table,
    /// |C ∩ (R ∪ K)|: communication that is overlapped by computation.
    pub overlapped_us: Table,
}

/// Communication of each rank and over each link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CommunicationFigures {
    /// Time in communication per rank and step, in microseconds, without waiting where the trace or the alignment of
    /// the collective's members shows it.
    pub transfer_us: Table,
    /// Time of waiting for other ranks per rank and step, in microseconds.
    pub wait_us: Table,
    /// Operations with the largest total time, per rank.
    pub operations: Vec<OperationFigures>,
    /// Number of operations that were left out because of the document's limit, those with the smallest total time.
    #[serde(default)]
    pub operations_left_out: u64,
    /// Transfers per source, destination and kind of link.
    pub links: Vec<Link>,
    /// Number of links that were left out because of the document's limit, those with the smallest total time.
    #[serde(default)]
    pub links_left_out: u64,
    /// Number of steps for which communication was collected; fewer than the steps of the trace is reported.
    pub steps: u64,
}

/// One operation of one rank, summed over all steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationFigures {
    /// Rank that ran the operation.
    pub rank: u32,
    /// Name of the operation.
    pub name: String,
    /// Name of its process group; empty if unknown.
    pub group: String,
    /// Number of runs.
    pub count: u64,
    /// Sum of the times, in microseconds.
    pub total_us: u64,
    /// Part of `total_us` in which the rank waited for other ranks.
    pub wait_us: u64,
    /// Sum of the payloads in bytes.
    pub bytes: u64,
}

/// Transfers from one rank to another over one kind of link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Global rank of the sender.
    pub source: u32,
    /// Global rank of the receiver.
    pub destination: u32,
    /// Kind of the link, such as `sdma` or `network`.
    pub kind: String,
    /// Number of transfers.
    pub count: u64,
    /// Sum of the transfer times, in microseconds.
    pub time_us: u64,
    /// Sum of the bytes.
    pub bytes: u64,
    /// `bytes` divided by the sum of times, in bytes per second; never a sum of bandwidths. `None` if the time is 0.
    pub bytes_per_second: Option<f64>,
    /// Distribution of the transfer times, in microseconds.
    pub time_box: Option<BoxPlot>,
    /// Distribution of the bytes of a transfer.
    pub bytes_box: Option<BoxPlot>,
    /// Distribution of the bandwidths of single transfers, in bytes per second.
    pub bandwidth_box: Option<BoxPlot>,
}

/// A box plot by Tukey: quartiles, the last values within 1.5 interquartile ranges of them, and the values beyond.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoxPlot {
    /// Smallest value that is at least Q1 − 1.5 (Q3 − Q1).
    pub low: f64,
    /// First quartile.
    pub q1: f64,
    /// Median.
    pub median: f64,
    /// Third quartile.
    pub q3: f64,
    /// Largest value that is at most Q3 + 1.5 (Q3 − Q1).
    pub high: f64,
    /// Values beyond the whiskers, each with the name of its operation and its step; at most
    /// [`OUTLIERS_MAX`](BoxPlot::OUTLIERS_MAX), the farthest first.
    pub outliers: Vec<Outlier>,
    /// Number of values beyond the whiskers.
    pub outlier_count: u64,
}

impl BoxPlot {
    /// Maximum number of outliers in the document for one box.
    pub const OUTLIERS_MAX: usize = 16;
}

/// A value beyond the whiskers of a box plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outlier {
    /// The value.
    pub value: f64,
    /// Name of the operation.
    pub operation: String,
    /// Number of the step, if the operation was in one.
    pub step: Option<u64>,
}

/// Spans of all ranks for the Marey timeline: ranks against time.
///
/// Operation k of a rank and operation k of its neighbour in the same stage are corners of one polygon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Names to which the spans refer.
    pub names: Vec<String>,
    /// Spans of each rank, in the order of [`Analysis::ranks`], each list in the order of the starts.
    pub spans: Vec<Vec<TimelineSpan>>,
    /// Memory use of each rank: moments in microseconds and bytes.
    pub memory: Vec<Vec<(i64, u64)>>,
    /// Number of spans that were left out because of the document's limit, the shortest first.
    pub left_out: u64,
}

/// One span of the timeline.
///
/// In JSON it is an array: `[start_us, duration_us, kind, name, match]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineSpan(
    /// Start in microseconds.
    pub i64,
    /// Length in microseconds.
    pub u64,
    /// Kind: 0 compute, 1 collective, 2 send, 3 receive, 4 copy, 5 data loader, 6 checkpoint, 7 other.
    pub u8,
    /// Index in [`Timeline::names`].
    pub u32,
    /// Number that equal operations of all ranks share: polygons connect spans with the same number. 0: none.
    pub u32,
);

/// Pipeline stages with their sends and receives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pipeline {
    /// The stages in order; a job without pipeline parallelism has one.
    pub stages: Vec<Stage>,
    /// Sends with the receives that they belong to.
    pub pairs: Vec<Pair>,
    /// Number of pairs that were left out because of the document's limit: evenly spaced steps have theirs.
    #[serde(default)]
    pub pairs_left_out: u64,
    /// Number of sends and receives without their other side.
    pub unpaired: u64,
    /// Number of micro-batches in a step, if sends or receives show it.
    pub micro_batches: Option<u64>,
}

/// A pipeline stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Number of the stage, from 0.
    pub stage: u32,
    /// Ranks of the stage.
    pub ranks: Vec<u32>,
    /// Mean time of a step without the pipeline bubble, in microseconds: the maximum over the ranks.
    pub stage_us: u64,
    /// Mean bubble of a step, in microseconds: the mean over the ranks.
    pub bubble_us: u64,
}

/// A send with its receive. Moments and lengths are in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Number of the step in which the send began.
    pub step: Option<u64>,
    /// Sending rank.
    pub source: u32,
    /// Receiving rank.
    pub destination: u32,
    /// Start and length of the send.
    pub send: (i64, u64),
    /// Start and length of the receive.
    pub receive: (i64, u64),
    /// Bytes, 0 if unknown.
    pub bytes: u64,
}

/// The critical path of one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CriticalStep {
    /// Number of the step.
    pub step: u64,
    /// Segments in the order of time; together they are as long as the step.
    pub segments: Vec<CriticalSegment>,
}

/// A part of the critical path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CriticalSegment {
    /// Rank whose event is on the path.
    pub rank: u32,
    /// Name of the event; empty for a gap.
    pub name: String,
    /// Kind, as in [`TimelineSpan`].
    pub kind: u8,
    /// Start in microseconds.
    pub start_us: i64,
    /// Length in microseconds.
    pub duration_us: u64,
}

/// How much faster the job would run without one cause, from a model of the dependencies in a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WhatIf {
    /// Time of the job by the model with the measured durations, in microseconds.
    pub modelled_us: u64,
    /// Time of the job as measured, in microseconds.
    pub measured_us: u64,
    /// Time if every operation took its expected time on every rank.
    pub ideal_us: u64,
    /// `modelled_us / ideal_us`: the slowdown by all stragglers.
    pub slowdown: f64,
    /// The scenarios, the largest gain first.
    pub scenarios: Vec<Scenario>,
}

/// One scenario of [`WhatIf`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// The cause that is taken away, such as `slowest worker (dp 1, stage 3)` or `communication delays`.
    pub without: String,
    /// Ranks or workers of the cause.
    pub ranks: Vec<u32>,
    /// Time of the job without the cause, in microseconds.
    pub time_us: u64,
    /// `modelled_us / time_us`: how much faster the job would run.
    pub speedup: f64,
    /// Share of the whole slowdown that this cause explains, from 0 to 1.
    pub share: f64,
}

/// An incident that the supervisor recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Incident {
    /// Moment of the first symptom, in microseconds.
    pub at_us: i64,
    /// Class of the fault, such as `exit`.
    pub class: String,
    /// Suspected component.
    pub suspect: String,
    /// The incident and its outcome as a sentence.
    pub sentence: String,
    /// Evidence.
    pub evidence: Vec<EvidenceItem>,
}

/// An observation that may help, with its value and the mean with which it was compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hint {
    /// Name of the rule, such as `link-bandwidth`.
    pub rule: String,
    /// Rank that the hint is about, if it is about one.
    pub rank: Option<u32>,
    /// Step that the hint is about, if it is about one.
    pub step: Option<u64>,
    /// Measured value.
    pub value: f64,
    /// Mean, or the threshold.
    pub mean: f64,
    /// Unit of both.
    pub unit: String,
    /// The hint as a sentence with what to do.
    pub text: String,
}

/// A published limit of the reference tools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// The limit, such as *at most 500 communication files*.
    pub limit: String,
    /// True if it applies to this report.
    pub applies: bool,
    /// Why, or what happens here.
    pub note: String,
}

/// Alignment of the ranks' clocks by shared collectives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Clocks {
    /// Offset that was subtracted from the times of each rank, in microseconds, in the order of [`Analysis::ranks`].
    pub offset_us: Vec<f64>,
    /// Median difference of the ends of shared collectives after the alignment, in microseconds, per rank; `None`: the
    /// rank shares no collective.
    pub residual_us: Vec<Option<f64>>,
    /// One sentence about the quality of the alignment.
    pub sentence: String,
}
