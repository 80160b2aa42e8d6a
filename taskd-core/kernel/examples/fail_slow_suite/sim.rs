//! Simulated training jobs with realistic noise and at most one injected cause.
//!
//! Noise: per-rank scatter (log-normal, 1 to 3 %), permanent differences between ranks, garbage collection (single long
//! steps), short stalls of two steps, drifts, slow first steps, long steps of all ranks, sequence lengths that vary by replica and step,
//! hiccups of the input pipeline, and checkpoints every 20 to 50 steps. All ranks end a step together: a rank waits for
//! the rest of the step's time.

use std::f32::consts::TAU;
use taskd_kernel::detect::fail_slow::{Cause, Component, Grid, Layout, Row, SERIES, Series};
use taskd_kernel::job::GroupKind;

/// Random numbers (SplitMix64), the same on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Between 0 and 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }

    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(bound)) >> 32) as u32
    }

    pub fn is(&mut self, probability: f32) -> bool {
        self.unit() < probability
    }

    /// Normal distribution (Box-Muller).
    pub fn normal(&mut self) -> f32 {
        let (u, v) = (self.unit().max(1e-7), self.unit());
        (-2.0 * u.ln()).sqrt() * (TAU * v).cos()
    }
}

/// What is wrong with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Healthy,
    UnevenStages,
    LongSequences,
    GarbageCollection,
    GlobalSlowdown,
    StageShift,
    SlowRank,
    SlowRankFromStart,
    SlowHost,
    SlowGroup,
    SlowLink,
    SlowInput,
    SlowJobInput,
    SlowCheckpoint,
}

impl Kind {
    /// Faulty components.
    pub const FAULTS: [Kind; 8] = [
        Kind::SlowRank,
        Kind::SlowRankFromStart,
        Kind::SlowHost,
        Kind::SlowGroup,
        Kind::SlowLink,
        Kind::SlowInput,
        Kind::SlowJobInput,
        Kind::SlowCheckpoint,
    ];

    /// A kind with the shares of the field: 42.5 % of the jobs are slow, and of these 1.7 % because of a faulty
    /// component; uneven stages, sequence lengths and garbage collection dominate (What-if, OSDI'25).
    pub fn in_the_field(random: &mut Random) -> Kind {
        if !random.is(0.425) {
            return Kind::Healthy;
        }
        match random.unit() {
            share if share < 0.017 => Kind::FAULTS[random.below(8) as usize],
            share if share < 0.42 => Kind::UnevenStages,
            share if share < 0.72 => Kind::LongSequences,
            share if share < 0.87 => Kind::GarbageCollection,
            share if share < 0.95 => Kind::GlobalSlowdown,
            _ => Kind::StageShift,
        }
    }
}

/// The injected cause.
#[derive(Clone, Debug)]
pub struct Injected {
    pub kind: Kind,
    /// The faulty component and the cause that a detector must name; `None` if no component is at fault.
    pub expected: Option<(Component, Cause)>,
    pub onset: u64,
    /// Excess of the affected figure, as a fraction.
    pub excess: f32,
    ranks: Vec<u32>,
}

/// Scatter and rates of the noise.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    pub sigma: f32,
    pub pauses: f32,
    pub stalls: f32,
    pub sequences: f32,
    pub uneven_ranks: f32,
    pub drift: f32,
}

/// A simulated job: an iterator over its steps.
#[derive(Debug)]
pub struct Job {
    pub layout: Layout,
    pub injected: Injected,
    pub noise: Noise,
    pub steps: u64,
    random: Random,
    step: u64,
    base: Vec<f32>,
    phase: Vec<f32>,
    period: f32,
    stalled: Vec<(u8, f32)>,
    checkpoint_every: u64,
    checkpoint_ms: f32,
    input_ms: f32,
    group_of: Vec<Vec<usize>>,
    affected: Vec<bool>,
    rows: Vec<Row>,
}

/// Milliseconds of computation in a step of a usual stage: large trainings take about a second and more.
const MS: f32 = 1000.0;

