//! The result of an analysis as data: what the report page shows, and what `--json` writes. The page and the JSON have
//! the same figures because both are this document.
//!
//! Times are microseconds, relative to [`Analysis::began_unix_ns`] where they are moments. A table of ranks and steps
//! has one row for each rank, in the order of [`Analysis::ranks`], and one column for each step, in the order of
//! [`Analysis::steps`]; `null`: the trace does not have the figure.

mod figures;
mod kernels;
mod launches;

use crate::tables::capitalized;
pub use figures::*;
pub use kernels::*;
pub use launches::*;
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
    /// Busy and idle time of each device, and its kernels by name.
    #[serde(default)]
    pub kernels: KernelFigures,
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
    /// Which rule judged the trace, and from which steps, as one sentence.
    #[serde(default)]
    pub judged_by: String,
    /// Slow-downs for which no component is blamed, such as that of a stage or of all ranks, each as a sentence.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The supervisor's incidents beside the verdict.
    #[serde(default)]
    pub agreements: Vec<Agreement>,
}

impl Verdict {
    /// Creates a verdict of the sentence, which gets a capital letter and a full stop, and the blamed components.
    #[must_use]
    pub fn new(sentence: &str, is_healthy: bool, blamed: Vec<Blame>) -> Verdict {
        Verdict {
            sentence: capitalized(sentence.trim_end_matches('.')) + ".",
            is_healthy,
            blamed,
            ..Verdict::default()
        }
    }
}

/// An incident of the supervisor compared with the verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement {
    /// Index in [`Analysis::incidents`].
    pub incident: usize,
    /// True if both name the same component, or the verdict one that contains it.
    pub agrees: bool,
    /// The comparison as a sentence.
    pub text: String,
}

/// Figures of one rank, before and since the onset of a slow-down: medians in microseconds per step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ComparedRank {
    /// Global rank.
    pub rank: u32,
    /// True if the rank is a part of the blamed component, false for a peer.
    pub is_suspect: bool,
    /// The quantity named by [`Blame::compared_by`] before the onset.
    pub before_us: Option<f64>,
    /// The same since the onset.
    pub since_us: Option<f64>,
    /// Wait for other ranks since the onset.
    pub wait_us: Option<f64>,
}

/// A component that causes a slowdown or a hang.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// Name of the rule that blames the component: `fail-slow` (the engine of running jobs), `peers` or `links`; empty for
    /// others, such as the evaluation of a hang.
    #[serde(default)]
    pub judged_by: String,
    /// Number of the last affected step, if the component recovered.
    #[serde(default)]
    pub until_step: Option<u64>,
    /// Moment at which the first affected step began, in microseconds.
    #[serde(default)]
    pub began_us: Option<i64>,
    /// Name of the quantity in [`compared`](Blame::compared).
    #[serde(default)]
    pub compared_by: String,
    /// Figures of the suspects, and of the peers with the largest figures.
    #[serde(default)]
    pub compared: Vec<ComparedRank>,
    /// Other explanations, each with the figure that contradicts it, or that does not.
    #[serde(default)]
    pub ruled_out: Vec<EvidenceItem>,
    /// What to do next, the first action first.
    #[serde(default)]
    pub next: Vec<String>,
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
