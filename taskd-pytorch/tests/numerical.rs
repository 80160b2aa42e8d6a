//! Figures that real PyTorch programs report without a change, and the verdicts about them.
//!
//! The programs are those of `numerical/`. Two of them record into a stand-in for libtaskd; `train.py` trains under the
//! real runtime.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod support;

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{ExitDetector, NumericalDetector};
use taskd_core::job::{Domain, JobSpec, Rank, Role, WorkerSpec};
use taskd_core::kernel::{Event, Outcome};
use taskd_core::launch::python::write_helper;
use taskd_core::launch::{GuardProgram, LocalLauncher};
use taskd_core::recover::ExitStrategy;
use taskd_core::runtime::Runtime;
use taskd_pytorch::{PYTHON_FILES, TorchLauncher};

/// Everything that is waited for comes in far less, or the test fails.
const PATIENCE: Duration = Duration::from_secs(180);

/// Number of bits of a checksum, below the number of the part.
const SUM_BITS: u32 = 40;

/// Returns what a program of `numerical/` found; `None` where tests that need torch are skipped.
fn findings(test: &str, program: &str) -> Option<Value> {
    let python = support::torch_python(test)?;
    let (found, helper) = (tempfile::NamedTempFile::new().unwrap(), tempfile::tempdir().unwrap());
    write_helper(helper.path(), PYTHON_FILES).unwrap();
    let mut command = Command::new(python);
    command.arg(format!("{}/tests/numerical/{program}", env!("CARGO_MANIFEST_DIR"))).arg(found.path());
    command.env("PYTHONPATH", helper.path()).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("TASKD_NUMERICAL", "on").env("GLOO_SOCKET_IFNAME", "lo").env("OMP_NUM_THREADS", "1");
    let out = command.output().unwrap();
    let text = fs::read_to_string(found.path()).unwrap();
    assert!(out.status.success() && !text.is_empty(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
    Some(serde_json::from_str(&text).unwrap())
}

/// Returns true if both are equal, except for the last bits of numbers.
fn are_alike(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(name, value)| other.get(name).is_some_and(|it| are_alike(value, it)))
        }
        (Value::Number(one), Value::Number(other)) => {
            let (one, other) = (one.as_f64().unwrap(), other.as_f64().unwrap());
            (one - other).abs() <= 1e-5 * one.abs().max(1e-3)
        }
        _ => one == other,
    }
}

#[test]
fn figures_are_those_that_the_program_computes() {
    let Some(mut found) = findings("figures_are_those_that_the_program_computes", "figures.py") else { return };
    let failing = found.as_object_mut().unwrap().remove("fails").unwrap();
    assert_eq!(failing["failed"], 1, "a hook that fails is switched off");
    assert_eq!(failing["lines"].as_array().unwrap().len(), 1, "{failing}");
    for (case, of) in found.as_object().unwrap() {
        let without_checksums = |steps: &Value| {
            let mut steps = steps.clone();
            for figures in steps.as_object_mut().into_iter().flat_map(|steps| steps.values_mut()) {
                figures.as_object_mut().unwrap().retain(|name, _| !name.contains("checksum"));
            }
            steps
        };
        let (expected, reported) = (&of["expected"], without_checksums(&of["reported"]));
        assert!(are_alike(expected, &reported), "{case}: expected {expected:#}, reported {reported:#}");
    }
    assert_eq!(found["explicit"]["expected"].as_object().unwrap().len(), 6, "the cases have run");
}

