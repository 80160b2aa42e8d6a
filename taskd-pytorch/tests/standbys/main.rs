//! Warm standbys of real PyTorch ranks: that they train as ever, and how soon.
//!
//! This program is also the guard of its own test, so it has a `main`: that of a test runner as small as can be.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod as_new;
mod job;
mod replaced;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::Duration;

use job::{Job, median};
use serde_json::Value;
use taskd_core::launch::guard;
use taskd_core::launch::python::Standbys;

/// A test by its name.
type Test = (&'static str, fn(Job));

const TESTS: [Test; 8] = [
    ("seated_ranks_train_as_those_that_were_started", |job| run(seated_ranks_train_as_those_that_were_started(job))),
    ("a_rank_has_the_jobs_threads", |job| run(a_rank_has_the_jobs_threads(job))),
    ("whole_restarts_are_fast", |job| run(whole_restarts_are_fast(job))),
    ("a_seated_interpreter_with_torch_is_as_one_that_was_started", |job| {
        run(as_new::a_seated_interpreter_with_torch_is_as_one_that_was_started(job))
    }),
    ("a_parked_standby_takes_the_place_of_a_killed_rank", |job| {
        run(replaced::a_parked_standby_takes_the_place_of_a_killed_rank(job))
    }),
    ("a_sampler_made_before_the_rank_is_known_gets_its_part", |job| {
        run(replaced::a_sampler_made_before_the_rank_is_known_gets_its_part(job))
    }),
    ("a_script_that_asks_for_its_rank_early_parks_there", |job| {
        run(replaced::a_script_that_asks_for_its_rank_early_parks_there(job))
    }),
    ("a_pre_started_standby_takes_the_place_of_a_killed_rank", |job| {
        run(replaced::a_pre_started_standby_takes_the_place_of_a_killed_rank(job))
    }),
];

fn main() -> ExitCode {
    guard::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|word| word == "--list") {
        TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    for (name, test) in TESTS {
        let is_chosen = filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
        if let Some(python) = is_chosen.then(|| support::torch_python(name)).flatten() {
            test(Job::new(python));
            println!("test {name} ... ok");
        }
    }
    ExitCode::SUCCESS
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test);
}

fn soak() -> bool {
    std::env::var_os("TASKD_SOAK").is_some()
}

async fn seated_ranks_train_as_those_that_were_started(job: Job) {
    let mut launched = job.launch(Standbys::template().after(Duration::ZERO)).await;
    let mut reports = Vec::new();
    for incarnation in 1..=3 {
        launched.start(&job, incarnation, 2, 6).await;
        let both: [Value; 2] = [job.report(0, incarnation).await, job.report(1, incarnation).await];
        launched.has_stepped(6).await;
        launched.standbys(2).await;
        launched.stop_all().await;
        reports.push(both);
    }
    assert_eq!(launched.counters().await.standbys_seated, 4);
    let all = |name: &str| reports.iter().flatten().map(|of| of[name].to_string()).collect::<Vec<_>>();
    assert_eq!(all("is_warm"), ["false", "false", "true", "true", "true", "true"]);
    for rank in 0..2 {
        for same in ["losses", "total", "threads", "interop", "omp", "hooked", "group", "group_is_ours"] {
            assert!(reports.iter().all(|of| of[rank][same] == reports[0][rank][same]), "{same}: {reports:?}");
        }
    }
    assert_eq!(reports[1][0]["group_is_ours"], true, "what records stands around groups in both");
    let mut drawn = [all("drawn"), all("seed_was")].concat();
    drawn.sort();
    drawn.dedup();
    assert_eq!(drawn.len(), 12, "random numbers are new in each: {reports:?}");
    launched.end().await;
}

/// Whatever the job's variables say: what each library computes with is what it computes with in a process that has
/// read them itself.
async fn a_rank_has_the_jobs_threads(job: Job) {
    let [omp, mkl, blas] = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"];
    let cases = [
        vec![(omp, "2")],
        vec![],
        vec![(omp, "2"), (mkl, "1"), (blas, "1")],
        vec![(mkl, "1")],
        vec![(omp, "100000")], // more than there are cores
    ];
    for threads in cases {
        let mut launched = job.launch(Standbys::template().after(Duration::ZERO).ahead(1)).await;
        launched.threads.clone_from(&threads);
        let mut reports = Vec::new();
        for incarnation in 1..=2 {
            launched.start(&job, incarnation, 1, 2).await;
            reports.push(job.report(0, incarnation).await);
            launched.standbys(1).await;
            launched.stop_all().await;
        }
        assert_eq!(launched.counters().await.standbys_seated, 1);
        assert_eq!(reports[1]["is_warm"], true);
        println!("{threads:?}: {} of {} CPUs", reports[1]["libraries"], reports[1]["cpus"]);
        for same in ["threads", "libraries", "interop", "omp", "total"] {
            assert_eq!(reports[1][same], reports[0][same], "{same} where the job sets {threads:?}");
        }
        let libraries = reports[1]["libraries"].as_object().unwrap();
        for asked in ["omp_get_max_threads", "MKL_Get_Max_Threads", "scipy_openblas_get_num_threads64_"] {
            assert!(libraries.contains_key(asked), "{asked} is in no library of this torch: {libraries:?}");
        }
        if threads == [(omp, "2")] && reports[1]["cpus"].as_u64() >= Some(2) {
            assert!(libraries.values().all(|number| number == 2), "the template's are 1: {libraries:?}");
        }
        launched.end().await;
        job.clear();
    }
}

/// Prints how soon four ranks run their own code, and have stepped, after all were killed and after the order.
async fn whole_restarts_are_fast(job: Job) {
    let rounds = if soak() { 50 } else { 5 };
    let mut medians = Vec::new();
    for (name, standbys) in [("exec", Standbys::none()), ("template", Standbys::template().after(Duration::ZERO))] {
        let mut launched = job.launch(standbys).await;
        launched.start(&job, 1, 4, 1).await;
        launched.all_reports(&job, 1, 4).await;
        let [mut user, mut imported, mut step, mut restart]: [Vec<u64>; 4] = Default::default();
        for incarnation in 2..=rounds + 1 {
            if name == "template" {
                launched.standbys(4).await;
            }
            let killed = launched.kill_all().await;
            let ordered = launched.start(&job, incarnation, 4, 1).await;
            let reports = launched.all_reports(&job, incarnation, 4).await;
            let last = |what: &str| reports.iter().map(|of| of[what].as_u64().unwrap()).max().unwrap();
            user.push(last("begun") - ordered);
            imported.push(last("imported") - ordered);
            step.push(last("first") - ordered);
            restart.push(last("first") - killed);
        }
        let ms = |times: &mut Vec<u64>| {
            let (middle, worst) = median(times);
            format!("{:.1} (worst {:.1})", middle as f64 / 1e6, worst as f64 / 1e6)
        };
        println!(
            "{name}: 4 ranks, {rounds} restarts, ms: order to user code of all {}, to torch imported in all {}, order to first step of all {}, SIGKILL to first step of all {}",
            ms(&mut user),
            ms(&mut imported),
            ms(&mut step),
            ms(&mut restart)
        );
        medians.push(median(&mut restart).0);
        let seated = launched.counters().await.standbys_seated;
        assert_eq!(seated, if name == "template" { 4 * u64::from(rounds) } else { 0 });
        launched.end().await;
        job.clear();
    }
    assert!(medians[1] * 2 < medians[0], "a restart from standbys takes less than half of the time: {medians:?}");
}
