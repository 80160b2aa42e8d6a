//! One series of all ranks: learns its usual values, removes what peers share, and tests what remains.
//!
//! A value is split into the effect of the job, of the peers (role or stage), of the replica, and of the rank itself.
//! Each effect has tests of its own: a long step of all ranks, an uneven stage and a replica with long sequences
//! therefore leave no trace in the figures of a rank.

use super::Series;
use super::engine::LEARN_STEPS;
use super::layout::Layout;
use super::second_look::SecondLook;
use super::stats::{median, quantile};
use super::track::{Change, Limits, Track};
use serde::{Deserialize, Serialize};

/// Eighth of the peers' values that is the reference: correct if up to half of the peers have become slower, or up to a
/// third of them faster.
const PEERS_EIGHTHS: usize = 3;
/// The same for the ranks of one replica: up to three quarters may be slower.
const REPLICA_EIGHTHS: usize = 2;
/// Weight of the latest step in the smoothed references.
const SMOOTHING: f32 = 0.25;

/// Settings of a series.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Tuning {
    /// Number of values from which the usual ones are learned.
    pub(super) learn: usize,
    /// True if values are compared as logarithms, false if as fractions of the usual computation.
    pub(super) is_log: bool,
    /// Share of the usual computation that is added to a value before its logarithm is taken. Values that are short beside
    /// the computation scatter widely, and none of it matters to the job.
    offset: f32,
    /// True if ranks are compared with the ranks of their role, false if with all ranks.
    pub(super) by_role: bool,
    /// Index of the smallest shift that is tested.
    first: usize,
    /// Minimum standard deviation.
    floor: f32,
    /// Minimum shift for a verdict.
    pub(super) shift_min: f32,
    /// Minimum excess for a verdict, as a fraction of the usual computation.
    pub(super) share_min: f32,
    /// Number of standard errors by which the shift must exceed half of `shift_min`.
    pub(super) errors: f32,
    /// Minimum number of values for a verdict; one more if only the smallest shift has been found.
    pub(super) count_min: u32,
    /// Natural logarithm of the number of steps that a healthy job passes without an alarm.
    clean: f32,
}

impl Tuning {
    pub(super) fn of(series: Series) -> Tuning {
        let usual = Tuning {
            learn: LEARN_STEPS,
            is_log: true,
            offset: 0.05,
            by_role: false,
            first: 1,
            floor: 0.03,
            shift_min: 0.1,
            share_min: 0.02,
            errors: 5.0,
            count_min: 4,
            clean: 16.0,
        };
        match series {
            Series::Compute => {
                Tuning { offset: 0.0, by_role: true, first: 0, floor: 0.01, shift_min: 0.065, share_min: 0.0, ..usual }
            }
            Series::Data => Tuning { is_log: false, first: 0, floor: 0.01, shift_min: 0.065, ..usual },
            Series::Checkpoint => Tuning {
                learn: 4,
                first: 2,
                floor: 0.08,
                shift_min: 0.25,
                errors: 3.0,
                count_min: 3,
                clean: 10.0,
                ..usual
            },
            _ => usual,
        }
    }
}

/// What a unit of a test is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Level {
    Job,
    Pool,
    Replica,
    Rank,
}

/// Working memory of one step.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    pub(super) values: Vec<f32>,
    picked: Vec<f32>,
    pools: Vec<f32>,
    replicas: Vec<f32>,
    job: f32,
}

/// A series and its tests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Channel {
    pub(super) series: Series,
    pub(super) tuning: Tuning,
    /// Values from which the usual ones are learned, row by row; empty afterwards.
    rows: Vec<f32>,
    pub(super) is_learned: bool,
    /// True if the latest step has values of checkpoints.
    has_saved: bool,
    /// Usual value of each rank.
    pub(super) level: Vec<f32>,
    /// True for ranks that have been slow from the start.
    pub(super) from_start: Vec<bool>,
    /// What is known until ranks that are slow from the start are sought again.
    pub(super) second_look: SecondLook,
    /// Smoothed reference of the peers of each rank: of its pool and of its replica.
    pools_now: Vec<f32>,
    replicas_now: Vec<f32>,
    pub(super) job: Track,
    pub(super) pools: Track,
    pub(super) replicas: Track,
    pub(super) ranks: Track,
}

impl Channel {
    pub(super) fn new(series: Series) -> Channel {
        Channel {
            series,
            tuning: Tuning::of(series),
            rows: Vec::new(),
            is_learned: false,
            has_saved: false,
            level: Vec::new(),
            from_start: Vec::new(),
            second_look: SecondLook::default(),
            pools_now: Vec::new(),
            replicas_now: Vec::new(),
            job: Track::default(),
            pools: Track::default(),
            replicas: Track::default(),
            ranks: Track::default(),
        }
    }

    pub(super) fn track(&self, level: Level) -> &Track {
        match level {
            Level::Job => &self.job,
            Level::Pool => &self.pools,
            Level::Replica => &self.replicas,
            Level::Rank => &self.ranks,
        }
    }

