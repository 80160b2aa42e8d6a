//! The fail-slow engine: takes the figures of all ranks step by step and reports verdicts.

use super::channel::{Channel, Level, Scratch};
use super::explain::{Context, Explanation};
use super::layout::Layout;
use super::stages;
use super::stats::quantile;
use super::track;
use super::verdict::{Cause, Change, Component, Verdict};
use serde::{Deserialize, Serialize};

/// Number of series.
pub const SERIES: usize = 8;

/// The figures of one rank in one step, in milliseconds, indexed by [`Series`]. NaN: unknown.
pub type Row = [f32; SERIES];

/// A series: a figure that is measured for each rank and step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(usize)]
pub enum Series {
    /// Time of the rank's own computation: without waiting for other ranks, for data, and for checkpoints.
    Compute,
    /// Time in which the rank only waits for other ranks.
    Wait,
    /// Time of its collectives from the arrival of the last member to their end. If it is unknown for all ranks, the
    /// shortest waiting time of all ranks is used: the last rank to arrive waits for the transfer only.
    Transfer,
    /// Time of its point-to-point sends.
    Send,
    /// Time in which the rank waits for the next batch.
    Data,
    /// Time to save a checkpoint; zero or NaN in steps without one.
    Checkpoint,
    /// Time of the forward pass.
    Forward,
    /// Time in which the rank's thread was on a CPU.
    Cpu,
}

/// Number of first steps that are ignored: programs compile and fill caches in them.
pub const WARM_UP_STEPS: u32 = 5;
/// Number of steps after them from which the usual times of each rank are learned. No slow-down that begins earlier is
/// found, except that of a rank with enough peers of its role.
pub const LEARN_STEPS: usize = 20;

/// Weight of a step in the usual CPU time and the usual forward time.
const USUAL_GAIN: f32 = 1.0 / 32.0;
/// Eighth of the peers' waits with which a rank's wait is compared: correct if up to two thirds of them are slow and do
/// not wait.
const WAITS_EIGHTHS: usize = 6;
/// Maximum number of verdicts in force. A further slow-down is counted and not reported until one is cleared.
pub const VERDICTS_MAX: usize = 256;
/// Number of values after which a score that leads to no verdict starts again.
const STALE_COUNT: u32 = 64;

/// A verdict in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Active {
    pub(super) component: Component,
    pub(super) cause: Cause,
    channel: usize,
    pub(super) level: Level,
    pub(super) units: Vec<u32>,
    recovered: Vec<u32>,
}

/// Finds persistent slow-downs in a stream of steps, and the components that cause them.
///
/// Feed it one row of figures for each rank and step. The first [`WARM_UP_STEPS`] steps are ignored; the next
/// [`LEARN_STEPS`] are used to learn the usual values of each rank. From then on each value is split into the effects of
/// the job, of the peers of the same role, of the replica and of the rank (median polish), and each effect is tested for an upward
/// shift (robust CUSUM). A rank is examined when its score reaches its threshold: the shift must be large enough, other
/// ranks must wait for it, and the set of suspicious ranks decides if the rank, its host, its stage, its group or
/// no component is named.
///
/// Two states given the same steps report the same changes. The memory is about 150 bytes for each rank and tested series.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FailSlow {
    layout: Layout,
    channels: Vec<Channel>,
    steps: u32,
    first_step: u64,
    /// Usual computation of each rank in milliseconds; empty until it is known.
    scale: Vec<f32>,
    has_waits: bool,
    usual_cpu: Vec<f32>,
    usual_forward: Vec<f32>,
    active: Vec<Active>,
    /// Number of slow-downs that were not reported, because [`VERDICTS_MAX`] verdicts were in force.
    unreported: u64,
    #[serde(skip)]
    scratch: Scratch,
    #[serde(skip)]
    waits: Vec<f32>,
}

impl FailSlow {
    /// Creates an engine for a job with this layout.
    #[must_use]
    pub fn new(layout: Layout) -> FailSlow {
        let series = [Series::Compute, Series::Transfer, Series::Send, Series::Data, Series::Checkpoint];
        FailSlow {
            layout,
            channels: series.map(Channel::new).to_vec(),
            steps: 0,
            first_step: 0,
            scale: Vec::new(),
            has_waits: false,
            usual_cpu: Vec::new(),
            usual_forward: Vec::new(),
            active: Vec::new(),
            unreported: 0,
            scratch: Scratch::default(),
            waits: Vec::new(),
        }
    }

