//! The soak programs and benchmarks with small counts: run as users run them, and checked by their output.

mod bench_recovery;
#[path = "../../../tests/support/mod.rs"]
mod support;

use serde_json::Value;
use std::sync::PoisonError;
use support::{TORCH, account, example, skips_torch};

#[test]
fn bench_core_gives_a_figure_for_everything() {
    let output = example("bench_core").args(["--json", "--quick", "--kills", "3"]).output().expect("it runs");
    let figures = account(&output);
    let figure = |name: &str| figures[name].as_f64().unwrap_or_else(|| panic!("no {name}: {figures}"));
    for name in ["death_seen_ms_p50", "idle_cpu_percent", "observations_per_s", "bytes_per_rank", "week_resume_ms"] {
        assert!(figure(name) > 0.0, "{figures}");
    }
    assert!(figures["guard_memory"][0]["rss_kib"].as_u64() > Some(0), "{figures}");
    assert_eq!(figures["week_replay_equal"], true, "{figures}");
    assert!(figure("death_seen_ms_max") >= figure("death_seen_ms_p50"), "{figures}");
    assert!(figure("exit_above_pidfd_ms_p50").is_finite(), "{figures}");
}

#[test]
fn chaos_recorder_loses_and_tears_nothing() {
    let output = example("chaos_recorder").args(["--json", "--kills", "40"]).output().expect("it runs");
    let account = account(&output);
    assert_eq!((&account["lost"], &account["torn"]), (&0.into(), &0.into()), "{account}");
    assert!(account["published"].as_u64() > Some(10_000), "{account}");
}

#[test]
fn bench_trace_gives_a_figure_for_everything() {
    let output = example("bench_trace").args(["--json", "--quick", "--only", "cost,flow,store"]).output();
    let figures = account(&output.expect("it runs"));
    let figure = |name: &str| figures[name].as_f64().unwrap_or_else(|| panic!("no {name}: {figures}"));
    for name in [
        "record_ns_1thread",
        "range_ns_1thread",
        "record_ns_2threads",
        "disabled_ns",
        "fastrace_span_ns",
        "tracing_span_ns",
        "sustained_records_per_s",
    ] {
        assert!(figure(name) > 0.0, "{figures}");
    }
    assert_eq!((&figures["burst_drops"], &figures["overrun_count_exact"]), (&0.into(), &true.into()), "{figures}");
}

#[test]
fn chaos_pytorch_ends_as_if_nothing_had_happened() {
    if skips_torch("chaos_pytorch_ends_as_if_nothing_had_happened") {
        return;
    }
    let _alone = TORCH.lock().unwrap_or_else(PoisonError::into_inner);
    let kinds = ["--kinds", "start-import,checkpoint,supervisor-keep,guard"];
    let few = ["--json", "--kills", "4", "--steps", "300", "--pause-s", "3"];
    let account = account(&example("chaos_pytorch").args(few).args(kinds).output().expect("it runs"));
    for (what, good) in [("completed", true), ("loss_equal", true), ("state_equal", true)] {
        assert_eq!(account[what], good, "{account}");
    }
    for none in ["stalls", "orphans", "zombies", "overlaps", "blamed_wrongly", "unblamed", "not_kept"] {
        assert_eq!(account[none], 0, "{none}: {account}");
    }
    assert_eq!(account["leaked_files"], serde_json::json!([]), "{account}");
    assert_eq!((&account["pause"]["blamed"], &account["pause"]["restarts"]), (&0.into(), &0.into()), "{account}");
    assert!(account["kills"].as_u64() >= Some(4), "{account}");
}

#[test]
fn chaos_recovery_goes_on_as_if_nothing_had_happened() {
    if skips_torch("chaos_recovery_goes_on_as_if_nothing_had_happened") {
        return;
    }
    let _alone = TORCH.lock().unwrap_or_else(PoisonError::into_inner);
    let jobs = [
        ("retry", "8", "between-commits,nan,supervisor-mid-recovery"),
        ("recover-in-place", "5", "rank-zero,between-commits,mid-recovery,supervisor-mid-recovery"),
    ];
    for (strategy, faults, kinds) in jobs {
        let few = ["--json", "--faults", faults, "--strategy", strategy, "--kinds", kinds];
        let account = account(&example("chaos_recovery").args(few).output().expect("it runs"));
        for good in ["state_equal", "loss_bit_equal"] {
            assert_eq!(account[good], true, "{good}: {account}");
        }
        for none in ["stalls", "failed", "orphans", "zombies"] {
            assert_eq!(account[none], 0, "{none}: {account}");
        }
        assert_eq!(account["shm_left"], serde_json::json!([]), "{account}");
    }
}

/// The other loops need further packages: they are tested in the soak run.
#[test]
fn chaos_frameworks_ends_pipelines_and_shards_with_the_undisturbed_bits() {
    let test = "chaos_frameworks_ends_pipelines_and_shards_with_the_undisturbed_bits";
    if skips_torch(test) {
        return;
    }
    let _alone = TORCH.lock().unwrap_or_else(PoisonError::into_inner);
    let loops = ["--kills", "2", "--steps", "120", "--loops", "pipeline,fsdp2", "--taskd-steps", "true", "--json"];
    let account = account(&example("chaos_frameworks").args(loops).output().expect("it runs"));
    for row in account["rows"].as_array().expect("an array") {
        assert_eq!((&row["kills"], &row["recovered"]["recover-in-place"]), (&2.into(), &Value::Null), "{account}");
        assert!(row["steps_compared"].as_u64() >= Some(240), "{account}");
        for none in ["different", "failed", "blamed_wrongly"] {
            assert_eq!(row[none], serde_json::json!([]), "{account}");
        }
    }
}

#[test]
fn bench_trace_measures_python_programs_and_counts_every_collective() {
    if skips_torch("bench_trace_measures_python_programs_and_counts_every_collective") {
        return;
    }
    let _alone = TORCH.lock().unwrap_or_else(PoisonError::into_inner);
    let output = example("bench_trace").args(["--json", "--quick", "--only", "python,training,standbys"]).output();
    let figures = account(&output.expect("it runs"));
    for name in
        ["python_range_ns_ctypes", "python_range_ns_abi3", "hook_us_per_collective_p50", "ddp_hook_percent_10ms"]
    {
        assert!(figures[name].as_f64() > Some(0.0), "{name}: {figures}");
    }
    let [low, high] = [0, 1].map(|end| figures["ddp_wall_ci"][end].as_f64().expect("an interval"));
    assert!((low..=high).contains(&figures["ddp_wall_percent"].as_f64().expect("a figure")), "{figures}");
    assert_eq!(figures["collectives_seen"], figures["collectives_expected"], "{figures}");
    assert!(figures["collectives_seen"].as_u64() > Some(3 * 30 * 2), "{figures}");
    assert!(figures["standbys_first_steps"]["steps_per_s"].as_f64() > Some(0.0), "{figures}");
}

#[test]
fn bench_diagnosis_names_the_ranks_that_cause_hangs() {
    if skips_torch("bench_diagnosis_names_the_ranks_that_cause_hangs") {
        return;
    }
    let _alone = TORCH.lock().unwrap_or_else(PoisonError::into_inner);
    let few = ["--runs", "1", "--kinds", "frozen,size", "--json"];
    let account = account(&example("bench_diagnosis").args(few).output().expect("it runs"));
    assert_eq!((&account["injected"], &account["correct"]), (&2.into(), &2.into()), "{account}");
}
