//! The HTA mode against tables that `HolisticTraceAnalysis` 0.5.0 itself computed, in `samples/hta_tables.json`.
//!
//! `TASKD_PYTHON_HTA=PYTHON cargo test -p taskd-pytorch --test kineto hta` runs HTA (the environment of `bench_analysis`) on
//! the same files, writes the tables again, and then compares.

use super::write_job;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use taskd_pytorch::kineto::generate::Plan;
use taskd_pytorch::kineto::{Breakdown, Class, Mode, breakdown_of_directory};

fn sample() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kineto/samples/hta_tables.json")
}

/// A job for each rule of HTA that changes figures.
fn write_all(directory: &Path) -> Vec<&'static str> {
    let base = Plan { layers: 5, ..Plan::default() };
    let jobs: [(&str, Plan, u32); 4] = [
        ("two_ranks", base, 2),
        ("short_kernels", Plan { seed: 2, has_short_kernels: true, ..base }, 1),
        ("one_step", Plan { seed: 3, steps: 1, ..base }, 1),
        ("two_steps", Plan { seed: 4, steps: 2, ..base }, 1),
    ];
    for (name, plan, ranks) in jobs {
        let job = directory.join(name);
        std::fs::create_dir(&job).unwrap();
        write_job(&job, plan, ranks);
    }
    let names = ["edges_1", "edges_2", "edges_3", "edges_4", "edges_5", "edges_6"];
    for (seed, name) in (1..).zip(names) {
        let job = directory.join(name);
        std::fs::create_dir(&job).unwrap();
        std::fs::write(job.join("rank0.json"), serde_json::to_vec_pretty(&edges(seed)).unwrap()).unwrap();
    }
    let mut further = super::launches::jobs();
    further.push(("operators", super::operators::job()));
    for (name, document) in &further {
        let job = directory.join(name);
        std::fs::create_dir(&job).unwrap();
        std::fs::write(job.join("rank0.json"), serde_json::to_vec(document).unwrap()).unwrap();
    }
    jobs.iter().map(|job| job.0).chain(names).chain(further.iter().map(|job| job.0)).collect()
}

/// Names of kernels: HTA classifies some of them by a part of the name.
const NAMES: [&str; 22] = [
    "gemm",
    "gemm_a",
    "gemm_b",
    "gemm_c",
    "gemm_d",
    "gemm_e",
    "gemm_f",
    "gemm_g",
    "gemm_h",
    "gemm_i",
    "gemm_j",
    "ncclDevKernel_AllReduce",
    "ncclKernel_Send",
    "ncclFoo",
    "Memcpy HtoD",
    "Memset (Device)",
    "dma_0",
    "Stream Wait Event",
    "Event Sync",
    "my_Memcpy_kernel",
    "KernelSyncThing",
    "nccl\nKernel",
];

/// A file of what the generator does not write: kernels that no call launched, or several; names that HTA classifies by
/// a part of them; streams that are text; annotations of steps on the device; spans without a category.
fn edges(seed: u64) -> Value {
    let mut state = seed;
    let mut below = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    let mut events = vec![];
    let mut at = 1000.5;
    for correlation in 0..400 {
        #[allow(clippy::cast_precision_loss, reason = "small")]
        let (start, duration) = (at, below(6_000) as f64 / 1000.0);
        let step = json!({"ph": "X", "cat": "user_annotation", "name": format!("ProfilerStep#{}", correlation / 100),
                          "pid": 1, "tid": 1, "ts": start, "dur": 200.0, "args": {}});
        if correlation % 100 == 0 {
            events.push(step);
        }
        if correlation == 310 && seed.is_multiple_of(2) {
            events.push(json!({"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#3", "pid": 0, "tid": 7,
                               "ts": start, "dur": 90.0, "args": {"External id": 3}}));
        }
        for _ in 0..[1, 1, 1, 1, 1, 0, 2][usize::try_from(below(7)).unwrap()] {
            events.push(json!({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
                               "ts": start - 0.4, "dur": 0.3, "args": {"correlation": correlation}}));
        }
        let stream = match below(12) {
            0 => json!("13"),
            1 => json!("none"),
            2 => json!(20),
            _ => json!(7),
        };
        let mut arguments = json!({"stream": stream, "correlation": correlation, "device": 0});
        if below(20) == 0 {
            arguments.as_object_mut().unwrap().remove("correlation");
        }
        let name = NAMES[usize::try_from(below(NAMES.len() as u64)).unwrap()];
        let mut event = json!({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start,
                               "dur": duration, "args": arguments});
        if below(40) == 0 {
            event.as_object_mut().unwrap().remove("cat");
        }
        events.push(event);
        events.push(json!({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": start - 0.45,
                           "dur": 0.4, "args": {"External id": correlation}}));
        #[allow(clippy::cast_precision_loss, reason = "small")]
        let pause = 1.101 + below(2_500) as f64 / 1000.0;
        at = ((at + pause) * 1000.0).round() / 1000.0;
    }
    json!({"distributedInfo": {"rank": 0}, "traceEvents": events})
}