    /// Returns the layout.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns true if the usual computation of the ranks is known: from then on steps are judged.
    #[must_use]
    pub const fn is_learned(&self) -> bool {
        !self.scale.is_empty()
    }

    /// Returns true if a verdict on the component is in force.
    #[must_use]
    pub fn is_named(&self, component: &Component) -> bool {
        self.active.iter().any(|active| active.component == *component)
    }

    /// Returns the components that verdicts in force blame.
    pub(super) fn blamed(&self) -> impl Iterator<Item = &Component> {
        self.active.iter().filter(|active| active.cause.is_blame()).map(|active| &active.component)
    }

    /// Returns the number of slow-downs that were not reported, because [`VERDICTS_MAX`] verdicts were in force.
    #[must_use]
    pub const fn unreported(&self) -> u64 {
        self.unreported
    }

    /// Takes a step: its number and one row for each rank, in the order of the layout. Returns verdicts that are new or
    /// no longer valid. A step with another number of rows is ignored.
    pub fn step(&mut self, number: u64, rows: &[Row]) -> Vec<Change> {
        let mut found = Vec::new();
        if rows.len() != self.layout.len() || rows.is_empty() {
            return found;
        }
        if self.steps == 0 {
            self.first_step = number;
        }
        self.steps = self.steps.saturating_add(1);
        if self.steps <= WARM_UP_STEPS {
            return found;
        }
        self.take_waits(rows);
        let mut changes = Vec::new();
        for at in 0..self.channels.len() {
            self.take_values(at, rows);
            let channel = &mut self.channels[at];
            if !channel.is_learned {
                channel.learn(&mut self.scratch, &self.scale, &self.layout);
                if channel.is_learned && channel.series == Series::Compute {
                    self.scale = channel.level.iter().map(|level| level.exp()).collect();
                    found.extend(stages::uneven_stage(&self.channels[at], &self.layout, self.first_step));
                }
                continue;
            }
            channel.test(number, &mut self.scratch, &self.scale, &self.waits, &self.layout, &mut changes);
            channel.look_again(&self.scratch.values, &self.layout);
            for (level, unit, change) in changes.drain(..) {
                match change {
                    track::Change::Shifted => self.examine(at, level, unit, rows, &mut found),
                    track::Change::Recovered => self.recover(at, level, unit, &mut found),
                    track::Change::None => {}
                }
            }
        }
        self.follow(rows);
        found
    }

    /// Computes by how much the peers of each rank wait longer than the rank, as a fraction of its usual computation.
    fn take_waits(&mut self, rows: &[Row]) {
        self.waits.clear();
        self.waits.resize(rows.len(), f32::NAN);
        let picked = &mut self.scratch.values;
        for pool in 0..self.layout.pools.count() {
            let ranks = self.layout.pools.ranks(pool);
            let wait = |rank: &u32| rows[*rank as usize][Series::Wait as usize];
            picked.clear();
            picked.extend(ranks.iter().map(wait).filter(|wait| wait.is_finite()));
            self.has_waits |= !picked.is_empty();
            let usual = quantile(picked, WAITS_EIGHTHS);
            for rank in ranks {
                let scale = self.scale.get(*rank as usize).copied().unwrap_or(f32::NAN);
                self.waits[*rank as usize] = (usual - wait(rank)) / scale;
            }
        }
    }

    /// Puts the values of a channel into the working memory.
    fn take_values(&mut self, at: usize, rows: &[Row]) {
        let series = self.channels[at].series;
        let values = &mut self.scratch.values;
        values.clear();
        values.extend(rows.iter().map(|row| row[series as usize]));
        if series == Series::Checkpoint {
            values.iter_mut().filter(|value| **value <= 0.0).for_each(|value| *value = f32::NAN);
        }
        if series == Series::Transfer && !values.iter().any(|value| value.is_finite()) {
            let waits = rows.iter().map(|row| row[Series::Wait as usize]);
            let shortest = waits.filter(|wait| wait.is_finite()).fold(f32::NAN, f32::min);
            values.fill(shortest);
        }
    }

