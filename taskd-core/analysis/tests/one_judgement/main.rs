//! The report's verdict and the detector of a running job are one judgement: the same records, once through the reducer
//! and the detector, once through the report, give the same component, cause and onset.

mod live;
mod store;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use taskd_analysis::document::{Blame, Verdict};
use taskd_analysis::records::Records;
use taskd_analysis::synthetic::{Fault, Job, trace};
use taskd_analysis::{Settings, analyze};

/// Seeds of the jobs: as many as `jobs`, and more with `TASKD_SOAK=1`.
fn seeds(jobs: u64) -> Range<u64> {
    let soak = std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1");
    if soak { 1000..4000 } else { 0..jobs }
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
        kernel_ns: 15_000_000, // steps of about a tenth of a second
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
        Planted::Link => Fault::SlowLink { source: rank, destination, from_step, percent: 200 * percent },
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
    let (job, planted, rank, _) = job(seed);
    let stored = store::records(&trace(&job, seed));
    let live = live::judge(&stored);
    let mut records = Records::default();
    stored.batches.iter().for_each(|batch| records.take(batch));
    let verdict = analyze(&records.finish("recorded"), &Settings::default()).verdict;
    let of_engine = verdict.blamed.iter().filter(|blame| blame.judged_by == "fail-slow");
    let reported: BTreeSet<Blamed> = of_engine
        .map(|blame| (blame.ranks.clone(), blame.cause.clone(), blame.onset_step.unwrap_or_default()))
        .collect();
    counts.equal += u32::from(live == reported);
    count(&verdict, planted, rank, job.world_size(), counts);
    if live != reported {
        return Err(format!("live {live:?}, report {reported:?}"));
    }
    Ok(())
}

/// Counts what a verdict names of a planted fault.
fn count(verdict: &Verdict, planted: Planted, rank: u32, ranks: u32, counts: &mut Counts) {
    let suspects: BTreeSet<u32> = match planted {
        Planted::Rank | Planted::Input | Planted::Checkpoint => [rank].into(),
        Planted::Link => [rank, (rank + 1) % ranks].into(),
        Planted::None | Planted::Stage | Planted::All => BTreeSet::new(),
    };
    let is_named = |blame: &Blame| blame.ranks.iter().any(|rank| suspects.contains(rank));
    counts.named += u32::from(verdict.blamed.iter().any(is_named));
    counts.innocent += u32::from(!verdict.blamed.iter().all(is_named));
}

/// Runs a comparison for each seed, and prints what differs.
fn each(seeds: Range<u64>, compare: impl Fn(u64, &mut Counts) -> Result<(), String>) -> BTreeMap<Planted, Counts> {
    let mut counts: BTreeMap<Planted, Counts> = BTreeMap::new();
    let mut different = Vec::new();
    for seed in seeds.clone() {
        let (job, planted, rank, from_step) = job(seed);
        let counts = counts.entry(planted).or_default();
        let innocent = counts.innocent;
        counts.jobs += 1;
        let result = compare(seed, counts);
        if result.is_err() || counts.innocent > innocent {
            let Job { dp, tp, pp, is_host_only, jitter_permille, .. } = job;
            let what = format!("dp {dp} tp {tp} pp {pp} host {is_host_only} jitter {jitter_permille}");
            let innocent = counts.innocent - innocent;
            different.push(format!(
                "seed {seed} {planted:?} {rank} from {from_step}: {what}, innocent {innocent} {result:?}"
            ));
        }
    }
    println!("{counts:#?}");
    assert!(different.is_empty(), "{} of {}: {different:#?}", different.len(), seeds.count());
    counts
}

fn is_mostly_named(counts: &BTreeMap<Planted, Counts>) -> bool {
    let named = |planted: &Planted| counts[planted].named * 10 >= counts[planted].jobs * 9;
    [Planted::Rank, Planted::Input, Planted::Checkpoint].iter().all(named)
}

#[test]
fn report_and_live_detector_give_the_same_judgement() {
    assert!(is_mostly_named(&each(seeds(112), compare)));
}

#[test]
fn verdict_from_events_blames_no_innocent_component() {
    let counts = each(seeds(28), |seed, counts| {
        let (job, planted, rank, _) = job(seed);
        let verdict = analyze(&trace(&job, seed), &Settings::default()).verdict;
        count(&verdict, planted, rank, job.world_size(), counts);
        Ok(())
    });
    assert!(is_mostly_named(&counts));
}
