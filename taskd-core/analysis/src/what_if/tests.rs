//! Attribution of simulated jobs with planted faults, from ordinary traces.

use super::{Findings, Model, attribute};
use crate::synthetic::{Fault, Job, trace};

fn attributed(job: &Job, seed: u64) -> Findings {
    attribute(&Model::from_trace(&trace(job, seed)).unwrap())
}

#[test]
fn explore() {
    let base = Job { dp: 2, tp: 2, pp: 4, is_host_only: true, steps: 12, ..Job::default() };
    for host in [true, false] {
        let base = Job { is_host_only: host, ..base.clone() };
        for (name, kind) in
            [("none", 0), ("rank", 1), ("link", 2), ("loader", 3), ("ckpt", 4), ("stage", 5), ("all", 6)]
        {
            let (mut right, mut wrong, mut none) = (0, 0, 0);
            let mut shown = String::new();
            for seed in 0..30_u64 {
                let rank = u32::try_from(seed * 7 % 16).unwrap();
                let percent = 50;
                let fault = match kind {
                    0 => Fault::None,
                    1 => Fault::SlowRank { rank, from_step: 4, percent },
                    2 => Fault::SlowLink { source: rank, destination: (rank + 4) % 16, from_step: 4, percent: 1500 },
                    3 => Fault::SlowLoader { rank, from_step: 4, percent },
                    4 => Fault::SlowCheckpoint { rank, from_step: 1, percent: 200 },
                    5 => Fault::UnevenStage { stage: rank % 4, percent },
                    _ => Fault::SlowAll { from_step: 4, percent },
                };
                let findings = attributed(&base.clone().with_fault(fault), seed);
                let blamed: Vec<u32> = findings.stragglers.iter().map(|s| s.worker.rank).collect();
                if blamed.is_empty() {
                    none += 1;
                } else if kind == 1 && blamed == [rank] {
                    right += 1;
                } else {
                    wrong += 1;
                    if shown.len() < 600 {
                        shown += &format!("\n    {fault:?} -> {}", findings.verdict.sentence);
                    }
                }
            }
            println!("host={host} {name}: right {right} wrong {wrong} none {none}{shown}");
        }
    }
}

/// Returns the mean measured step of a job in seconds.
fn measured(job: &Job, seed: u64) -> f64 {
    let steps = Model::from_trace(&trace(job, seed)).unwrap().measured();
    steps.iter().sum::<f64>() / steps.len() as f64
}

/// Returns the speedup of the scenario with this name, and how much faster the job really is without the fault.
fn speedup(job: &Job, fault: Fault, without: &str, change: impl Fn(&mut crate::model::Trace)) -> (f64, f64) {
    let (seed, faulty) = (7, job.clone().with_fault(fault));
    let mut trace = trace(&faulty, seed);
    change(&mut trace);
    let findings = attribute(&Model::from_trace(&trace).unwrap());
    let scenarios = &findings.what_if.scenarios;
    let found = scenarios.iter().find(|scenario| scenario.without.starts_with(without));
    let speedup = found.unwrap_or_else(|| panic!("{without}: {scenarios:#?}")).speedup;
    (speedup, measured(&faulty, seed) / measured(job, seed))
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
            rank.events.retain(|event| event.kind != crate::model::Kind::DataLoader);
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
