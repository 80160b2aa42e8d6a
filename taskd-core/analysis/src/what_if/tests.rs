//! Attribution of simulated jobs with planted faults, from ordinary traces.

use super::{Model, attribute, blame};
use crate::model::{Kind, Trace};
use crate::synthetic::{Fault, Job, trace};

/// Number of planted traces.
const PLANTED: u64 = 12;

#[test]
fn launches_instead_of_communications_blame_no_worker() {
    let mut wrong = 0;
    for seed in 0..PLANTED {
        let rank = u32::try_from(seed * 7 % 16).unwrap();
        let fault = Fault::SlowRank { rank, from_step: 2, percent: 50 };
        let shape = Job { dp: 2, tp: 2, pp: 4, steps: 6, micro_batches: 2, is_host_only: true, ..Job::default() };
        let mut trace = trace(&shape.with_fault(fault), seed);
        for event in trace.ranks.values_mut().flat_map(|rank| &mut rank.events) {
            if event.kind.is_communication() {
                event.duration_ns = seed % 2 * 20_000;
            }
        }
        let model = Model::from_trace(&trace).unwrap();
        let found = blame::search(&model, model.modelled().iter().sum::<f64>(), false).blamed;
        wrong += u32::from(found.iter().any(|straggler| straggler.worker.rank != rank));
        let findings = attribute(&model);
        assert!(findings.stragglers.is_empty(), "seed {seed}: {}", findings.verdict.sentence);
        assert!(findings.verdict.sentence.contains("waits for other workers"), "{}", findings.verdict.sentence);
    }
    println!("by durations alone, a waiting worker would be blamed in {wrong} of {PLANTED} traces");
    assert!(wrong > 0, "the traces are those in which a waiting worker seems to compute");
}

/// Returns the time of all steps of a job in nanoseconds.
fn measured(trace: &Trace) -> f64 {
    let steps = || trace.ranks.values().flat_map(|rank| &rank.steps);
    let begun = steps().map(|step| step.start_ns).min().unwrap();
    let ended = steps().map(|step| step.start_ns.saturating_add_unsigned(step.duration_ns)).max().unwrap();
    (ended - begun) as f64
}

/// Returns the speedup of the scenario with this name, and how much faster the job really is without the fault.
fn speedup(job: &Job, fault: Fault, without: &str, change: impl Fn(&mut Trace)) -> (f64, f64) {
    let seed = 7;
    let job = Job { clock_offset_ns: 0, ..job.clone() };
    let mut faulty = trace(&job.clone().with_fault(fault), seed);
    let real = measured(&faulty) / measured(&trace(&job, seed));
    change(&mut faulty);
    let findings = attribute(&Model::from_trace(&faulty).unwrap());
    let scenarios = &findings.what_if.scenarios;
    let found = scenarios.iter().find(|scenario| scenario.without.starts_with(without));
    let speedup = found.unwrap_or_else(|| panic!("{without}: {scenarios:#?}")).speedup;
    (speedup, real)
}

#[test]
fn scenario_of_a_slow_link_has_the_gain_of_the_job_without_it() {
    let fault = Fault::SlowLink { source: 1, destination: 5, from_step: 3, percent: 3000 };
    let (modelled, real) = speedup(&Job::default(), fault, "slow link between rank 1 and rank 5", |_| ());
    assert!(real > 1.05 && (modelled - real).abs() < 0.05 * real, "{modelled} instead of {real}");
}

#[test]
fn scenario_of_a_slow_loader_has_the_gain_of_the_job_without_it() {
    let fault = Fault::SlowLoader { rank: 3, from_step: 3, percent: 60 };
    let (modelled, real) = speedup(&Job::default(), fault, "slow input of rank 3 ", |_| ());
    assert!(real > 1.05 && (modelled - real).abs() < 0.05 * real, "{modelled} instead of {real}");
}

#[test]
fn gap_before_the_forward_pass_is_slow_input_without_loader_spans() {
    let fault = Fault::SlowLoader { rank: 3, from_step: 3, percent: 60 };
    let job = Job { is_host_only: true, ..Job::default() };
    let (modelled, real) = speedup(&job, fault, "slow input of rank 3 ", |trace| {
        for rank in trace.ranks.values_mut() {
            rank.events.retain(|event| event.kind != Kind::DataLoader);
        }
    });
    assert!(real > 1.05 && (modelled - real).abs() < 0.05 * real, "{modelled} instead of {real}");
}

#[test]
fn scenario_of_slow_checkpoints_has_the_gain_of_the_job_without_them() {
    let job = Job { checkpoint_every: 3, ..Job::default() };
    let fault = Fault::SlowCheckpoint { rank: 2, from_step: 1, percent: 300 };
    let (modelled, real) = speedup(&job, fault, "slow storage of checkpoints of rank 2 ", |_| ());
    assert!(real > 1.05 && (modelled - real).abs() < 0.05 * real, "{modelled} instead of {real}");
}

/// A job with every kind of fault that is no slow rank.
fn other_faults(rank: u32) -> [Fault; 6] {
    let (from_step, percent) = (2, 50);
    [
        Fault::None,
        Fault::SlowLink { source: rank, destination: (rank + 4) % 16, from_step, percent: 1500 },
        Fault::SlowLoader { rank, from_step, percent },
        Fault::SlowCheckpoint { rank, from_step: 1, percent: 200 },
        Fault::UnevenStage { stage: rank % 4, percent },
        Fault::SlowAll { from_step, percent },
    ]
}

#[test]
fn only_a_slow_rank_is_blamed_with_and_without_kernels() {
    for seed in 0..PLANTED_OF_EACH {
        let rank = u32::try_from(seed * 5 % 16).unwrap() | 12;
        for is_host_only in [false, true] {
            let job = Job { pp: 4, steps: 8, micro_batches: 2, checkpoint_every: 3, is_host_only, ..Job::default() };
            for fault in other_faults(rank) {
                let findings = attribute(&Model::from_trace(&trace(&job.clone().with_fault(fault), seed)).unwrap());
                assert!(findings.stragglers.is_empty(), "{fault:?}, seed {seed}: {}", findings.verdict.sentence);
            }
            let slow = job.clone().with_fault(Fault::SlowRank { rank, from_step: 2, percent: 50 });
            let findings = attribute(&Model::from_trace(&trace(&slow, seed)).unwrap());
            let blamed: Vec<u32> = findings.stragglers.iter().map(|straggler| straggler.worker.rank).collect();
            assert!(blamed.is_empty() || blamed == [rank], "seed {seed}: {}", findings.verdict.sentence);
        }
    }
}

/// Number of planted traces of each fault, of which as many have kernels as have none.
const PLANTED_OF_EACH: u64 = 1;
