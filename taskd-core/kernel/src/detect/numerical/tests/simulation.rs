//! Seeded simulation of losses: a falling loss with heavy-tailed noise, which differs between ranks, and planted faults.

use super::*;

const RANKS: u32 = 8;
const STEPS: u64 = 200;

/// A generator of pseudo-random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number of a normal distribution (sum of twelve uniform ones).
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Planted {
    Nothing,
    /// One rank has a NaN, which reaches all ranks in the next step.
    Nan,
    /// The loss of all ranks becomes three times as large.
    Spike,
    /// The loss of one rank becomes three times as large.
    SpikeAlone,
}

/// Runs a job and returns the faults. The scatter of its losses is `noise`, and some batches are much harder.
fn run(seed: u64, noise: f64, planted: Planted, at: u64, victim: u32) -> Vec<Fault> {
    let (mut random, mut job) = (Random(seed), Job::new(RANKS));
    let mut faults = Vec::new();
    for step in 0..STEPS {
        let level = 1.5 + 6.0 * (-(step as f64) / 60.0).exp();
        let mut values: Vec<f64> = (0..RANKS).map(|_| level * (noise * random.normal()).exp()).collect();
        for value in &mut values {
            if random.below(200) == 0 {
                *value *= 1.0 + 2.0 * random.unit(); // a hard batch
            }
        }
        for (rank, value) in (0..).zip(&mut values) {
            match planted {
                Planted::Nan if step == at && rank == victim || step > at && planted == Planted::Nan => {
                    *value = f64::NAN
                }
                Planted::Spike if step >= at => *value *= 3.0,
                Planted::SpikeAlone if step >= at && rank == victim => *value *= 3.0,
                _ => {}
            }
        }
        let found = job.step("loss", &values);
        faults.extend(found.into_iter().filter_map(|f| if let Finding::Blame(fault) = f { Some(fault) } else { None }));
    }
    faults
}

#[test]
fn of_clean_jobs_with_heavy_tails_none_has_a_fault() {
    for seed in 0..150 {
        let noise = [0.02, 0.1, 0.2][(seed % 3) as usize];
        let faults = run(seed, noise, Planted::Nothing, 0, 0);
        assert!(faults.is_empty(), "seed {seed}: {faults:?}");
    }
}

#[test]
fn planted_faults_are_found_and_blame_the_right_rank() {
    for seed in 0..100 {
        let mut random = Random(seed ^ 0xfa);
        let planted = [Planted::Nan, Planted::Spike, Planted::SpikeAlone][(seed % 3) as usize];
        let (at, victim) = (70 + random.below(80), u32::try_from(random.below(u64::from(RANKS))).unwrap());
        let faults = run(seed, 0.1, planted, at, victim);
        let [fault] = faults.as_slice() else { panic!("seed {seed}, {planted:?}: {faults:?}") };
        let expected = if planted == Planted::Spike { Domain::Job } else { rank_domain(victim) };
        assert_eq!(fault.primary_suspect().domain, expected, "seed {seed}, {planted:?}");
        assert_eq!(fault.primary_suspect().is_cause(), planted != Planted::Spike);
    }
}