    pub(super) fn track_mut(&mut self, level: Level) -> &mut Track {
        match level {
            Level::Job => &mut self.job,
            Level::Pool => &mut self.pools,
            Level::Replica => &mut self.replicas,
            Level::Rank => &mut self.ranks,
        }
    }

    pub(super) fn limits(&self, level: Level) -> Limits {
        self.track(level).limits(self.tuning.clean)
    }

    /// Learns from a step. `scratch.values` holds the raw values in milliseconds, `scale` the usual computation.
    pub(super) fn learn(&mut self, scratch: &mut Scratch, scale: &[f32], layout: &Layout) {
        if !scratch.values.iter().any(|value| value.is_finite()) {
            return;
        }
        let ranks = layout.len();
        if self.rows.len() >= LEARN_STEPS * ranks {
            self.rows.drain(..ranks); // the usual computation is not known yet
        }
        self.rows.extend(&scratch.values);
        let is_scaled = self.series == Series::Compute || !scale.is_empty();
        if self.rows.len() < self.tuning.learn * ranks || !is_scaled {
            return;
        }
        let mut rows = std::mem::take(&mut self.rows);
        for row in rows.chunks_mut(ranks) {
            self.normalize(row, scale);
        }
        let mut column = Vec::with_capacity(self.tuning.learn);
        self.level = (0..ranks)
            .map(|rank| {
                column.clear();
                column.extend(rows.iter().skip(rank).step_by(ranks).filter(|value| value.is_finite()));
                // A rank with too few values is not judged.
                if column.len() * 2 < self.tuning.learn { f32::NAN } else { median(&mut column) }
            })
            .collect();
        self.begin_second_look(layout);
        self.find_slow_from_start(&rows, layout);
        self.learn_tracks(&rows, scratch, layout);
        self.is_learned = true;
    }

