//! The report's verdict and the detector of a running job are one judgement: the same records, once through the reducer
//! and the detector, once through the report, give the same component, cause and onset.

mod live;
mod store;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use taskd_analysis::records::Records;
use taskd_analysis::synthetic::{Fault, Job, trace};
use taskd_analysis::{Settings, analyze};

/// Jobs that are compared; with `TASKD_SOAK=1` more.
fn seeds() -> std::ops::Range<u64> {
    let soak = std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1");
    if soak { 1000..4000 } else { 0..112 }
}

/// A blamed component: its ranks, the cause and the first affected step.
type Blamed = (Vec<u32>, String, u64);

/// What a fault should lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Planted {
    None,
    Rank,
    Input,
    Checkpoint,
    Link,
    Stage,
    All,
}

const KINDS: [Planted; 7] =
    [Planted::None, Planted::Rank, Planted::Input, Planted::Checkpoint, Planted::Link, Planted::Stage, Planted::All];

/// Shapes of the jobs: dp, tp, pp.
const SHAPES: [(u32, u32, u32); 6] = [(4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 2, 2), (6, 1, 1), (4, 2, 1)];

/// Returns the job of a seed, the rank at fault and its first affected step.
fn job(seed: u64) -> (Job, Planted, u32, u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let planted = KINDS[usize::try_from(seed).unwrap_or(0) % KINDS.len()];
    let (dp, tp, pp) = match planted {
        Planted::Stage => [(2, 1, 2), (4, 1, 2)][random.random_range(0..2)],
        _ => SHAPES[random.random_range(0..SHAPES.len())],
    };
    let checkpoint_every = if planted == Planted::Checkpoint { 2 } else { [0, 5][random.random_range(0..2)] };
    let job = Job {
        dp,
        tp,
        pp,
        steps: 64,
        micro_batches: 1,
        kernels: 2,
        checkpoint_every,
        is_host_only: random.random_bool(0.8),
        jitter_permille: random.random_range(5..40),
        ..Job::default()
    };
    let rank = random.random_range(0..job.world_size());
    let from_step = random.random_range(34..46);
    let percent = random.random_range(30..90);
    let destination = (rank + 1) % job.world_size();
    let fault = match planted {
        Planted::None => Fault::None,
        Planted::Rank => Fault::SlowRank { rank, from_step, percent },
        Planted::Input => Fault::SlowLoader { rank, from_step, percent },
        Planted::Checkpoint => Fault::SlowCheckpoint { rank, from_step, percent: percent + 60 },
        Planted::Link => Fault::SlowLink { source: rank, destination, from_step, percent: 20 * percent },
        Planted::Stage => Fault::UnevenStage { stage: random.random_range(0..pp), percent },
        Planted::All => Fault::SlowAll { from_step, percent },
    };
    (job.with_fault(fault), planted, rank, from_step)
}

/// Counts of one kind of fault.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    jobs: u32,
    /// Jobs in which the live detector and the report's engine name the same components, causes and onsets.
    equal: u32,
    /// Jobs with the planted rank among the blamed ones.
    named: u32,
    /// Jobs with another component blamed by the report.
    innocent: u32,
}

/// Compares both ways for one job.
fn compare(seed: u64, counts: &mut Counts) -> Result<(), String> {
    let (job, planted, rank, from_step) = job(seed);
    let stored = store::records(&trace(&job, seed));
    let live = live::judge(&stored);
    let mut records = Records::default();
    stored.batches.iter().for_each(|batch| records.take(batch));
    let verdict = analyze(&records.finish("recorded"), &Settings::default()).verdict;
    let of_engine = verdict.blamed.iter().filter(|blame| blame.judged_by == "fail-slow");
    let reported: BTreeSet<Blamed> = of_engine
        .map(|blame| (blame.ranks.clone(), blame.cause.clone(), blame.onset_step.unwrap_or_default()))
        .collect();
    counts.jobs += 1;
    counts.equal += u32::from(live == reported);
    let suspects: BTreeSet<u32> = match planted {
        Planted::Rank | Planted::Input | Planted::Checkpoint => [rank].into(),
        Planted::Link => [rank, (rank + 1) % job.world_size()].into(),
        Planted::None | Planted::Stage | Planted::All => BTreeSet::new(),
    };
    let is_named = |blame: &&taskd_analysis::document::Blame| blame.ranks.iter().any(|rank| suspects.contains(rank));
    counts.named += u32::from(verdict.blamed.iter().any(|blame| is_named(&blame)));
    let innocent = verdict.blamed.iter().find(|blame| !is_named(blame));
    counts.innocent += u32::from(innocent.is_some());
    if live != reported || innocent.is_some() {
        return Err(format!(
            "seed {seed}, {planted:?} rank {rank} step {from_step} {:?}: live {live:?}, report {reported:?}, all {:?}",
            (job.dp, job.tp, job.pp, job.is_host_only, job.jitter_permille),
            verdict.blamed.iter().map(|b| (&b.component, &b.cause, b.onset_step, &b.judged_by)).collect::<Vec<_>>()
        ));
    }
    Ok(())
}

#[test]
fn report_and_live_detector_give_the_same_judgement() {
    let mut counts: BTreeMap<Planted, Counts> = BTreeMap::new();
    let mut different = Vec::new();
    for seed in seeds() {
        let planted = job(seed).1;
        different.extend(compare(seed, counts.entry(planted).or_default()).err());
    }
    println!("{counts:#?}");
    assert!(different.is_empty(), "{} of {}: {different:#?}", different.len(), seeds().count());
    let named = |planted| counts[&planted].named * 10 >= counts[&planted].jobs * 9;
    assert!([Planted::Rank, Planted::Input, Planted::Checkpoint].into_iter().all(named), "{counts:#?}");
}
