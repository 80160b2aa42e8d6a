//! The verdict on simulated jobs: planted faults are named, and nothing is blamed in others.

use crate::document::{Blame, Verdict};
use crate::synthetic::{Fault, Job, trace};
use crate::{Settings, analyze};

fn verdict(job: &Job, seed: u64) -> Verdict {
    analyze(&trace(job, seed), &Settings::default()).verdict
}

fn job() -> Job {
    Job { dp: 4, tp: 2, pp: 2, steps: 20, micro_batches: 2, ..Job::default() }
}

/// The only blame of the verdict.
fn only(verdict: &Verdict) -> &Blame {
    assert!(!verdict.is_healthy);
    assert_eq!(verdict.blamed.len(), 1, "{verdict:?}");
    &verdict.blamed[0]
}

#[test]
fn healthy_jobs_blame_nothing() {
    let shapes = [(2, 1, 1), (4, 2, 2), (1, 1, 4), (3, 2, 1), (8, 1, 2)];
    for (seed, (dp, tp, pp)) in (0..15).zip(shapes.into_iter().cycle()) {
        let job = Job { dp, tp, pp, steps: 20, jitter_permille: 40, ..Job::default() };
        let verdict = verdict(&job, seed);
        assert!(verdict.is_healthy && verdict.blamed.is_empty(), "seed {seed}: {}", verdict.sentence);
    }
}

#[test]
fn uneven_stage_and_slow_job_blame_nothing() {
    let faults = [Fault::UnevenStage { stage: 1, percent: 40 }, Fault::SlowAll { from_step: 10, percent: 60 }];
    for (seed, fault) in (0..4).zip(faults.into_iter().cycle()) {
        let verdict = verdict(&job().with_fault(fault), seed);
        assert!(verdict.is_healthy, "{fault:?}: {}", verdict.sentence);
        let is_slower = verdict.sentence.contains("% longer since step 10: look at the script");
        assert_eq!(is_slower, matches!(fault, Fault::SlowAll { .. }), "{}", verdict.sentence);
    }
}

#[test]
fn slow_rank_is_named_with_its_first_step() {
    for seed in 0..3 {
        let rank = (seed * 5 + 3) % 16;
        let fault = Fault::SlowRank { rank, from_step: 9, percent: 40 };
        let verdict = verdict(&job().with_fault(fault), u64::from(seed));
        let blame = only(&verdict);
        assert_eq!((blame.component.as_str(), blame.cause.as_str()), (format!("rank {rank}").as_str(), "slow-rank"));
        assert_eq!(blame.onset_step, Some(9), "seed {seed}");
        assert!((30.0..45.0).contains(&blame.slowdown_percent), "{blame:?}");
        assert!(verdict.sentence.starts_with(&format!("Rank {rank} (host ")), "{}", verdict.sentence);
    }
}

#[test]
fn slow_rank_of_a_trace_without_kernels_is_named() {
    let fault = Fault::SlowRank { rank: 2, from_step: 6, percent: 30 };
    let job = Job { dp: 4, tp: 1, pp: 1, steps: 20, is_host_only: true, ..Job::default() };
    let verdict = verdict(&job.with_fault(fault), 1);
    assert_eq!(only(&verdict).ranks, [2]);
    assert_eq!(verdict.blamed[0].onset_step, Some(6));
}

#[test]
fn slow_input_is_told_from_a_slow_rank() {
    for seed in 0..3 {
        let verdict = verdict(&job().with_fault(Fault::SlowLoader { rank: 5, from_step: 7, percent: 40 }), seed);
        let blame = only(&verdict);
        assert_eq!((blame.ranks.as_slice(), blame.cause.as_str()), ([5].as_slice(), "slow-input"));
        assert_eq!(blame.onset_step, Some(7));
        assert!(verdict.sentence.contains("data loader"), "{}", verdict.sentence);
    }
}

#[test]
fn slow_checkpoint_is_found_in_the_steps_that_write_one() {
    for seed in 0..3 {
        let verdict = verdict(&job().with_fault(Fault::SlowCheckpoint { rank: 9, from_step: 1, percent: 80 }), seed);
        let blame = only(&verdict);
        assert_eq!((blame.ranks.as_slice(), blame.cause.as_str()), ([9].as_slice(), "slow-checkpoint"));
        assert_eq!(blame.onset_step, Some(5));
    }
}

#[test]
fn slow_link_is_named_with_both_ranks() {
    for seed in 0..3 {
        let fault = Fault::SlowLink { source: 2, destination: 4, from_step: 8, percent: 900 };
        let verdict = verdict(&job().with_fault(fault), seed);
        let blame = only(&verdict);
        assert_eq!((blame.component.as_str(), blame.cause.as_str()), ("link 2 -> 4", "slow-link"));
        assert_eq!(blame.onset_step, Some(8));
    }
}

#[test]
fn slow_host_is_blamed_once() {
    // Half of the ranks are on the slow host.
    let job = Job { dp: 4, tp: 1, pp: 1, steps: 20, ranks_per_host: 2, ..Job::default() };
    let mut trace = trace(&job.clone().with_fault(Fault::SlowRank { rank: 2, from_step: 1, percent: 40 }), 1);
    // Rank 3 is slow too: it gets the events of rank 2, with its own clock.
    let slow = trace.ranks[&2].clone();
    let shift = trace.ranks[&3].steps[0].start_ns - slow.steps[0].start_ns;
    let other = trace.ranks.get_mut(&3).unwrap();
    (other.events, other.steps) = (slow.events, slow.steps);
    other.events.iter_mut().for_each(|event| event.start_ns += shift);
    other.steps.iter_mut().for_each(|step| step.start_ns += shift);
    let verdict = analyze(&trace, &Settings::default()).verdict;
    let blame = only(&verdict);
    assert_eq!((blame.component.as_str(), blame.cause.as_str()), ("host node-1", "slow-host"));
    assert_eq!(blame.ranks, [2, 3]);
}

#[test]
fn checkpoint_of_one_rank_alone_is_its_task() {
    let mut trace = trace(&Job { checkpoint_every: 1, steps: 20, ..job() }, 2);
    for (rank, events) in &mut trace.ranks {
        events.events.retain(|event| *rank == 0 || event.kind != crate::model::Kind::SaveCheckpoint);
    }
    let verdict = analyze(&trace, &Settings::default()).verdict;
    assert!(verdict.is_healthy, "{}", verdict.sentence);
}

#[test]
fn few_steps_are_no_proof() {
    let fault = Fault::SlowRank { rank: 1, from_step: 1, percent: 50 };
    let verdict = verdict(&Job { steps: 4, ..job() }.with_fault(fault), 1);
    assert!(verdict.blamed.is_empty());
    assert!(verdict.sentence.contains("too few"), "{}", verdict.sentence);
}