/// Writes the tables with HTA, if the environment names a Python that has it.
fn bless(directory: &Path, jobs: &[&str]) {
    let Some(python) = std::env::var_os("TASKD_PYTHON_HTA") else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/soak/python/bench_analysis/hta_tables.py");
    let tables: serde_json::Map<String, Value> = jobs
        .iter()
        .map(|job| {
            let output = Command::new(&python).arg(&script).arg(directory.join(job)).output().unwrap();
            assert!(output.status.success(), "{job}: {}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8(output.stdout).unwrap();
            let mut tables: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
            for cost in ["wall_s", "cpu_s", "peak_kib", "warnings"] {
                tables.as_object_mut().unwrap().remove(cost);
            }
            if *job != "operators" {
                tables.as_object_mut().unwrap().remove("operators"); // depends on the order of HTA's sort
            }
            ((*job).to_owned(), tables)
        })
        .collect();
    std::fs::write(sample(), serde_json::to_string(&tables).unwrap() + "\n").unwrap();
}

pub(super) fn rows<'a>(tables: &'a Value, name: &str) -> &'a [Value] {
    tables[name].as_array().unwrap()
}

/// Returns a whole number, which pandas may print as a float.
#[allow(clippy::cast_possible_truncation, reason = "whole and small")]
pub(super) fn whole(value: &Value) -> i64 {
    value.as_f64().unwrap() as i64
}

pub(super) fn is_near(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * other.abs().max(1.0)
}

fn compare_times(job: &str, ours: &Breakdown, theirs: &Value) {
    assert_eq!(ours.ranks.len(), rows(theirs, "temporal").len(), "{job}");
    for ((rank, times), overlap) in ours.ranks.iter().zip(rows(theirs, "temporal")).zip(rows(theirs, "overlap")) {
        let figures = [
            ("rank", i64::from(rank.rank) * 1000),
            ("idle_time(us)", rank.idle_ns),
            ("compute_time(us)", rank.compute_ns),
            ("non_compute_time(us)", rank.non_compute_ns()),
            ("kernel_time(us)", rank.kernel_time_ns),
        ];
        for (column, figure) in figures {
            assert_eq!(times[column].as_f64(), Some(figure as f64 / 1000.0), "{job}, rank {}: {column}", rank.rank);
        }
        let percent = rank.overlap_ratio().map(|ratio| (ratio * 10_000.0).round_ties_even() / 100.0);
        assert_eq!(overlap["comp_comm_overlap_pctg"].as_f64(), percent, "{job}, rank {}", rank.rank);
    }
}

fn compare_types(job: &str, ours: &Breakdown, theirs: &Value) {
    let name = |label: &str| {
        label
            .replace("computation", "COMPUTATION")
            .replace("communication", "COMMUNICATION")
            .replace("memory", "MEMORY")
    };
    let mut sums = std::collections::BTreeMap::new();
    for (label, time) in ours.ranks.iter().flat_map(|rank| &rank.types) {
        *sums.entry(name(&label.to_string())).or_insert(0) += time / 1000;
    }
    let expected: std::collections::BTreeMap<String, i64> = rows(theirs, "types")
        .iter()
        .map(|row| (row["kernel_type"].as_str().unwrap().to_owned(), whole(&row["sum"])))
        .filter(|row| row.1 != 0)
        .collect();
    sums.retain(|_, sum| *sum != 0);
    assert_eq!(sums, expected, "{job}");
}

fn compare_kernels(job: &str, ours: &Breakdown, theirs: &Value) {
    let class = |class: Class| match class {
        Class::Compute => "COMPUTATION",
        Class::Communication => "COMMUNICATION",
        _ => "MEMORY",
    };
    let key = |class: &str, name: &str, rank: i64| (class.to_owned(), name.to_owned(), rank);
    let mut table: Vec<_> = ours
        .ranks
        .iter()
        .flat_map(|rank| &rank.kernels)
        .map(|row| (key(class(row.class), &row.name, row.rank.into()), row))
        .collect();
    table.sort_by(|one, other| one.0.cmp(&other.0));
    let theirs = rows(theirs, "kernels");
    assert_eq!(table.len(), theirs.len(), "{job}");
    for ((key_of_ours, row), expected) in table.iter().zip(theirs) {
        let name = expected["name"].as_str().unwrap();
        let rank = whole(&expected["rank"]);
        assert_eq!(*key_of_ours, key(expected["kernel_type"].as_str().unwrap(), name, rank), "{job}");
        let figures = [
            ("sum (us)", row.sum_ns as f64),
            ("max (us)", row.max_ns as f64),
            ("min (us)", row.min_ns as f64),
            ("mean (us)", row.mean_ns),
            ("stddev", row.deviation_ns),
        ];
        for (column, figure) in figures {
            let theirs = expected[column].as_f64().unwrap();
            assert!(is_near(figure / 1000.0, theirs), "{job}, {name}: {column} is {figure} ns, in HTA {theirs} us");
        }
    }
}

