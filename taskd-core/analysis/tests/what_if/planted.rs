//! Planted stragglers: the worker, the onset and the slowdown of the job are found, and no other worker is blamed.

use crate::job::{FIRST_STEP, Job, Plant, STEP_DISTANCE};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use taskd_analysis::what_if::{Findings, Model, ModelCounts, attribute};

/// Number of jobs, each with a seed of its own.
const JOBS: u64 = 100;

/// Largest error of the slowdown of the job: absolute, and as a part of the true slowdown. Three standard errors of the
/// worker's excess come on top.
const ERROR_MAX: (f64, f64) = (0.01, 0.1);

/// Smallest slowdown of the job for which a planted worker must be blamed.
const EFFECT_MIN: f64 = 0.01;

fn job(seed: u64) -> Job {
    let mut random = StdRng::seed_from_u64(seed ^ 0x5eed);
    let stages = random.random_range(1..=4);
    let chunks = if stages > 1 && random.random_range(0..3) == 0 { 2 } else { 1 };
    let data = random.random_range(2..=4);
    let steps = random.random_range(8..=12);
    let plant = Plant {
        data: random.random_range(0..data),
        stage: Some(random.random_range(0..stages)),
        onset: if random.random_range(0..3) == 0 { 0 } else { random.random_range(2..steps - 3) },
        end: steps,
        factor: random.random_range(1.1_f64.ln()..2.5_f64.ln()).exp(),
    };
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
        plants: if seed % 5 < 3 { vec![plant] } else { Vec::new() },
    }
}

fn findings(job: &Job) -> (Findings, f64) {
    let run = job.run();
    let model = Model::new(run.operations).unwrap();
    assert_eq!(model.counts(), ModelCounts::default(), "{job:?}");
    (attribute(&model), run.step_s)
}

fn is_at(findings: &Findings, index: usize, plant: &Plant) -> bool {
    let worker = findings.stragglers[index].worker;
    worker.data as usize == plant.data && Some(worker.stage as usize) == plant.stage
}

/// Standard error of a worker's excess over the affected steps. With one stage the lengths of the micro-batches are
/// noise; with more, the other stages show them.
fn error_of_excess(job: &Job, plant: &Plant) -> f64 {
    let noise = if job.stages == 1 { job.lengths.max(0.03) } else { 0.03 };
    noise / ((job.micro_batches * (plant.end - plant.onset)) as f64).sqrt()
}

/// Returns true if the noise may hide the straggler.
fn is_hidden(job: &Job, plant: &Plant) -> bool {
    plant.factor - 1.0 < 8.0 * error_of_excess(job, plant)
}

/// Returns what is wrong with the findings on a job with a planted straggler.
fn compare(job: &Job, plant: &Plant) -> Result<(), String> {
    let (findings, with) = findings(job);
    let speedup = with / job.without_plants().run().step_s;
    let blamed = &findings.stragglers[..];
    match blamed.len() {
        0 if speedup < 1.0 + EFFECT_MIN || is_hidden(job, plant) => return Ok(()),
        1 if is_at(&findings, 0, plant) => {}
        _ => return Err(format!("blamed {blamed:?}, true speedup {speedup}")),
    }
    let found = &findings.verdict.blamed[0];
    let onset = FIRST_STEP + plant.onset as u64 * STEP_DISTANCE;
    if found.onset_step != Some(onset) && !is_hidden(job, plant) {
        return Err(format!("onset {:?}, true onset {onset}", found.onset_step));
    }
    let error = (blamed[0].speedup - speedup).abs();
    if error > ERROR_MAX.0 + ERROR_MAX.1 * (speedup - 1.0) + 3.0 * error_of_excess(job, plant) {
        return Err(format!("speedup {}, true speedup {speedup}", blamed[0].speedup));
    }
    Ok(())
}

/// A job of four replicas with four stages, and micro-batches of different lengths.
fn large(plants: &[Plant]) -> Job {
    Job {
        seed: 7,
        data: 4,
        stages: 4,
        chunks: 1,
        micro_batches: 8,
        steps: 12,
        last_stage: 1.0,
        lengths: 0.1,
        is_overlapped: false,
        has_empty_transfers: false,
        plants: plants.to_vec(),
    }
}

