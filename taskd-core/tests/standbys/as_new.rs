//! A seated interpreter beside one that was started for its rank: what of a process could distinguish them.

use std::collections::BTreeSet;

use serde_json::Value;
use taskd_core::job::WorkerSpec;

use crate::job::{Job, template};

/// Everything that one process has and another might not.
const LOOK: &str = include_str!("look.py");

/// What a new process and seated ones report, in this order.
async fn looks(spec: impl Fn(WorkerSpec) -> WorkerSpec, seated: u32) -> Vec<Value> {
    let job = Job::new(template().ahead(1)).await;
    let mut reports = Vec::new();
    for incarnation in 1..=seated + 1 {
        assert_eq!(job.run(incarnation, spec(job.program(LOOK))).await, "exit code 0");
        reports.push(job.report(&format!("report-rank-0.{incarnation}")).await);
        job.standbys(1).await;
    }
    assert_eq!(job.counters().await.standbys_seated, u64::from(seated));
    job.end().await;
    reports
}

#[tokio::test]
async fn a_seated_interpreter_is_as_one_that_was_started() {
    let mut reports = looks(|spec| spec.with_env("PYTHONHASHSEED", "5").with_env("OMP_NUM_THREADS", "2"), 1).await;
    let (mut seated, mut started) = (reports[1]["seen"].take(), reports[0]["seen"].take());
    let modules = |of: &Value| -> BTreeSet<String> {
        of["modules"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    let (more, less) = (modules(&seated), modules(&started));
    assert!(more.is_superset(&less), "missing: {:?}", less.difference(&more));
    let ours = ["_taskd_standby", "_taskd_standby_reset", "_taskd_standby_framework", "_socket", "gc", "time"];
    let mine = more.difference(&less).filter(|name| !ours.contains(&name.as_str())).cloned().collect::<Vec<_>>();
    let python = "import sys, time; import decimal, random, calendar, os; [print(name) for name in sys.modules]";
    let out = std::process::Command::new(taskd_core::testing::python::system()).args(["-c", python]).output().unwrap();
    let warmed = String::from_utf8(out.stdout).unwrap();
    let strange = mine.iter().filter(|name| !warmed.lines().any(|line| line == *name)).collect::<Vec<_>>();
    assert!(strange.is_empty(), "neither the imports nor the waiting need {strange:?}");
    for of in [&mut seated, &mut started] {
        of.as_object_mut().unwrap().remove("modules");
    }
    assert_eq!(seated["env"], started["env"]);
    for (name, value) in started.as_object().unwrap() {
        assert_eq!(&seated[name], value, "{name}");
    }
}

#[tokio::test]
async fn random_numbers_are_new_in_each_unless_an_import_has_seeded_them() {
    let reports = looks(|spec| spec, 3).await;
    let drawn: BTreeSet<String> = reports.iter().map(|reports| reports["drawn"]["random"].to_string()).collect();
    assert_eq!(drawn.len(), 4, "{drawn:?}");

    let job = Job::new(template().ahead(1).import("seeding")).await;
    std::fs::write(job.path("seeding.py"), "import random; random.seed(11)").unwrap();
    let program = "import seeding, random, sys; open(sys.argv[1], 'w').write(str(random.random()))";
    for incarnation in 1..=3 {
        let mut spec = job.program(program);
        spec.argv.push(format!("drawn-{incarnation}"));
        assert_eq!(job.run(incarnation, spec).await, "exit code 0");
        job.standbys(1).await;
    }
    assert_eq!(job.counters().await.standbys_seated, 2);
    let drawn = (1..=3).map(|n| std::fs::read_to_string(job.path(&format!("drawn-{n}"))).unwrap());
    assert_eq!(drawn.collect::<BTreeSet<_>>().len(), 1, "what the step of the template drew is put back");
    job.end().await;
}