    /// Updates the usual CPU and forward times, which are evidence only.
    fn follow(&mut self, rows: &[Row]) {
        for (usual, series) in [(&mut self.usual_cpu, Series::Cpu), (&mut self.usual_forward, Series::Forward)] {
            if usual.len() != rows.len() {
                *usual = rows.iter().map(|row| row[series as usize]).collect();
            }
            for (usual, row) in usual.iter_mut().zip(rows) {
                let value = row[series as usize];
                let next = *usual + USUAL_GAIN * (value - *usual);
                *usual = if next.is_finite() {
                    next
                } else if usual.is_finite() {
                    *usual
                } else {
                    value
                };
            }
        }
    }

    /// Handles a unit with a score at the threshold.
    fn examine(&mut self, at: usize, level: Level, unit: usize, rows: &[Row], found: &mut Vec<Change>) {
        let channel = &self.channels[at];
        let limits = channel.limits(level);
        if channel.track(level).is_blamed(unit) {
            return; // another unit's verdict in the same step covers it
        }
        let Some((run, is_weak)) = channel.track(level).run(unit, &limits) else { return };
        let context = Context {
            channel,
            compute: &self.channels[0],
            layout: &self.layout,
            scale: &self.scale,
            has_waits: self.has_waits,
            first_step: self.first_step,
            usual: [&self.usual_cpu, &self.usual_forward],
            rows,
            limits: channel.limits(Level::Rank),
        };
        match context.explain(level, unit, &run, is_weak) {
            Explanation::Verdict(verdict, units) => self.enact(at, level, units, verdict, found),
            Explanation::None if run.count >= STALE_COUNT => self.channels[at].track_mut(level).reset(unit),
            Explanation::None | Explanation::Later => {}
        }
    }

    fn enact(&mut self, at: usize, level: Level, units: Vec<u32>, verdict: Verdict, found: &mut Vec<Change>) {
        if self.active.len() >= VERDICTS_MAX {
            self.unreported += 1;
            return;
        }
        // A verdict on a larger component replaces those on its parts.
        let is_replaced =
            |old: &Active| old.channel == at && old.level == level && old.units.iter().all(|unit| units.contains(unit));
        let replaced = self.active.iter().filter(|old| is_replaced(old));
        found.extend(replaced.map(|old| Change::Cleared { component: old.component.clone(), cause: old.cause }));
        self.active.retain(|old| !is_replaced(old));
        let track = self.channels[at].track_mut(level);
        for unit in &units {
            let shift = track.shift(*unit as usize);
            track.blame(*unit as usize, shift);
        }
        let (component, cause) = (verdict.component.clone(), verdict.cause);
        self.active.push(Active { component, cause, channel: at, level, units, recovered: Vec::new() });
        found.push(Change::Found(verdict));
    }

    /// Handles a blamed unit that has recovered. A verdict ends when more than half of its units have.
    fn recover(&mut self, at: usize, level: Level, unit: usize, found: &mut Vec<Change>) {
        let Ok(unit) = u32::try_from(unit) else { return };
        let is_its = |active: &Active| active.channel == at && active.level == level && active.units.contains(&unit);
        let Some(index) = self.active.iter().position(is_its) else {
            self.channels[at].track_mut(level).reset(unit as usize);
            return;
        };
        let active = &mut self.active[index];
        if !active.recovered.contains(&unit) {
            active.recovered.push(unit);
        }
        if active.recovered.len() * 2 > active.units.len() {
            let active = self.active.remove(index);
            let track = self.channels[at].track_mut(level);
            active.units.iter().for_each(|unit| track.reset(*unit as usize));
            found.push(Change::Cleared { component: active.component, cause: active.cause });
        }
    }

    /// Returns true if the state is consistent. It is not if it was read from damaged data.
    pub(super) fn is_sound(&self) -> bool {
        let series = |channels: &[Channel]| channels.iter().map(|channel| channel.series).collect::<Vec<_>>();
        let is_scaled = self.scale.len() == self.layout.len() || self.scale.is_empty();
        self.layout.is_sound()
            && series(&self.channels) == series(&FailSlow::new(Layout::new(Vec::new(), Vec::new())).channels)
            && self.channels.iter().all(|channel| channel.is_sound(&self.layout))
            && self.channels[0].is_learned != self.scale.is_empty()
            && is_scaled
            && self.active.iter().all(|active| active.channel < self.channels.len())
    }
}