#[test]
fn planted_straggler_is_blamed_with_its_onset_and_effect() {
    let mut errors = Vec::new();
    for job in (0..JOBS).map(job) {
        if let Some(Err(error)) = job.plants.first().map(|plant| compare(&job, plant)) {
            errors.push(format!("{error}\n  in {job:?}"));
        }
    }
    assert!(errors.is_empty(), "{}:\n{}", errors.len(), errors.join("\n"));
}

#[test]
fn job_without_a_straggler_blames_no_worker() {
    let mut blamed = Vec::new();
    for job in (0..JOBS).map(job).filter(|job| job.plants.is_empty()) {
        let (findings, _) = findings(&job);
        if !findings.verdict.blamed.is_empty() {
            blamed.push(format!("{}\n  in {job:?}", findings.verdict.sentence));
        }
    }
    assert!(blamed.is_empty(), "{} jobs:\n{}", blamed.len(), blamed.join("\n"));
}

#[test]
fn long_last_stage_is_the_cause_and_no_worker_is_at_fault() {
    let (findings, _) = findings(&Job { last_stage: 1.6, lengths: 0.02, ..large(&[]) });
    assert!(findings.verdict.blamed.is_empty() && !findings.verdict.is_healthy, "{:?}", findings.verdict);
    assert!(findings.verdict.sentence.contains("uneven stages, of which stage 3"), "{}", findings.verdict.sentence);
    assert!(findings.published.last_stage_share > Some(0.8), "{:?}", findings.published);
}

#[test]
fn long_sequences_are_the_cause_and_no_worker_is_at_fault() {
    let (findings, _) = findings(&Job { lengths: 0.4, ..large(&[]) });
    assert!(findings.verdict.blamed.is_empty() && !findings.verdict.is_healthy, "{:?}", findings.verdict);
    assert!(findings.verdict.sentence.contains("micro-batches of different lengths"), "{}", findings.verdict.sentence);
}

#[test]
fn replica_with_longer_data_blames_no_worker() {
    for onset in [0, 5] {
        let plant = Plant { data: 2, stage: None, onset, end: 12, factor: 1.5 };
        let (findings, _) = findings(&large(&[plant]));
        assert!(findings.verdict.blamed.is_empty(), "onset {onset}: {:?}", findings.verdict);
    }
}

#[test]
fn job_without_replicas_blames_no_worker() {
    let plant = Plant { data: 0, stage: Some(1), onset: 0, end: 12, factor: 1.5 };
    let (findings, _) = findings(&Job { data: 1, ..large(&[plant]) });
    assert!(findings.verdict.blamed.is_empty(), "{:?}", findings.verdict);
}

#[test]
fn two_stragglers_are_both_blamed_each_with_its_onset() {
    let plants = [
        Plant { data: 1, stage: Some(0), onset: 0, end: 12, factor: 1.8 },
        Plant { data: 3, stage: Some(2), onset: 6, end: 12, factor: 2.4 },
    ];
    let (findings, _) = findings(&large(&plants));
    assert_eq!(findings.stragglers.len(), 2, "{:?}", findings.verdict);
    for plant in &plants {
        let index = (0..2).find(|index| is_at(&findings, *index, plant)).unwrap();
        assert_eq!(findings.stragglers[index].first, plant.onset, "{:?}", findings.verdict);
    }
    assert!(findings.what_if.scenarios.iter().any(|scenario| scenario.without == "all 2 workers at fault"));
}

#[test]
fn recovered_straggler_is_blamed_until_its_recovery() {
    let plant = Plant { data: 1, stage: Some(2), onset: 3, end: 8, factor: 1.7 };
    let (findings, _) = findings(&large(&[plant]));
    let [straggler] = findings.stragglers[..] else { panic!("{:?}", findings.verdict) };
    assert!(is_at(&findings, 0, &plant));
    assert_eq!((straggler.first, straggler.end), (3, 8));
    let last = FIRST_STEP + 7 * STEP_DISTANCE;
    assert!(findings.verdict.sentence.contains(&format!("until step {last}")), "{}", findings.verdict.sentence);
}

#[test]
fn pause_in_a_single_step_blames_no_worker() {
    let plant = Plant { data: 1, stage: Some(2), onset: 4, end: 5, factor: 5.0 };
    let (findings, _) = findings(&large(&[plant]));
    assert!(findings.verdict.blamed.is_empty(), "{:?}", findings.verdict);
}
