//! The figures of the document: times of steps, overlap, communication, timeline, pipeline, critical path and what-if.

use super::Table;
use serde::{Deserialize, Serialize};

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
    /// Spans of each rank, in the order of [`Analysis::ranks`](super::Analysis::ranks), each list in the order of the
    /// starts.
    pub spans: Vec<Vec<TimelineSpan>>,
    /// Memory use of each rank: moments in microseconds and bytes.
    pub memory: Vec<Vec<(i64, u64)>>,
    /// Floating-point operations of single operations of each rank: the operation's middle in microseconds, and their
    /// number.
    #[serde(default)]
    pub flop: Vec<Vec<(i64, f64)>>,
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
    /// Rank of the event on the path.
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
