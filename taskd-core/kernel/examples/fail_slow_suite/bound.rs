//! The delay as a multiple of the bound of sequential detection, ln(ARL)/KL (Lorden).
//!
//! ARL is the mean number of values of a healthy rank between two false alarms, measured over healthy jobs with the
//! same noise; without a false alarm, the lower limit at 95 % confidence (a third of the number of values), which makes
//! the bound smaller and the ratio larger. KL is the divergence of the shifted from the usual distribution of the
//! logarithm of a rank's computation. Both are known, because the simulation draws from them: a normal distribution of
//! scatter `sigma`, and with the probability of a pause its convolution with the uniform distribution of pauses. The
//! integral is numeric.
//!
//! There are two bounds. The first is for a healthy rank with exactly its usual distribution. The second is for a detector
//! that must not blame a rank that has drifted by 3 %: the divergence is then from the usual distribution, moved by 3 %
//! or not, whichever is nearer to the shifted one.

use crate::sim::{Job, Kind, Noise, Random};
use std::fmt;
use taskd_kernel::detect::fail_slow::{Change, FailSlow, Grid, Layout};

const PAUSES: f32 = 0.005;
const RANKS: u32 = 64;
const TRIALS: u64 = 60;
const SIGMAS: [f32; 4] = [0.01, 0.02, 0.03, 0.05];
/// Healthy jobs of each scatter for the ARL.
const HEALTHY: u64 = 800;
/// Permanent deviation of a healthy rank that must cause no blame (slow drift of 1.5 % in both directions).
const DRIFT: f64 = 0.03;

/// One comparison.
#[derive(Debug)]
pub struct Bound {
    sigma: f64,
    excess: f64,
    arl: f64,
    kl: f64,
    bound: f64,
    drift_bound: f64,
    delay: f64,
    found: usize,
}

impl Bound {
    fn ratios(&self) -> [f64; 2] {
        [self.delay / self.bound, self.delay / self.drift_bound]
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "sigma": self.sigma, "excess": self.excess, "arl": self.arl, "kl": self.kl, "bound_steps": self.bound,
            "mean_delay_steps": self.delay, "found": self.found, "trials": TRIALS, "ratio": self.ratios()[0],
            "bound_with_drift_steps": self.drift_bound, "ratio_with_drift": self.ratios()[1],
        })
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "sigma {:>4.1} %  excess {:>4.0} %  ARL {:.1e}  KL {:>5.2}  bound {:>5.2}  with drift {:>5.2}  mean delay {:>6.2}  ratios {:>4.2} {:>4.2}  found {}/{TRIALS}",
            self.sigma * 100.0,
            self.excess * 100.0,
            self.arl,
            self.kl,
            self.bound,
            self.drift_bound,
            self.delay,
            self.ratios()[0],
            self.ratios()[1],
            self.found
        )
    }
}

/// Measures all combinations of scatter and excess.
pub fn measure(seed: u64) -> Vec<Bound> {
    let mut bounds = Vec::new();
    let arl = arl(seed);
    for sigma in SIGMAS {
        for excess in [0.1, 0.2, 0.5] {
            let delays: Vec<u64> = (0..TRIALS).filter_map(|trial| delay(seed + trial, sigma, excess)).collect();
            let mean = delays.iter().sum::<u64>() as f64 / delays.len() as f64;
            let kl = kl_of(f64::from(sigma), f64::from(excess).ln_1p());
            let near = kl.min(kl_of(f64::from(sigma), f64::from(excess).ln_1p() - DRIFT));
            let (sigma, excess) = (f64::from(sigma), f64::from(excess));
            bounds.push(Bound {
                sigma,
                excess,
                arl,
                kl,
                bound: arl.ln() / kl,
                drift_bound: arl.ln() / near,
                delay: mean,
                found: delays.len(),
            });
        }
    }
    bounds
}

fn job(kind: Kind, seed: u64, sigma: f32) -> Job {
    let grid = Grid { dp: RANKS, tp: 1, pp: 1, cp: 1, ep: 1, per_host: 1 };
    let noise = Noise { sigma, pauses: PAUSES, stalls: 0.0, sequences: 0.0, uneven_ranks: 0.005, drift: 0.0 };
    Job::with(kind, Layout::grid(grid), noise, Random::new(seed))
}

fn arl(seed: u64) -> f64 {
    let (mut values, mut alarms) = (0_u64, 0_u64);
    for at in 0..HEALTHY * SIGMAS.len() as u64 {
        let mut job = job(Kind::Healthy, seed + 77 * at, SIGMAS[at as usize % SIGMAS.len()]);
        let mut engine = FailSlow::new(job.layout.clone());
        let mut step = 0;
        while let Some(rows) = job.next() {
            step += 1;
            values += rows.len() as u64;
            let found = engine.step(step, rows);
            alarms +=
                found.iter().filter(|change| matches!(change, Change::Found(v) if v.cause.is_blame())).count() as u64;
        }
    }
    values as f64 / if alarms == 0 { 3.0 } else { alarms as f64 }
}

fn delay(seed: u64, sigma: f32, excess: f32) -> Option<u64> {
    let mut job = job(Kind::SlowRank, seed, sigma);
    job.injected.excess = excess;
    let onset = job.injected.onset;
    let mut engine = FailSlow::new(job.layout.clone());
    let mut step = 0;
    while let Some(rows) = job.next() {
        step += 1;
        let is_blame = |change: &Change| matches!(change, Change::Found(verdict) if verdict.cause.is_blame());
        if engine.step(step, rows).iter().any(is_blame) && step >= onset {
            return Some(step + 1 - onset);
        }
    }
    None
}

/// Divergence of the shifted distribution from the usual one, in nats for each value.
fn kl_of(sigma: f64, shift: f64) -> f64 {
    let pauses = f64::from(PAUSES);
    let normal = |x: f64| (-x * x / (2.0 * sigma * sigma)).exp() / (sigma * std::f64::consts::TAU.sqrt());
    let inside = |x: f64| 1.0 / (1.0 + (-1.702 * x / sigma).exp()); // normal distribution function, to 1 %
    let density =
        |x: f64| (1.0 - pauses) * normal(x) + pauses * (inside(x - 0.18) - inside(x - 1.39)).max(1e-12) / (1.39 - 0.18);
    let width = 0.0005;
    let at = |i: i32| f64::from(i) * width;
    (-1000..6000)
        .map(at)
        .map(|x| {
            let (shifted, usual) = (density(x - shift), density(x));
            if shifted > 1e-12 { shifted * (shifted / usual.max(1e-300)).ln() * width } else { 0.0 }
        })
        .sum()
}