/// Of each step with checksums: the values of all ranks, by the name of the metric.
fn by_step(case: &Value) -> Vec<(u64, Vec<(String, u64)>)> {
    let ranks = case.as_array().unwrap();
    let steps: BTreeSet<u64> =
        ranks.iter().flat_map(|rank| rank.as_object().unwrap().keys().map(|step| step.parse().unwrap())).collect();
    let values = |step: &u64| {
        let of_rank = |rank: &Value| {
            let figures = rank[step.to_string()].as_object().expect("each rank reports at the same steps").clone();
            assert_eq!(figures.len(), 1, "one group, one part at a time: {figures:?}");
            let (name, value) = figures.into_iter().next().unwrap();
            #[allow(clippy::cast_possible_truncation, reason = "a whole number of 52 bits")]
            let value = value.as_f64().unwrap() as u64;
            (name, value)
        };
        ranks.iter().map(of_rank).collect()
    };
    steps.into_iter().map(|step| (step, values(&step))).collect()
}

#[test]
fn checksums_are_equal_on_replicas_and_differ_by_one_bit() {
    let test = "checksums_are_equal_on_replicas_and_differ_by_one_bit";
    let Some(found) = findings(test, "replicas.py") else { return };
    assert_eq!(found["failed"], serde_json::json!([0, 0, 0, 0]));
    for case in ["equal", "sharded_optimizer", "left_out"] {
        let steps = by_step(&found[case]);
        assert_eq!(steps.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [0, 2, 4, 6, 8, 10], "{case}");
        for (step, ranks) in &steps {
            assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{case}, step {step}: {ranks:?}");
            assert!(ranks[0].0.ends_with("|0-3"), "{}", ranks[0].0);
        }
    }
    let parts: Vec<u64> = by_step(&found["equal"]).iter().map(|(_, ranks)| ranks[0].1 >> SUM_BITS).collect();
    assert_eq!(parts, [0, 1, 2, 3, 4, 0], "1164 bytes in parts of 256: all have their turn");
    for (step, ranks) in by_step(&found["flipped"]) {
        let part = ranks[0].1 >> SUM_BITS;
        let differ: Vec<usize> = (0..4).filter(|rank| ranks[*rank] != ranks[0]).collect();
        let expected: &[usize] = if step > 5 && part == 4 { &[2] } else { &[] };
        assert_eq!(differ, expected, "step {step}, part {part}: {ranks:?}");
    }
    for (step, ranks) in by_step(&found["stages"]) {
        let groups: Vec<&str> = ranks.iter().map(|(name, _)| name.rsplit_once('|').unwrap().1).collect();
        assert_eq!(groups, ["0,1", "0,1", "2,3", "2,3"], "step {step}");
        assert!(ranks[0] == ranks[1] && ranks[2] == ranks[3] && ranks[0].1 != ranks[2].1, "step {step}: {ranks:?}");
    }
    for case in ["sharded_parameters", "alone"] {
        assert_eq!(found[case], serde_json::json!([{}, {}, {}, {}]), "{case}: nothing keeps them equal");
    }
}

/// What the detector reported of a training.
#[derive(Debug, Default)]
struct Verdicts {
    /// True if the job has trained to its end.
    is_completed: bool,
    /// Ranks that it blamed, with the class and the evidence.
    blamed: Vec<(u32, String, String)>,
    /// Classes of faults of the whole job.
    of_job: Vec<String>,
    notes: Vec<String>,
}

