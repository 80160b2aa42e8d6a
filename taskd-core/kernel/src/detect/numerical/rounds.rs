//! Collects the ranks' reports of one metric: the reports of one step form a round.
//!
//! Ranks that do not name the step are compared by the number of their report, the n-th of every rank of a generation.
//! Ranks of one program report at the same steps. Where they do not, the reports of a round are far apart in time, and no
//! rank can be compared with the others. This module decides nothing.

use super::series::{Limits, Series, Verdict};
use crate::job::{JobTime, Rank};
use crate::state::View;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Maximum number of rounds that wait for reports. Above it the oldest is judged without the missing ranks.
pub(super) const ROUNDS_MAX: usize = 64;

/// How long a round with a conspicuous value waits for the other ranks.
pub(super) const WAIT: Duration = Duration::from_secs(30);

/// Reports of one round.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Round {
    /// True if the ranks have named the step of this round.
    is_step: bool,
    first: JobTime,
    last: JobTime,
    reported: BTreeSet<u32>,
    /// Values that are not as usual, by rank.
    pub(super) conspicuous: BTreeMap<u32, (f64, Verdict)>,
}

/// A round that is judged.
#[derive(Debug)]
pub(super) struct Judged {
    /// Number of the round, from 1.
    pub(super) number: u64,
    /// True if the number is that of a training step.
    pub(super) is_step: bool,
    /// Time of the first report.
    pub(super) at: JobTime,
    /// Ranks that have reported.
    pub(super) ranks: BTreeSet<u32>,
    /// Values that are not as usual, by rank.
    pub(super) conspicuous: BTreeMap<u32, (f64, Verdict)>,
    /// True if all ranks that report this metric are in the round, and have named the step or have reported within half
    /// of the time between two rounds: their reports belong to one step, and can be compared.
    pub(super) is_comparable: bool,
}

/// Rounds of one metric.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Rounds {
    series: BTreeMap<u32, Series>,
    open: BTreeMap<u64, Round>,
    /// Number of the newest judged round, and the time of its first report.
    judged: Option<(u64, JobTime)>,
    /// Number of reports that arrived after their round was judged.
    pub(super) late: u64,
}

impl Rounds {
    /// Adds a rank's next report, which belongs to a training step if the rank has named it.
    pub(super) fn add(&mut self, rank: Rank, step: Option<u64>, value: f64, at: JobTime, limits: &Limits) {
        let series = self.series.entry(rank.0).or_default();
        let verdict = series.add(value, limits);
        let number = step.unwrap_or(series.reports);
        if self.judged.is_some_and(|(judged, _)| number <= judged) {
            self.late = self.late.saturating_add(1);
            return;
        }
        let round = self.open.entry(number).or_insert_with(|| Round {
            is_step: step.is_some(),
            first: at,
            last: at,
            reported: BTreeSet::new(),
            conspicuous: BTreeMap::new(),
        });
        round.reported.insert(rank.0);
        (round.first, round.last) = (round.first.min(at), round.last.max(at));
        if verdict != Verdict::Usual {
            round.conspicuous.insert(rank.0, (value, verdict));
        }
    }

    /// Forgets the usual values of all ranks, because the level of the metric has changed.
    pub(super) fn forget(&mut self) {
        self.series.values_mut().for_each(Series::forget);
    }

    /// Removes and returns the oldest round if it can be judged: all ranks have reported, too many rounds wait, or it
    /// has waited too long.
    pub(super) fn next(&mut self, view: &View) -> Option<Judged> {
        let (_, round) = self.open.first_key_value()?;
        // In the first round the number of ranks that report is not known yet.
        let is_whole = round.reported.len() >= self.series.len() && (self.judged.is_some() || self.open.len() > 1);
        if !is_whole && self.open.len() <= ROUNDS_MAX && self.due().is_none_or(|due| due > view.now) {
            return None;
        }
        let (number, Round { is_step, first, last, reported, conspicuous }) = self.open.pop_first()?;
        let before = self.judged.replace((number, first));
        let interval = before.map(|(_, before)| first.since(before));
        let is_close = is_step || interval.is_some_and(|interval| last.since(first) <= interval / 2);
        let is_comparable = is_whole && is_close;
        Some(Judged { number, is_step, at: first, ranks: reported, conspicuous, is_comparable })
    }

    /// Returns the time until which the oldest round waits, if a round has a conspicuous value.
    pub(super) fn due(&self) -> Option<JobTime> {
        let first = self.open.values().find(|round| !round.conspicuous.is_empty())?;
        Some(first.last + WAIT)
    }
}
