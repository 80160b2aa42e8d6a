//! A synchronous training job in numbers: what each rank needs for a step, and so how long all wait for which rank.
//!
//! It knows no detector.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use taskd_core::trace::StepTimes;

const STEP_NS: f64 = 100e6;
const COMMUNICATION_NS: f64 = 8e6;
const LOADER_NS: f64 = 4e6;

/// How the ranks' parts of a step differ while nothing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// All the same.
    Even,
    /// Constant: a few pipeline stages of different length.
    Stages,
    /// Each step another length, for all and for each.
    Sequences,
    /// Four ranks on two cores: now and then two of them are in each other's way for some steps.
    Crowded,
}

/// What becomes slow, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Starved,
    Computing,
    Data,
}

/// A rank needs more time.
#[derive(Clone, Debug)]
pub(crate) struct Slowdown {
    pub(crate) ranks: BTreeSet<u32>,
    pub(crate) percent: u32,
    pub(crate) cause: Cause,
    pub(crate) from: u64,
    pub(crate) until: u64,
}

pub(crate) struct Training {
    rng: StdRng,
    pub(crate) ranks: u32,
    pub(crate) load: Load,
    jitter: f64,
    shares: Vec<f64>,
    /// What all ranks' steps have in common, and follows from step to step.
    weather: f64,
    /// Until which step these two are in each other's way.
    crowd: (u32, u32, u64),
    step: u64,
    pub(crate) slowdown: Option<Slowdown>,
}

impl Training {
    pub(crate) fn new(seed: u64) -> Training {
        let mut rng = StdRng::seed_from_u64(seed);
        let load = [Load::Even, Load::Stages, Load::Sequences, Load::Crowded][rng.random_range(0..4)];
        let ranks = if load == Load::Crowded { 4 } else { [4, 8, 8, 16, 16, 64][rng.random_range(0..6)] };
        let share = |rank: u32| match load {
            Load::Stages => [0.7, 0.85, 1.0, 0.9][(rank * 4 / ranks) as usize],
            _ => 1.0,
        };
        let jitter = rng.random_range(0.05..0.10);
        let shares = (0..ranks).map(share).collect();
        Training { rng, ranks, load, jitter, shares, weather: 0.0, crowd: (0, 0, 0), step: 0, slowdown: None }
    }

    /// Ranks of the longest stage: if one of these needs more, all ranks do.
    pub(crate) fn critical(&self) -> Vec<u32> {
        (0..self.ranks).filter(|rank| self.shares[*rank as usize] >= 1.0).collect()
    }

    /// The next step of all ranks. Some are lost on the way.
    pub(crate) fn step(&mut self) -> Vec<(u32, StepTimes)> {
        self.step += 1;
        let length = self.length();
        if self.step >= self.crowd.2 && self.load == Load::Crowded && self.rng.random_bool(0.03) {
            let until = self.step + self.rng.random_range(2..5);
            self.crowd = (self.rng.random_range(0..4), self.rng.random_range(0..4), until);
        }
        let parts: Vec<Part> = (0..self.ranks).map(|rank| self.part(rank, length)).collect();
        let longest = parts.iter().map(|part| part.own).fold(0.0, f64::max);
        let wall = longest + COMMUNICATION_NS * self.normal(0.1).exp();
        let ranks = parts.into_iter().zip(0..);
        let reported = ranks.filter_map(|(part, rank)| {
            let is_reported = !self.rng.random_bool(0.003);
            let lost = if self.rng.random_bool(0.01) { 3 } else { 0 };
            is_reported.then(|| (rank, part.times(self.step, wall, lost)))
        });
        reported.collect()
    }

    /// How long the step is for all ranks: warming up, evaluation, sequence lengths, the machine.
    fn length(&mut self) -> f64 {
        self.weather = 0.8 * self.weather + self.normal(0.04);
        let warming_up = if self.step <= 3 { 10.0 } else { 1.0 };
        let evaluation = if self.step.is_multiple_of(40) { 4.0 } else { 1.0 };
        let sequences = if self.load == Load::Sequences { self.rng.random_range(0.6..1.4) } else { 1.0 };
        warming_up * evaluation * sequences * self.weather.exp()
    }

    fn part(&mut self, rank: u32, length: f64) -> Part {
        let sequence = if self.load == Load::Sequences { self.rng.random_range(0.9..1.1) } else { 1.0 };
        let crowded = self.step < self.crowd.2 && (rank == self.crowd.0 || rank == self.crowd.1);
        let in_the_way = if crowded { 1.25 } else { 1.0 };
        let work =
            STEP_NS * self.shares[rank as usize] * length * sequence * in_the_way * self.normal(self.jitter).exp();
        let pause = if self.rng.random_bool(0.01) { STEP_NS * self.rng.random_range(0.5..2.0) } else { 0.0 };
        let checkpoint = if rank == 0 && self.step.is_multiple_of(25) { 2e9 } else { 0.0 };
        let slow = self.slowdown.as_ref();
        let slow = slow.filter(|s| s.ranks.contains(&rank) && (s.from..s.until).contains(&self.step));
        let extra = slow.map_or(0.0, |s| work * f64::from(s.percent) / 100.0);
        let cause = slow.map(|s| s.cause);
        Part {
            own: work + pause + checkpoint + extra,
            cpu: work * 0.97 + pause + if cause == Some(Cause::Computing) { extra } else { 0.0 },
            data: LOADER_NS + if cause == Some(Cause::Data) { extra } else { 0.0 },
            checkpoint,
        }
    }

    /// Normally distributed (Box and Muller).
    fn normal(&mut self, deviation: f64) -> f64 {
        let (size, angle): (f64, f64) = (1.0 - self.rng.random::<f64>(), self.rng.random());
        (-2.0 * size.ln()).sqrt() * (std::f64::consts::TAU * angle).cos() * deviation
    }

    pub(crate) fn dice(&mut self) -> &mut StdRng {
        &mut self.rng
    }
}

/// One rank's part of a step, in nanoseconds.
struct Part {
    own: f64,
    cpu: f64,
    data: f64,
    checkpoint: f64,
}

impl Part {
    fn times(&self, step: u64, wall: f64, lost: u64) -> StepTimes {
        StepTimes {
            step,
            wall_ns: nanos(wall),
            cpu_ns: Some(nanos(self.cpu)),
            wait_ns: nanos(wall - self.own),
            communication_ns: nanos(wall - self.own),
            data_loader_ns: nanos(self.data),
            save_checkpoint_ns: nanos(self.checkpoint),
            communications: 2,
            lost,
            ..StepTimes::default()
        }
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and far below 2^64")]
fn nanos(time: f64) -> u64 {
    time as u64
}