const GRIDS: [Grid; 12] = [
    Grid { dp: 8, tp: 1, pp: 1, cp: 1, ep: 1, per_host: 1 },
    Grid { dp: 16, tp: 1, pp: 1, cp: 1, ep: 1, per_host: 8 },
    Grid { dp: 64, tp: 1, pp: 1, cp: 1, ep: 1, per_host: 8 },
    Grid { dp: 32, tp: 1, pp: 1, cp: 1, ep: 4, per_host: 8 },
    Grid { dp: 4, tp: 4, pp: 2, cp: 1, ep: 1, per_host: 8 },
    Grid { dp: 8, tp: 2, pp: 4, cp: 1, ep: 1, per_host: 8 },
    Grid { dp: 4, tp: 4, pp: 4, cp: 1, ep: 1, per_host: 4 },
    Grid { dp: 8, tp: 8, pp: 1, cp: 1, ep: 1, per_host: 8 },
    Grid { dp: 6, tp: 2, pp: 2, cp: 2, ep: 1, per_host: 8 },
    Grid { dp: 8, tp: 8, pp: 4, cp: 1, ep: 1, per_host: 8 },
    Grid { dp: 2, tp: 4, pp: 4, cp: 1, ep: 1, per_host: 8 },
    Grid { dp: 16, tp: 4, pp: 2, cp: 1, ep: 2, per_host: 8 },
];

impl Job {
    /// A job with a random layout of at most `ranks_max` ranks.
    pub fn new(kind: Kind, ranks_max: u32, seed: u64) -> Job {
        let mut random = Random::new(seed);
        let is_small = |grid: &&Grid| grid.dp * grid.tp * grid.pp * grid.cp <= ranks_max;
        let fits = |grid: &Grid| match kind {
            Kind::UnevenStages | Kind::StageShift | Kind::SlowLink => grid.pp > 1 && grid.dp >= 4,
            Kind::SlowGroup => grid.tp > 1,
            // Below that number of peers of the same role, a rank that has always been slower may have another load.
            Kind::SlowRankFromStart => grid.dp / grid.ep >= 8,
            // A host must be a part of its stage: of two components with the same ranks none can be named.
            Kind::SlowHost => grid.per_host > 1 && grid.dp * grid.tp * grid.cp >= 2 * grid.per_host,
            _ => true,
        };
        let grids: Vec<Grid> = GRIDS.iter().filter(is_small).filter(|grid| fits(grid)).copied().collect();
        let grid = grids[random.below(grids.len() as u32) as usize];
        let noise = Noise {
            sigma: random.between(0.01, 0.03),
            pauses: if kind == Kind::GarbageCollection {
                random.between(0.004, 0.01)
            } else {
                random.between(0.0, 0.003)
            },
            stalls: 1e-5,
            sequences: match kind {
                Kind::LongSequences => random.between(0.04, 0.12),
                _ if random.is(0.3) => random.between(0.01, 0.05),
                _ => 0.0,
            },
            uneven_ranks: random.between(0.002, 0.012),
            drift: random.between(0.0, 0.015),
        };
        Job::with(kind, Layout::grid(grid), noise, random)
    }

    /// A job with this layout and noise.
    pub fn with(kind: Kind, layout: Layout, noise: Noise, mut random: Random) -> Job {
        let ranks = layout.len();
        let stages = layout.places().iter().map(|place| place.stage).max().unwrap_or_default() as usize + 1;
        let is_uneven = kind == Kind::UnevenStages || random.is(0.4);
        let of_stage: Vec<f32> =
            (0..stages).map(|_| if is_uneven { random.between(0.85, 1.25) } else { 1.0 }).collect();
        let base = layout
            .places()
            .iter()
            .map(|place| MS * of_stage[place.stage as usize] * (random.normal() * noise.uneven_ranks).exp());
        let base = base.collect();
        let mut group_of = vec![Vec::new(); ranks];
        for (at, group) in layout.groups().iter().enumerate() {
            if group.id.kind != GroupKind::Pp {
                group.ranks.iter().for_each(|rank| group_of[*rank as usize].push(at));
            }
        }
        let onset = 60 + u64::from(random.below(90));
        let excess = [0.1, 0.2, 0.5, 1.0][random.below(4) as usize] * random.between(1.0, 1.2);
        let injected = inject(kind, &layout, onset, excess, &mut random);
        Job {
            steps: if kind == Kind::SlowCheckpoint { 600 } else { 320 },
            phase: (0..ranks).map(|_| random.between(0.0, TAU)).collect(),
            period: random.between(300.0, 800.0),
            stalled: vec![(0, 0.0); ranks],
            checkpoint_every: if kind == Kind::SlowCheckpoint { 20 } else { 20 + u64::from(random.below(30)) },
            checkpoint_ms: random.between(500.0, 2000.0),
            input_ms: random.between(5.0, 20.0),
            rows: vec![[f32::NAN; SERIES]; ranks],
            step: 0,
            layout,
            affected: (0..ranks).map(|rank| injected.ranks.contains(&(rank as u32))).collect(),
            injected,
            noise,
            random,
            base,
            group_of,
        }
    }