/// Trains with a fault, `KIND:RANK:STEP`, under the real runtime.
async fn train(test: &str, ranks: u32, fault: &str) -> Option<Verdicts> {
    let python = support::torch_python(test)?;
    let dir = tempfile::tempdir().unwrap();
    let local = LocalLauncher::builder(dir.path().join("run")).guard(GuardProgram::None).build().await.unwrap();
    let local = Arc::new(local);
    let program = format!("{}/tests/numerical/train.py", env!("CARGO_MANIFEST_DIR"));
    let worker = WorkerSpec::new([python.to_str().unwrap(), &program])
        .with_env("FAULT", fault)
        .with_env("TASKD_NUMERICAL", "on")
        .with_env("TASKD_CHECKSUM_EVERY", "4");
    let runtime = Runtime::builder()
        .job(JobSpec::new("numerical", ranks, worker))
        .source(local.recordings().every(Duration::from_millis(20)))
        .detector(ExitDetector::new())
        .detector(NumericalDetector::new())
        .strategy(ExitStrategy::new())
        .launcher(TorchLauncher::new(Arc::clone(&local), dir.path().join("torch")))
        .build()
        .unwrap();
    let mut events = runtime.handle().events();
    let report = tokio::time::timeout(PATIENCE, runtime.run()).await.expect("it ends");
    let mut verdicts = Verdicts { is_completed: report.outcome == Outcome::Completed, ..Verdicts::default() };
    while let Ok(event) = events.try_recv() {
        match &event.event {
            Event::Found { fault, .. } => {
                let suspect = fault.primary_suspect();
                let texts: Vec<&str> = fault.evidence.iter().map(|one| one.text.as_str()).collect();
                match &suspect.domain {
                    Domain::Process(Role::Rank(Rank(rank))) if suspect.is_cause() => {
                        verdicts.blamed.push((*rank, suspect.class.to_string(), texts.join("; ")));
                    }
                    _ => verdicts.of_job.push(suspect.class.to_string()),
                }
            }
            Event::Noted { clue, .. } => verdicts.notes.push(clue.text.clone()),
            _ => {}
        }
    }
    Some(verdicts)
}

#[tokio::test]
async fn one_flipped_bit_on_one_of_three_ranks_blames_this_rank() {
    let test = "one_flipped_bit_on_one_of_three_ranks_blames_this_rank";
    let Some(found) = train(test, 3, "bitflip:1:21").await else { return };
    let [(rank, class, evidence)] = found.blamed.as_slice() else { panic!("{found:#?}") };
    assert_eq!((*rank, class.as_str()), (1, "sdc"), "{found:#?}");
    assert!(!found.is_completed, "its state is wrong, and this job has no strategy but to exit");
    assert!(evidence.contains("at step 24 part 0 of the parameters of rank 1"), "{evidence}");
    assert!(evidence.contains("at step 20 this part was equal"), "{evidence}");
    assert!(evidence.contains("continue from a checkpoint before step 21"), "{evidence}");
}

#[tokio::test]
async fn one_flipped_bit_on_one_of_two_ranks_is_a_note() {
    let test = "one_flipped_bit_on_one_of_two_ranks_is_a_note";
    let Some(found) = train(test, 2, "bitflip:1:21").await else { return };
    assert!(found.blamed.is_empty() && found.of_job.is_empty(), "{found:#?}");
    assert!(
        found.notes.iter().any(|note| note.contains("at step 24 the parameters of 2 replicas differ")),
        "{found:#?}"
    );
}

#[tokio::test]
async fn nan_of_one_rank_blames_it_and_nan_of_all_blames_none() {
    let test = "nan_of_one_rank_blames_it_and_nan_of_all_blames_none";
    let Some(found) = train(test, 3, "nan:2:30").await else { return };
    let [(rank, class, evidence)] = found.blamed.as_slice() else { panic!("{found:#?}") };
    assert_eq!((*rank, class.as_str()), (2, "numerical"), "{found:#?}");
    assert!(found.is_completed, "a NaN ends no job");
    assert!(evidence.contains("the loss is NaN or infinite on 1 of 3 ranks at step 30"), "{evidence}");
    let found = train(test, 3, "nan:all:30").await.unwrap();
    assert!(found.blamed.is_empty(), "{found:#?}");
    assert!(found.of_job.iter().any(|class| class == "numerical"), "{found:#?}");
}

#[tokio::test]
async fn a_clean_training_has_no_numerical_fault() {
    let Some(found) = train("a_clean_training_has_no_numerical_fault", 3, "").await else { return };
    assert!(
        found.is_completed && found.blamed.is_empty() && found.of_job.is_empty() && found.notes.is_empty(),
        "{found:#?}"
    );
}
