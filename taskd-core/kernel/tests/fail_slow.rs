//! The quick version of the fail-slow simulation suite. The full one is the example `fail_slow_suite`.

#![allow(missing_docs, unreachable_pub, dead_code, clippy::unwrap_used, clippy::cast_possible_truncation)] // simulated jobs are small

#[path = "../examples/fail_slow_suite/rivals.rs"]
mod rivals;
#[path = "../examples/fail_slow_suite/score.rs"]
mod score;
#[path = "../examples/fail_slow_suite/sim.rs"]
mod sim;

use score::{Figures, Result};
use sim::Kind;

const SEED: u64 = 70_000;
/// Maximum number of ranks of a job: this test is not optimized.
const RANKS_MAX: u32 = 48;

fn play(jobs: u64, in_the_field: bool) -> (Figures, Vec<Result>) {
    let mut figures = Figures::default();
    let results: Vec<Result> =
        (SEED..SEED + jobs).map(|seed| score::run(score::job(seed, in_the_field, RANKS_MAX), seed, false)).collect();
    results.iter().for_each(|result| figures.add(result, &result.outcomes["fail-slow"], false));
    (figures, results)
}

#[test]
fn jobs_without_a_faulty_component_blame_none() {
    let (figures, results) = play(200, true);
    let wrong = results.iter().filter(|result| !result.outcomes["fail-slow"].false_blames.is_empty());
    assert_eq!(figures.jobs_with_false_blame, 0, "{:?}", wrong.collect::<Vec<_>>());
}

#[test]
fn faulty_components_are_found_with_their_cause_in_time() {
    let (figures, results) = play(80, false);
    assert_eq!((figures.faults, figures.jobs_with_false_blame), (80, 0));
    for result in &results {
        let limit = match (result.kind, result.excess) {
            (Kind::SlowCheckpoint, _) => 150,                // checkpoints are rare
            (Kind::SlowLink, excess) if excess >= 0.2 => 30, // at first a rank that is held up looks the same
            (_, excess) if excess >= 0.5 => 8,
            (_, excess) if excess >= 0.2 => 30,
            _ => score::HORIZON,
        };
        assert!(result.outcomes["fail-slow"].delay.is_some_and(|delay| delay <= limit), "{result:?}");
    }
}