    fn learn_tracks(&mut self, rows: &[f32], scratch: &mut Scratch, layout: &Layout) {
        let (mut job, mut pools, mut replicas, mut ranks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for row in rows.chunks(layout.len()) {
            scratch.values.clear();
            scratch.values.extend(row);
            self.separate(scratch, layout);
            job.push(scratch.job);
            pools.extend(&scratch.pools);
            replicas.extend(&scratch.replicas);
            ranks.extend(&scratch.values);
        }
        let (first, floor) = (self.tuning.first, self.tuning.floor);
        let is_slow = |replica: usize| {
            let ranks = layout.replicas.ranks(replica);
            ranks.iter().filter(|rank| self.from_start[**rank as usize]).count() * 2 > ranks.len()
        };
        self.job = Track::learn(&job, 1, first, floor, |_| false);
        self.pools = Track::learn(&pools, scratch.pools.len(), first, floor, |_| false);
        self.replicas = Track::learn(&replicas, scratch.replicas.len(), first, floor, is_slow);
        self.ranks = Track::learn(&ranks, layout.len(), first, floor, |rank| self.from_start[rank]);
        let limits = self.limits(Level::Rank);
        for rank in (0..layout.len()).filter(|rank| self.from_start[*rank]) {
            self.ranks.suspect(rank, &limits);
        }
        self.pools_now = vec![0.0; scratch.pools.len().max(1)];
        self.replicas_now = vec![0.0; scratch.replicas.len()];
    }

    fn normalize(&self, values: &mut [f32], scale: &[f32]) {
        if self.tuning.is_log {
            for (rank, value) in values.iter_mut().enumerate() {
                *value = if *value > 0.0 { (*value + self.offset_ms(rank, scale)).ln() } else { f32::NAN };
            }
        } else {
            values.iter_mut().zip(scale).for_each(|(value, scale)| *value /= scale);
        }
    }

    /// Returns the time in milliseconds that is added to a rank's values before their logarithm is taken.
    pub(super) fn offset_ms(&self, rank: usize, scale: &[f32]) -> f32 {
        let scale = scale.get(rank).copied().filter(|scale| scale.is_finite());
        self.tuning.offset * scale.unwrap_or_default()
    }

    /// Splits the values of a step into the effects of the job, the pools, the replicas and the ranks.
    fn separate(&self, scratch: &mut Scratch, layout: &Layout) {
        let Scratch { values, picked, pools, replicas, job } = scratch;
        values.iter_mut().zip(&self.level).for_each(|(value, level)| *value -= level);
        pools.clear();
        replicas.clear();
        if !self.tuning.by_role || layout.pools.count() < 2 {
            picked.clear();
            picked.extend(values.iter().filter(|value| value.is_finite()));
            *job = quantile(picked, PEERS_EIGHTHS);
            values.iter_mut().for_each(|value| *value -= *job);
            if !self.tuning.by_role {
                return;
            }
        } else {
            for pool in 0..layout.pools.count() {
                pools.push(remove(values, picked, layout.pools.ranks(pool), PEERS_EIGHTHS));
            }
            picked.clear();
            picked.extend(pools.iter().filter(|value| value.is_finite()));
            *job = median(picked);
            pools.iter_mut().for_each(|value| *value -= *job);
        }
        if layout.has_replicas() {
            for replica in 0..layout.replicas.count() {
                replicas.push(remove(values, picked, layout.replicas.ranks(replica), REPLICA_EIGHTHS));
            }
        }
    }

    /// Tests the values of a step, which are in `scratch.values`, in milliseconds. `waits` is the additional figure of
    /// each rank. Returns the units with a changed state in `changes`.
    pub(super) fn test(
        &mut self,
        step: u64,
        scratch: &mut Scratch,
        scale: &[f32],
        waits: &[f32],
        layout: &Layout,
        changes: &mut Vec<(Level, usize, Change)>,
    ) {
        self.normalize(&mut scratch.values, scale);
        self.separate(scratch, layout);
        let is_after_save =
            std::mem::replace(&mut self.has_saved, scratch.job.is_finite() && self.series == Series::Checkpoint);
        if !scratch.job.is_finite() {
            // Peers of a rank that saves after its last collective wait in the next step.
            if is_after_save {
                waits.iter().enumerate().for_each(|(rank, wait)| self.ranks.add_wait(rank, *wait));
            }
            return;
        }
        let limits = [Level::Job, Level::Pool, Level::Replica, Level::Rank].map(|level| self.limits(level));
        let mut note = |level, unit, change| {
            if change != Change::None {
                changes.push((level, unit, change));
            }
        };
        note(Level::Job, 0, self.job.add(0, scratch.job, 0.0, step, &limits[0]));
        for (pool, value) in scratch.pools.iter().enumerate() {
            note(Level::Pool, pool, self.pools.add(pool, *value, 0.0, step, &limits[1]));
            smooth(&mut self.pools_now, pool, *value + scratch.job);
        }
        if scratch.pools.is_empty() {
            smooth(&mut self.pools_now, 0, scratch.job); // all ranks are one pool: its effect is that of the job
        }
        for (replica, value) in scratch.replicas.iter().enumerate() {
            let wait = mean(layout.replicas.ranks(replica), waits);
            note(Level::Replica, replica, self.replicas.add(replica, *value, wait, step, &limits[2]));
            smooth(&mut self.replicas_now, replica, *value);
        }
        for (rank, value) in scratch.values.iter().enumerate() {
            let wait = waits.get(rank).copied().unwrap_or(f32::NAN);
            note(Level::Rank, rank, self.ranks.add(rank, *value, wait, step, &limits[3]));
        }
    }

    /// Returns how much longer than usual the peers of the rank need now (natural logarithm).
    pub(super) fn peers_now(&self, rank: usize, layout: &Layout) -> f32 {
        let of = |values: &[f32], units: &[u32]| {
            units.get(rank).and_then(|unit| values.get(*unit as usize)).copied().unwrap_or_default()
        };
        of(&self.pools_now, &layout.pools.of) + of(&self.replicas_now, &layout.replicas.of)
    }

    /// Returns true if the lengths of all tables fit the layout.
    pub(super) fn is_sound(&self, layout: &Layout) -> bool {
        let ranks = layout.len();
        let learned = [self.level.len(), self.from_start.len(), self.ranks.len()];
        let expected = if self.is_learned { [ranks; 3] } else { [0; 3] };
        let is_whole = self.rows.len().checked_rem(ranks).unwrap_or(self.rows.len()) == 0;
        let tracks = [&self.job, &self.pools, &self.replicas, &self.ranks];
        let is_valid = !self.is_learned || tracks.iter().all(|track| track.is_sound());
        self.tuning == Tuning::of(self.series)
            && learned == expected
            && is_whole
            && is_valid
            && self.second_look.is_sound(ranks)
    }
}

/// Subtracts the reference of these ranks from their values, and returns it; NaN if no rank has a value.
pub(super) fn remove(values: &mut [f32], picked: &mut Vec<f32>, ranks: &[u32], eighths: usize) -> f32 {
    picked.clear();
    picked.extend(ranks.iter().map(|rank| values[*rank as usize]).filter(|value| value.is_finite()));
    let reference = quantile(picked, eighths);
    ranks.iter().for_each(|rank| values[*rank as usize] -= reference);
    reference
}

#[allow(clippy::cast_precision_loss, reason = "a count of ranks, of which only the first digits matter")]
fn mean(ranks: &[u32], values: &[f32]) -> f32 {
    let known = ranks.iter().filter_map(|rank| values.get(*rank as usize)).filter(|value| value.is_finite());
    let (sum, count) = known.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / count as f32
}

fn smooth(values: &mut [f32], at: usize, value: f32) {
    if let Some(smoothed) = values.get_mut(at)
        && value.is_finite()
    {
        *smoothed += SMOOTHING * (value - *smoothed);
    }
}
