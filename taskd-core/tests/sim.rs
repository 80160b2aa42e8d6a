//! The simulation as a test: fifty jobs, their logs twice and replayed, and a kernel without one of its checks each.
//!
//! The full count is the soak run: `cargo run --release -p taskd-simulate --example simulate -- --seeds 10000`.

use std::time::Duration;
use taskd_core::detect::{FaultDetectorExt, SilenceDetector};
use taskd_core::kernel::{Branch, Check, Checks};
use taskd_core::sim::{self, Outcome, SimConfig, Violation};

const SEEDS: std::ops::Range<u64> = 40..90;
/// Seeds that may be needed to see that a check is missing.
const TEETH_SEEDS_MAX: u64 = 400;

fn run(seed: u64, config: &SimConfig) -> Outcome {
    sim::run(seed, config, &|| sim::drawn(seed))
}

fn rerun(seed: u64) -> String {
    format!("cargo run --release -p taskd-simulate --example simulate -- --from {seed} --seeds 1 --explain 200")
}

#[test]
fn no_invariant_is_broken_and_every_job_comes_to_its_end() {
    let config = SimConfig::default();
    let outcomes: Vec<Outcome> = SEEDS.map(|seed| run(seed, &config)).collect();
    for outcome in &outcomes {
        if let Some((at, violation)) = &outcome.violation {
            panic!("seed {} at {at}: {violation}\n{}", outcome.seed, rerun(outcome.seed));
        }
        assert!(outcome.rank_steps >= 1_000 * u64::from(outcome.ranks), "{outcome:?}");
        assert!(outcome.faults.values().sum::<u32>() >= 5 && outcome.faults.len() >= 4, "{:?}", outcome.faults);
        assert!((8..=512).contains(&outcome.ranks));
    }
    let incidents = || outcomes.iter().flat_map(|outcome| &outcome.report.incidents);
    for strategy in ["retry", "recover-in-place", "recover", "shrink", "grow", "restart"] {
        let how = format!("recovered by {strategy}");
        assert!(incidents().any(|incident| incident.outcome == how), "no job has {how}");
    }
    let taken = |branch: Branch| outcomes.iter().filter_map(|o| o.counts.branches.get(&branch)).sum::<u64>();
    for branch in [
        Branch::Recovered,
        Branch::Cancelled,
        Branch::StartRefused,
        Branch::Completed,
        Branch::StageTimedOut,
        Branch::OrderTaken,
        Branch::OrderDenied,
        Branch::HeldPaused,
        Branch::HeldAsking,
        Branch::Approved,
        Branch::Declined,
        Branch::Cordoned,
        Branch::HeldObserving,
        Branch::Adopted,
        Branch::MendedByOthers,
        Branch::StepFailed,
        Branch::Replaced,
        Branch::GaveUp,
    ] {
        assert!(taken(branch) > 0, "no job has come to {}", branch.as_str());
    }
}

#[test]
fn the_same_seed_gives_the_same_log_and_the_log_the_same_commands() {
    let config = SimConfig::default();
    for seed in SEEDS.step_by(10) {
        sim::repeat(seed, &config, &|| sim::drawn(seed)).unwrap_or_else(|e| panic!("{e}\n{}", rerun(seed)));
    }
}

#[test]
fn a_job_that_is_only_observed_is_the_same_again_as_well() {
    let config = SimConfig::default().with_ranks(8..=32).with_observed_permille(1_000);
    for seed in 1..4 {
        let outcome = run(seed, &config);
        assert_eq!(outcome.violation, None, "seed {seed}");
        assert_eq!((outcome.report.restarts, outcome.counts.branches.get(&Branch::StageDone).copied()), (0, None));
        assert!(outcome.report.incidents.iter().any(|incident| incident.held.is_some()), "seed {seed}");
        sim::repeat(seed, &config, &|| sim::drawn(seed)).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// Without this check some job breaks an invariant.
fn bites(check: Check) {
    let config = SimConfig::default().with_ranks(8..=64).with_checks(Checks::without(check));
    let noticed = (0..TEETH_SEEDS_MAX).find(|seed| run(*seed, &config).violation.is_some());
    assert!(noticed.is_some(), "the simulation does not notice that {} is gone", check.as_str());
    let whole = SimConfig::default().with_ranks(8..=64);
    let seed = noticed.unwrap_or_default();
    assert_eq!(run(seed, &whole).violation, None, "seed {seed} fails with the check as well: {}", rerun(seed));
}

/// A detector that blames whatever is silent, whether or not it runs, blames a healthy rank in some job.
#[test]
fn a_detector_that_blames_busy_processes_is_noticed() {
    let config = SimConfig::default().with_ranks(8..=64);
    let hasty = |seed| {
        let mut plugins = sim::drawn(seed);
        plugins.detectors.retain(|detector| detector.name() != "silence");
        plugins.detectors.push(SilenceDetector::after(config.silence_within).busy_for(Duration::ZERO).boxed());
        plugins
    };
    let noticed = (0..TEETH_SEEDS_MAX).find_map(|seed| sim::run(seed, &config, &|| hasty(seed)).violation);
    let (_, violation) = noticed.expect("the simulation does not notice it");
    assert!(matches!(violation, Violation::InnocentBlamed { .. }), "{violation}");
}

#[test]
fn without_domain_exclusion_the_simulation_fails() {
    bites(Check::DomainExclusion);
}

#[test]
fn without_the_incarnation_fence_the_simulation_fails() {
    bites(Check::IncarnationFence);
}

#[test]
fn without_the_generation_fence_the_simulation_fails() {
    bites(Check::GenerationFence);
}

#[test]
fn without_the_budget_the_simulation_fails() {
    bites(Check::Budget);
}

#[test]
fn without_the_late_completion_drop_the_simulation_fails() {
    bites(Check::LateCompletionDrop);
}

#[test]
fn without_the_fence_of_failed_steps_the_simulation_fails() {
    bites(Check::StepFailureFence);
}

#[test]
fn without_an_answer_for_the_dead_the_simulation_fails() {
    bites(Check::AnswerForTheDead);
}

#[test]
fn without_deadlines_after_earlier_observations_the_simulation_fails() {
    bites(Check::DeadlineAfterObservations);
}