fn compare_idle(job: &str, ours: &Breakdown, theirs: &Value) {
    let mut table = std::collections::BTreeMap::new();
    for (rank, idle) in ours.ranks.iter().flat_map(|rank| rank.idle.iter().map(|idle| (rank.rank, idle))) {
        for (cause, time) in
            [("host_wait", idle.host_wait_ns), ("kernel_wait", idle.kernel_wait_ns), ("other", idle.other_ns)]
        {
            table.insert((i64::from(rank), idle.stream, cause.to_owned()), time / 1000);
        }
    }
    table.retain(|_, time| *time != 0);
    let key = |row: &Value| (whole(&row["rank"]), whole(&row["stream"]), row["idle_category"].as_str().unwrap().into());
    let expected: std::collections::BTreeMap<_, _> =
        rows(theirs, "idle").iter().map(|row| (key(row), whole(&row["idle_time"]))).filter(|row| row.1 != 0).collect();
    assert_eq!(table, expected, "{job}");
}

#[test]
fn hta_mode_yields_the_tables_of_hta() {
    let directory = tempfile::tempdir().unwrap();
    let jobs = write_all(directory.path());
    bless(directory.path(), &jobs);
    let tables: Value = serde_json::from_slice(&std::fs::read(sample()).unwrap()).unwrap();
    let (mut compared, mut queues) = (0, 0);
    for job in jobs {
        let ours = breakdown_of_directory(&directory.path().join(job), Mode::Hta).unwrap();
        let is_exact = ours.missing.iter().all(|missing| !missing.what.contains("depend on the order"));
        assert!(is_exact, "{job}: {:?}", ours.missing);
        compare_times(job, &ours, &tables[job]);
        compare_types(job, &ours, &tables[job]);
        compare_kernels(job, &ours, &tables[job]);
        queues += super::launches::compare(job, &ours, &tables[job]);
        if ours.missing.iter().all(|missing| !missing.what.contains("idle time")) {
            compare_idle(job, &ours, &tables[job]);
            compared += 1;
        }
    }
    assert!(queues >= 19, "{queues} queues are those of HTA");
    super::operators::compare(&directory.path().join("operators"), &tables["operators"]);
    assert!(compared >= 8, "the idle time of {compared} jobs is that of HTA; others depend on the order of HTA's sort");
}

#[test]
fn exact_mode_counts_nanoseconds_of_all_steps() {
    let directory = tempfile::tempdir().unwrap();
    write_job(directory.path(), Plan { seed: 2, layers: 5, has_short_kernels: true, ..Plan::default() }, 1);
    let [exact, hta] = [Mode::Exact, Mode::Hta].map(|mode| breakdown_of_directory(directory.path(), mode).unwrap());
    let (exact, hta) = (&exact.ranks[0], &hta.ranks[0]);
    assert_eq!(exact.steps.iter().map(|step| step.number).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(exact.busy_ns + exact.idle_ns, exact.kernel_time_ns);
    assert!(hta.count < exact.count && hta.kernel_time_ns < exact.kernel_time_ns, "HTA drops the last step");
    let sum: i64 = exact.types.iter().map(|row| row.1).sum();
    assert_eq!(sum, exact.busy_ns, "the classes together are the busy time");
    let waits = exact.idle.iter().map(|idle| idle.host_wait_ns + idle.kernel_wait_ns + idle.other_ns);
    assert!(waits.sum::<i64>() > exact.idle_ns, "each stream is idle at least when all are");
    assert!(exact.idle.iter().any(|idle| idle.host_waits > 0) && exact.idle.iter().any(|idle| idle.kernel_waits > 0));
    assert!(exact.kernels.iter().all(|row| row.min_ns >= 300), "no kernel lasts 0 or -1 microseconds");
    assert!(hta.kernels.iter().any(|row| row.min_ns < 0), "in HTA short kernels do");
    let inside: i64 = exact.steps.iter().map(|step| step.busy_ns).sum();
    assert!(inside > 0 && inside <= exact.busy_ns);
}
