//! Other rules for comparison, on the best input that they can have: the computation of each rank, divided by the
//! median of its stage in the same step. They blame ranks only.

use taskd_kernel::detect::fail_slow::{Layout, Row, Series};

/// Steps that all rules ignore, as the engine does.
const WARM_UP: u32 = 5;

/// The three rules, one state for each rank.
#[derive(Debug)]
pub struct Rivals {
    stage: Vec<usize>,
    ranks: Vec<[State; 3]>,
    steps: u32,
}

impl Rivals {
    pub const NAMES: [&'static str; 3] = ["reference rule", "sliding window", "BOCD+V"];

    pub fn new(layout: &Layout) -> Rivals {
        let stage = layout.places().iter().map(|place| place.stage as usize).collect();
        let states =
            || [State::Reference(Reference::default()), State::Window(Vec::new()), State::Bocd(Bocd::default())];
        Rivals { stage, ranks: layout.places().iter().map(|_| states()).collect(), steps: 0 }
    }

    /// Takes a step; returns the rules that blame a rank now and did not before.
    pub fn step(&mut self, rows: &[Row]) -> Vec<(&'static str, u32)> {
        self.steps += 1;
        if self.steps <= WARM_UP {
            return Vec::new();
        }
        let stages = self.stage.iter().max().map_or(0, |stage| stage + 1);
        let mut values = vec![Vec::new(); stages];
        for (row, stage) in rows.iter().zip(&self.stage) {
            values[*stage].push(row[Series::Compute as usize]);
        }
        let medians: Vec<f32> = values
            .iter_mut()
            .map(|values| {
                values.sort_by(f32::total_cmp);
                values[values.len() / 2]
            })
            .collect();
        let mut found = Vec::new();
        for (rank, states) in self.ranks.iter_mut().enumerate() {
            let value = f64::from(rows[rank][Series::Compute as usize] / medians[self.stage[rank]]);
            for (name, state) in Self::NAMES.iter().zip(states) {
                let blames = match state {
                    State::Blamed => false,
                    State::Reference(rule) => rule.blames(value),
                    State::Window(past) => window_blames(past, value),
                    State::Bocd(rule) => rule.blames(value),
                };
                if blames {
                    *state = State::Blamed;
                    found.push((*name, rank as u32));
                }
            }
        }
        found
    }
}

#[derive(Debug)]
enum State {
    Blamed,
    Reference(Reference),
    Window(Vec<f64>),
    Bocd(Bocd),
}

/// The rule of the reference: baseline of the first 20 values without the three smallest and largest; slow if three
/// values in a row exceed it by 30 %.
#[derive(Debug, Default)]
struct Reference {
    first: Vec<f64>,
    mean: f64,
    count: f64,
    in_a_row: u32,
}

impl Reference {
    fn blames(&mut self, value: f64) -> bool {
        if self.count == 0.0 {
            self.first.push(value);
            if self.first.len() == 20 {
                self.first.sort_by(f64::total_cmp);
                self.mean = self.first[3..17].iter().sum::<f64>() / 14.0;
                self.count = 14.0;
            }
            return false;
        }
        if value > self.mean * 1.3 {
            self.in_a_row += 1;
        } else {
            self.in_a_row = 0;
            self.count += 1.0;
            self.mean += (value - self.mean) / self.count;
        }
        self.in_a_row >= 3
    }
}

/// Slow if the median of ten values exceeds the median of the 20 before them by 10 %.
fn window_blames(past: &mut Vec<f64>, value: f64) -> bool {
    past.push(value);
    if past.len() > 30 {
        past.remove(0);
    }
    past.len() == 30 && median(&past[20..]) > 1.1 * median(&past[..20])
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Maximum run length, run length up to which a change is recent, and hazard of a change.
const RUN_MAX: usize = 80;
const RECENT: usize = 4;
const HAZARD: f64 = 1.0 / 250.0;

/// Bayesian online change-point detection (Adams and MacKay), Gaussian with unknown mean and variance, with Greyhound's
/// verification: a change with a probability above 0.9 counts if the values before and after it differ by 10 %. Medians
/// are compared where Greyhound compares means, because single pauses would pass the verification otherwise.
#[derive(Debug, Default)]
struct Bocd {
    past: Vec<f64>,
    /// Probability of each run length, with mean, count and sum of squares.
    runs: Vec<(f64, f64, f64, f64)>,
}

impl Bocd {
    fn blames(&mut self, value: f64) -> bool {
        self.past.push(value);
        let prior = (1.0, 1.0, 1.0, 0.0004); // probability, mean, weight, squares of a new run
        if self.runs.is_empty() {
            self.runs.push(prior);
        }
        let mut next = Vec::with_capacity(self.runs.len() + 1);
        let mut change = 0.0;
        for (probability, mean, count, squares) in &self.runs {
            let variance = (squares / count) * (1.0 + 1.0 / count);
            // Student's t with `count` degrees of freedom, without factors that are the same for all run lengths.
            let t = (1.0 + (value - mean) * (value - mean) / (variance * count)).powf(-(count + 1.0) / 2.0);
            let factor = if *count < 30.0 {
                [std::f64::consts::FRAC_1_PI, 0.354, 0.368, 0.375, 0.38, 0.39][(*count as usize / 2).min(5)]
            } else {
                0.396
            };
            let density = factor * t / variance.sqrt();
            change += probability * density * HAZARD;
            let moved = mean + (value - mean) / (count + 1.0);
            let grown = squares + (value - mean) * (value - moved);
            next.push((probability * density * (1.0 - HAZARD), moved, count + 1.0, grown));
        }
        next.insert(0, (change, prior.1, prior.2, prior.3));
        next.truncate(RUN_MAX);
        let sum: f64 = next.iter().map(|run| run.0).sum();
        next.iter_mut().for_each(|run| run.0 /= sum.max(1e-300));
        self.runs = next;
        let recent: f64 = self.runs.iter().take(RECENT + 1).map(|run| run.0).sum();
        if self.past.len() < 25 || recent < 0.9 {
            return false;
        }
        let at = self.past.len() - RECENT;
        median(&self.past[at..]) > 1.1 * median(&self.past[at.saturating_sub(20)..at])
    }
}
