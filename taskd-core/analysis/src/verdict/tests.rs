//! The verdict on simulated jobs: planted faults are named, and nothing is blamed in others.

use crate::document::{Blame, Incident, Verdict};
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
    for tp in [1, 2] {
        // With tensor parallelism the passes of the peer in the group include its waits for the slow rank.
        let verdict = verdict(&Job { tp, ..job.clone() }.with_fault(fault), 1);
        assert_eq!(only(&verdict).ranks, [2]);
        assert_eq!(verdict.blamed[0].onset_step, Some(6));
    }
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

/// A job that is long enough for the fail-slow engine: a slow-down counts once it has cost 200 ms.
fn long() -> Job {
    Job { dp: 4, tp: 1, pp: 1, steps: 60, micro_batches: 1, kernel_ns: 15_000_000, ..Job::default() }
}

#[test]
fn long_traces_are_judged_by_the_engine_of_running_jobs() {
    for (seed, is_host_only) in [(1, false), (2, true)] {
        let fault = Fault::SlowRank { rank: 2, from_step: 40, percent: 50 };
        let verdict = verdict(&Job { is_host_only, ..long() }.with_fault(fault), seed);
        let blame = only(&verdict);
        let found = (blame.component.as_str(), blame.cause.as_str(), blame.onset_step, blame.judged_by.as_str());
        assert_eq!(found, ("rank 2", "slow-rank", Some(40), "fail-slow"));
        assert!(verdict.judged_by.starts_with("Judged by the fail-slow detector"), "{}", verdict.judged_by);
    }
}

#[test]
fn blame_has_its_figures_its_moment_and_what_was_ruled_out() {
    let job = Job { is_host_only: true, checkpoint_every: 5, ..long() };
    let fault = Fault::SlowRank { rank: 1, from_step: 42, percent: 60 };
    let analysis = analyze(&trace(&job.with_fault(fault), 3), &Settings::default());
    let blame = only(&analysis.verdict);
    let column = analysis.steps.iter().position(|step| *step == 42).unwrap();
    let starts = analysis.breakdown.start_us.iter().filter_map(|row| row[column]);
    assert_eq!(blame.began_us, starts.min().map(|start| i64::try_from(start).unwrap()));
    assert_eq!(blame.compared.iter().map(|one| (one.rank, one.is_suspect)).next(), Some((1, true)));
    assert_eq!(blame.compared.len(), 4);
    let since = |one: &crate::document::ComparedRank| one.since_us.unwrap();
    assert!(blame.compared[1..].iter().all(|peer| since(&blame.compared[0]) > 1.3 * since(peer)), "{blame:?}");
    for cause in ["slow-input", "slow-checkpoint", "global-slowdown"] {
        let text = format!("Not {cause}: ");
        assert!(blame.ruled_out.iter().any(|item| item.text.starts_with(&text)), "{cause}: {:?}", blame.ruled_out);
    }
    assert!(!blame.next.is_empty());
}

#[test]
fn rank_that_is_slow_from_the_first_step_is_judged_by_its_peers() {
    let verdict = verdict(&long().with_fault(Fault::SlowRank { rank: 3, from_step: 1, percent: 40 }), 5);
    let blame = only(&verdict);
    assert_eq!((blame.component.as_str(), blame.judged_by.as_str()), ("rank 3", "peers"));
    assert!(blame.onset_step < Some(5), "{blame:?}");
}

#[test]
fn long_traces_without_a_culprit_blame_nothing() {
    let stages = Job { dp: 2, pp: 2, ..long() };
    let jobs = [
        long(),
        long().with_fault(Fault::SlowAll { from_step: 40, percent: 50 }),
        stages.with_fault(Fault::UnevenStage { stage: 1, percent: 40 }),
    ];
    for (seed, job) in (0..6).zip(jobs.iter().cycle()) {
        let verdict = verdict(job, seed);
        assert!(verdict.is_healthy, "seed {seed}: {}", verdict.sentence);
        let is_slower = matches!(job.fault, Fault::SlowAll { .. });
        assert_eq!(verdict.sentence.contains("The steps of all ranks take"), is_slower, "{}", verdict.sentence);
    }
}

#[test]
fn slow_incident_agrees_or_disagrees_with_the_verdict() {
    let trace = trace(&long().with_fault(Fault::SlowRank { rank: 2, from_step: 40, percent: 50 }), 1);
    let verdict = |suspect: &str| {
        let incident = Incident {
            at_us: 0,
            class: "slow".to_owned(),
            suspect: suspect.to_owned(),
            sentence: format!("slow of {suspect}"),
            evidence: Vec::new(),
        };
        analyze(&trace, &Settings { incidents: vec![incident], ..Settings::default() }).verdict
    };
    let agrees = |suspect| verdict(suspect).agreements.iter().map(|one| one.agrees).collect::<Vec<_>>();
    assert_eq!((agrees("rank 2"), agrees("rank 0")), (vec![true], vec![false]));
}

#[test]
fn profile_of_three_steps_blames_a_rank_that_stands_out_in_each() {
    for seed in 0..3 {
        let fault = Fault::SlowRank { rank: 1, from_step: 1, percent: 50 };
        let verdict = verdict(&Job { steps: 3, ..job() }.with_fault(fault), seed);
        let blame = only(&verdict);
        assert_eq!((blame.component.as_str(), blame.judged_by.as_str()), ("rank 1", "peers"));
        assert!(blame.confidence_permille <= 500, "{blame:?}");
        assert!(verdict.judged_by.contains("in each of 3 steps"), "{}", verdict.judged_by);
    }
}

#[test]
fn profile_of_few_steps_without_an_outlier_is_no_proof() {
    for (seed, steps) in (0..12).zip([1, 2, 3, 5].into_iter().cycle()) {
        let verdict = verdict(&Job { steps, jitter_permille: 40, ..job() }, seed);
        assert!(verdict.blamed.is_empty(), "seed {seed}: {verdict:?}");
        assert!(verdict.sentence.contains("too few"), "{}", verdict.sentence);
    }
}