    /// The ranks of the faulty component.
    pub fn faulty(&self) -> &[u32] {
        if self.injected.expected.is_some() { &self.injected.ranks } else { &[] }
    }

    /// Simulates the next step; `None` after the last one.
    pub fn next(&mut self) -> Option<&[Row]> {
        if self.step >= self.steps {
            return None;
        }
        self.step += 1;
        self.compute();
        self.communicate();
        self.finish();
        Some(&self.rows)
    }

    fn is_on(&self, kinds: &[Kind]) -> bool {
        kinds.contains(&self.injected.kind) && self.step >= self.injected.onset
    }

    fn compute(&mut self) {
        let noise = self.noise;
        let is_compute = self.is_on(&[
            Kind::SlowRank,
            Kind::SlowRankFromStart,
            Kind::SlowHost,
            Kind::GlobalSlowdown,
            Kind::StageShift,
        ]);
        let is_checkpoint = self.step.is_multiple_of(self.checkpoint_every);
        let is_slow_checkpoint = self.is_on(&[Kind::SlowCheckpoint]);
        let is_slow_input = self.is_on(&[Kind::SlowInput, Kind::SlowJobInput]);
        let random = &mut self.random;
        let warm_up = if self.step <= 4 { random.between(1.5, 4.0) } else { 1.0 };
        let all = if random.is(0.004) { random.between(1.2, 3.0) } else { 1.0 };
        let replicas = self.layout.places().iter().map(|place| place.replica).max().unwrap_or_default() as usize + 1;
        let length: Vec<f32> = (0..replicas).map(|_| (random.normal() * noise.sequences).exp()).collect();
        let storage = (random.normal() * 0.05).exp();
        for (rank, place) in self.layout.places().iter().enumerate() {
            let mut factor = warm_up * all * length[place.replica as usize] * (random.normal() * noise.sigma).exp();
            factor *= 1.0 + noise.drift * (self.phase[rank] + self.step as f32 / self.period * TAU).sin();
            let (left, longer) = self.stalled[rank];
            if left > 0 {
                self.stalled[rank].0 -= 1;
                factor *= longer;
            } else if random.is(noise.stalls) {
                self.stalled[rank] = (1, random.between(1.2, 2.0));
                factor *= self.stalled[rank].1;
            }
            if random.is(noise.pauses) {
                factor *= random.between(0.18, 1.39).exp();
            }
            if is_compute && self.affected[rank] {
                factor *= 1.0 + self.injected.excess;
            }
            let mut data = self.input_ms * (random.normal() * 0.3).exp();
            if random.is(0.003) {
                data += MS * random.between(0.1, 2.0);
            }
            let mut checkpoint =
                if is_checkpoint { self.checkpoint_ms * storage * (random.normal() * 0.03).exp() } else { 0.0 };
            if self.affected[rank] {
                if is_slow_input {
                    data += MS * self.injected.excess * (random.normal() * 0.1).exp();
                }
                if is_slow_checkpoint {
                    checkpoint *= 1.0 + 5.0 * self.injected.excess;
                }
            }
            let row = &mut self.rows[rank];
            row[Series::Compute as usize] = self.base[rank] * factor;
            row[Series::Data as usize] = data;
            row[Series::Checkpoint as usize] = checkpoint;
            row[Series::Forward as usize] = self.base[rank] * factor * 0.33;
            row[Series::Cpu as usize] = 20.0 * (random.normal() * 0.02).exp();
        }
    }

