//! Planted stragglers: the worker, the onset and the slowdown of the job are found, and no other worker is blamed.

use crate::job::{FIRST_STEP, Job, Plant, STEP_DISTANCE};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use taskd_analysis::what_if::{Findings, Model, attribute};

/// Number of jobs, each with a seed of its own.
const JOBS: u64 = 100;

/// Largest error of the slowdown of the job: absolute, and as a part of the true slowdown.
const ERROR_MAX: (f64, f64) = (0.01, 0.1);

/// Smallest slowdown of the job for which a planted worker must be blamed.
const EFFECT_MIN: f64 = 0.01;

fn job(seed: u64) -> Job {
    let mut random = StdRng::seed_from_u64(seed ^ 0x5eed);
    let stages = random.random_range(1..=4);
    let chunks = if stages > 1 && random.random_range(0..3) == 0 { 2 } else { 1 };
    let data = random.random_range(2..=5);
    let steps = random.random_range(8..=14);
    let plant = (seed % 5 < 3).then(|| Plant {
        data: random.random_range(0..data),
        stage: random.random_range(0..stages),
        onset: if random.random_range(0..3) == 0 { 0 } else { random.random_range(2..steps - 3) },
        factor: random.random_range(1.1_f64.ln()..2.5_f64.ln()).exp(),
    });
    Job {
        seed,
        data,
        stages,
        chunks,
        micro_batches: stages * random.random_range(2..=3),
        steps,
        last_stage: if random.random() { 1.0 } else { 1.0 + 0.4 * random.random::<f64>() },
        lengths: if random.random() { 0.02 } else { 0.2 * random.random::<f64>() },
        is_overlapped: random.random(),
        has_empty_transfers: chunks > 1 && random.random(),
        plant,
    }
}

fn findings(job: &Job) -> (Findings, f64) {
    let run = job.run();
    let model = Model::new(run.operations).unwrap();
    assert_eq!(model.counts(), Default::default(), "{job:?}");
    (attribute(&model), run.step_s)
}

/// Returns true if the noise may hide the straggler: its excess is below eight standard errors. With one stage the lengths
/// of the micro-batches are noise; with more, the other stages show them.
fn is_hidden(job: &Job, plant: Plant) -> bool {
    let noise = if job.stages == 1 { job.lengths } else { 0.03 } / (job.micro_batches as f64).sqrt();
    (plant.factor - 1.0) * ((job.steps - plant.onset) as f64).sqrt() < 8.0 * noise
}

/// Returns what is wrong with the findings on a job with a planted straggler.
fn compare(job: &Job, plant: Plant) -> Result<(), String> {
    let (findings, with) = findings(job);
    let without = job.without_plant().run().step_s;
    let speedup = with / without;
    let blamed = &findings.stragglers[..];
    let is_planted = |index: usize| {
        let worker = blamed[index].worker;
        (worker.data as usize, worker.stage as usize) == (plant.data, plant.stage)
    };
    match blamed.len() {
        0 if speedup < 1.0 + EFFECT_MIN || is_hidden(job, plant) => return Ok(()),
        1 if is_planted(0) => {}
        _ => return Err(format!("blamed {blamed:?}, true speedup {speedup}")),
    }
    let found = &findings.verdict.blamed[0];
    let onset = FIRST_STEP + plant.onset as u64 * STEP_DISTANCE;
    if found.onset_step.is_none_or(|step| step.abs_diff(onset) > 0) {
        return Err(format!("onset {:?}, true onset {onset}", found.onset_step));
    }
    let error = (blamed[0].speedup - speedup).abs();
    if error > ERROR_MAX.0 + ERROR_MAX.1 * (speedup - 1.0) {
        return Err(format!("speedup {}, true speedup {speedup}", blamed[0].speedup));
    }
    Ok(())
}

#[test]
fn planted_straggler_is_blamed_with_its_onset_and_effect() {
    let mut errors = Vec::new();
    let mut planted = 0;
    for job in (0..JOBS).map(job) {
        let Some(plant) = job.plant else { continue };
        planted += 1;
        if let Err(error) = compare(&job, plant) {
            errors.push(format!("{error}\n  in {job:?}"));
        }
    }
    assert!(errors.is_empty(), "{} of {planted}:\n{}", errors.len(), errors.join("\n"));
}

#[test]
fn job_without_a_straggler_blames_no_worker() {
    let mut blamed = Vec::new();
    for job in (0..JOBS).map(job).filter(|job| job.plant.is_none()) {
        let (findings, _) = findings(&job);
        if !findings.verdict.blamed.is_empty() {
            blamed.push(format!("{}\n  in {job:?}", findings.verdict.sentence));
        }
    }
    assert!(blamed.is_empty(), "{} jobs:\n{}", blamed.len(), blamed.join("\n"));
}