    fn communicate(&mut self) {
        let slow_link = self.is_on(&[Kind::SlowGroup, Kind::SlowLink]);
        let faulty = match &self.injected.expected {
            Some((Component::Group(id), _)) if slow_link => Some(id.clone()),
            _ => None,
        };
        let random = &mut self.random;
        let excess = 1.0 + 5.0 * self.injected.excess;
        let times = self.layout.groups().iter().map(|group| {
            let share = match group.id.kind {
                GroupKind::Dp => 0.10,
                GroupKind::Tp => 0.08,
                GroupKind::Cp => 0.05,
                _ => 0.06,
            };
            let slow = if faulty.as_ref() == Some(&group.id) { excess } else { 1.0 };
            MS * share * slow * (random.normal() * 0.05).exp()
        });
        let times: Vec<f32> = times.collect();
        for rank in 0..self.rows.len() {
            let transfer = self.group_of[rank].iter().map(|group| times[*group]).sum::<f32>();
            self.rows[rank][Series::Transfer as usize] = transfer * (random.normal() * 0.01).exp();
            let is_slow = slow_link && faulty.is_none() && self.affected[rank];
            let send = MS * 0.05 * (random.normal() * 0.05).exp();
            self.rows[rank][Series::Send as usize] = send * if is_slow { excess } else { 1.0 };
        }
    }

    /// Ranks wait until the last one has finished: all ranks end the step together.
    fn finish(&mut self) {
        let parts = [Series::Compute, Series::Transfer, Series::Send, Series::Data, Series::Checkpoint];
        let own = |row: &Row| parts.iter().map(|series| row[*series as usize]).sum::<f32>();
        let longest = self.rows.iter().map(own).fold(0.0, f32::max);
        self.rows.iter_mut().for_each(|row| row[Series::Wait as usize] = longest - own(row));
    }
}

fn inject(kind: Kind, layout: &Layout, mut onset: u64, excess: f32, random: &mut Random) -> Injected {
    let places = layout.places();
    let rank = random.below(places.len() as u32);
    let place = places[rank as usize];
    let those =
        |is: &dyn Fn(usize) -> bool| (0..places.len()).filter(|at| is(*at)).map(|at| at as u32).collect::<Vec<_>>();
    let everyone = those(&|_| true);
    let (ranks, expected) = match kind {
        Kind::Healthy | Kind::UnevenStages | Kind::LongSequences | Kind::GarbageCollection => (Vec::new(), None),
        Kind::GlobalSlowdown => (everyone, None),
        Kind::StageShift => (those(&|at| places[at].stage == place.stage), None),
        Kind::SlowRank | Kind::SlowRankFromStart => (vec![rank], Some((Component::Rank(rank), Cause::SlowRank))),
        Kind::SlowHost => {
            (those(&|at| places[at].host == place.host), Some((Component::Host(place.host), Cause::SlowHost)))
        }
        Kind::SlowInput => (vec![rank], Some((Component::Rank(rank), Cause::SlowInput))),
        Kind::SlowJobInput => (everyone, Some((Component::Job, Cause::SlowInput))),
        Kind::SlowCheckpoint => (everyone, Some((Component::Job, Cause::SlowCheckpoint))),
        Kind::SlowGroup => {
            let groups = layout.groups().iter().filter(|group| group.id.kind != GroupKind::Pp);
            let of_rank: Vec<_> = groups.filter(|group| group.ranks.contains(&rank)).collect();
            let group = of_rank[random.below(of_rank.len() as u32) as usize];
            (group.ranks.clone(), Some((Component::Group(group.id.clone()), Cause::SlowLink)))
        }
        Kind::SlowLink => {
            let chain = layout.groups().iter().find(|g| g.id.kind == GroupKind::Pp && g.ranks.contains(&rank));
            let chain = chain.map_or(&[][..], |group| &group.ranks);
            let at = random.below(chain.len() as u32 - 1) as usize;
            let (a, b) = (chain[at].min(chain[at + 1]), chain[at].max(chain[at + 1]));
            (vec![a, b], Some((Component::Link(a, b), Cause::SlowLink)))
        }
    };
    if kind == Kind::SlowRankFromStart {
        onset = 1;
    }
    Injected { kind, expected, onset, excess, ranks }
}
