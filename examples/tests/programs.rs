//! The example programs as a newcomer runs them: started as they are, read by what they print.

use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

/// An example that cargo has built beside this test, whatever the profile and the target folder.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().expect("a running program has a path");
    let target: PathBuf = test.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps").join("examples");
    let program = target.join(name);
    assert!(program.exists(), "{} is not built; `cargo test --workspace` builds it", program.display());
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

/// The last line that it printed, as JSON.
fn account(output: &Output) -> Value {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    let last = out.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {last}\n{out}\n{err}"))
}

/// One rank was killed and another frozen, both were found and blamed and nobody else, and nothing was lost.
fn check_kill_and_freeze(account: &Value) {
    assert_eq!(account["completed"], true, "{account}");
    assert_eq!(account["loss_equal"], true, "{account}");
    assert_eq!(account["state_equal"], true, "{account}");
    assert_eq!(account["restarts"], 2, "{account}");
    let incidents = account["incidents"].as_array().expect("an array");
    let classes: Vec<&Value> = incidents.iter().map(|i| &i["class"]).collect();
    assert_eq!(classes, ["exit", "silence"], "{account}");
    assert!(incidents.iter().all(|i| i["correct"] == true), "{account}");
    assert!(incidents.iter().all(|i| i["resumed_ms"].as_f64().is_some()), "{account}");
}

#[test]
fn quickstart_ends_as_if_nothing_had_happened() {
    for seed in ["7", "8"] {
        let output =
            example("quickstart").args(["--json", "--steps", "600", "--seed", seed]).output().expect("it runs");
        check_kill_and_freeze(&account(&output));
    }
}

#[test]
fn custom_plugin_starts_the_lost_rank_alone() {
    let output = example("custom_plugin").arg("--json").env_remove("RUST_LOG").output().expect("it runs");
    let warned = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(warned.contains("WARN if this program is killed, its ranks are left behind"), "{warned}");
    let account = account(&output);
    assert_eq!(account["completed"], true, "{account}");
    assert_eq!(account["incidents"][0]["strategy"], "acme.start-alone", "{account}");
    assert_eq!(account["incidents"][0]["ranks"], serde_json::json!([1]), "{account}");
    for good in ["completed", "loss_equal", "state_equal"] {
        assert_eq!(account[good], true, "{good}: {account}");
    }
    assert_eq!((&account["incidents"][0]["correct"], &account["steps"]), (&true.into(), &40.into()), "{account}");
}

/// Whether tests that need PyTorch are to be left out; says so.
fn skips_torch(test: &str) -> bool {
    skips("torch", test)
}

/// Whether tests that need this are to be left out; says so.
fn skips(what: &str, test: &str) -> bool {
    let skips = std::env::var("TASKD_SKIP").is_ok_and(|skip| skip.split(',').any(|s| s == what));
    if skips {
        // Past the test harness, which would show a line only of a test that fails.
        let _ = writeln!(std::io::stderr(), "skipped: {test} (TASKD_SKIP names {what})");
    }
    skips
}

/// Held by a test that runs several ranks of a framework: two such jobs at once are more than a small machine bears.
static TORCH: Mutex<()> = Mutex::new(());

#[test]
fn a_simulation_breaks_no_invariant_and_notices_every_missing_check() {
    let output = example("simulate").args(["--json", "--seeds", "5", "--from", "200"]).output().expect("it runs");
    let account = account(&output);
    let none = (&account["violations"], &account["stuck"], &account["journals_equal"]);
    assert_eq!(none, (&0.into(), &0.into(), &true.into()), "{account}");
    assert!(account["rank_steps"].as_u64() >= Some(5 * 8 * 1_000), "{account}");
    let teeth = account["teeth"].as_object().expect("an object");
    assert!(teeth.len() == 8 && teeth.values().all(|bites| *bites == true), "{account}");
    assert!(account["branches"]["recovered"].as_u64() > Some(0) && account["fault_kinds"].is_object(), "{account}");
}

#[test]
fn gpu_watch_leaves_a_host_whose_card_fell_off_the_bus() {
    let output = example("gpu_watch").args(["--stand-in", "--json"]).output().expect("it runs");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.starts_with("There is no GPU here: a library stands in for NVIDIA's"), "{shown}");
    assert!(shown.contains("NVIDIA: drain the node and reboot it"), "{shown}");
    let account = account(&output);
    assert_eq!((&account["stand_in"], &account["completed"]), (&true.into(), &true.into()), "{account}");
    assert_eq!((&account["class"], &account["strategy"]), (&"device".into(), &"restart".into()), "{account}");
    assert_eq!(account["domain"], "device 1 of node gpu-a", "{account}");
    assert_eq!(account["hosts"], serde_json::json!(["node gpu-b"]), "{account}");
    assert_eq!((&account["xids"], &account["restarts"]), (&1.into(), &1.into()), "{account}");
}

#[test]
fn gpu_watch_traces_a_program_over_a_library_that_stands_in_for_cupti() {
    let dir = tempfile::tempdir().expect("a directory");
    let compile = |source: &str, name: &str, options: &[&str]| {
        let made = dir.path().join(name);
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../taskd-hw-cuda/tests/standin").join(source);
        let mut cc = Command::new("cc");
        let status = cc.args(["-O1", "-o"]).arg(&made).arg(source).args(options).status().expect("a C compiler");
        assert!(status.success());
        made
    };
    let library = compile("cupti.c", "libcupti.so", &["-shared", "-fPIC", "-lpthread"]);
    let program = compile("trainer.c", "trainer", &["-ldl"]);
    let mut traced = example("gpu_watch");
    let output = traced
        .args(["trace", "--json", "--cupti"])
        .arg(&library)
        .arg("--")
        .arg(&program)
        .args(["kernels", "5000", "10"]);
    let account = account(&output.output().expect("it runs"));
    assert_eq!((&account["stand_in"], &account["completed"]), (&true.into(), &true.into()), "{account}");
    let gemm = &account["work"][0];
    assert_eq!(
        (&gemm["kind"], &gemm["name"], &gemm["count"]),
        (&"Kernel".into(), &"gemm".into(), &5000.into()),
        "{account}"
    );
    assert_eq!(account["figures"]["cupti.dropped_total"], 0.0, "{account}");
    let output = example("gpu_watch").args(["trace", "--", "true"]).output().expect("it runs");
    assert!(String::from_utf8_lossy(&output.stdout).contains("the program did not use CUDA"), "{output:?}");
}

#[test]
fn gpu_watch_says_in_a_sentence_that_there_is_no_driver() {
    let output = example("gpu_watch").args(["--library", "/no/such/libnvidia-ml.so.1"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.lines().count(), output.stdout.len()), (Some(69), 1, 0), "{said}");
    assert!(said.starts_with("gpu_watch: NVML cannot be loaded (/no/such/libnvidia-ml.so.1"), "{said}");
}

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
fn pytorch_ddp_ends_as_if_nothing_had_happened() {
    if skips_torch("pytorch_ddp_ends_as_if_nothing_had_happened") {
        return;
    }
    let _alone = TORCH.lock().unwrap_or_else(PoisonError::into_inner);
    let output = example("pytorch_ddp").args(["--json", "--steps", "300"]).output().expect("it runs");
    check_kill_and_freeze(&account(&output));
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
fn pytorch_recover_keeps_the_processes_that_live_and_ends_as_if_nothing_had_happened() {
    let name = "pytorch_recover_keeps_the_processes_that_live_and_ends_as_if_nothing_had_happened";
    if skips_torch(name) {
        return;
    }
    let _alone = TORCH.lock().unwrap_or_else(PoisonError::into_inner);
    for (inject, how) in [("kill", "recovered by recover-in-place"), ("store", "recovered by retry")] {
        let few = ["--json", "--faults", "2", "--inject", inject];
        let account = account(&example("pytorch_recover").args(few).output().expect("it runs"));
        assert_eq!((&account["state_equal"], &account["loss_bit_equal"]), (&true.into(), &true.into()), "{account}");
        let recoveries = account["recoveries"].as_array().expect("an array");
        assert!(recoveries.len() == 2 && recoveries.iter().all(|r| r["how"] == how), "{account}");
        assert!(account["old_facts"].as_u64() < Some(40), "who is kept tells its steps in the new world: {account}");
    }
}

#[test]
fn pytorch_recover_does_a_step_again_whose_collective_failed_inside_of_backward() {
    let name = "pytorch_recover_does_a_step_again_whose_collective_failed_inside_of_backward";
    if skips_torch(name) {
        return;
    }
    let _alone = TORCH.lock().unwrap_or_else(PoisonError::into_inner);
    let few = ["--json", "--faults", "2", "--inject", "collective", "--victim", "opposite"];
    let account = account(&example("pytorch_recover").args(few).output().expect("it runs"));
    assert_eq!((&account["state_equal"], &account["loss_bit_equal"]), (&true.into(), &true.into()), "{account}");
    let recoveries = account["recoveries"].as_array().expect("an array");
    let as_should_be = |r: &Value| r["how"] == "recovered by retry" && r["who"] == "rank 2";
    assert!(recoveries.len() == 2 && recoveries.iter().all(as_should_be), "{account}");
}

#[test]
fn pytorch_recover_goes_on_on_another_host_when_one_is_lost_with_its_guard() {
    if skips_torch("pytorch_recover_goes_on_on_another_host_when_one_is_lost_with_its_guard") {
        return;
    }
    let _alone = TORCH.lock().unwrap_or_else(PoisonError::into_inner);
    let few = ["--json", "--faults", "1", "--strategy", "recover"];
    let account = account(&example("pytorch_recover").args(few).output().expect("it runs"));
    assert_eq!((&account["state_equal"], &account["loss_bit_equal"]), (&true.into(), &true.into()), "{account}");
    let recoveries = account["recoveries"].as_array().expect("an array");
    assert!(recoveries.len() == 1 && recoveries[0]["how"] == "recovered by recover", "{account}");
}

#[test]
fn pytorch_recover_trains_on_without_a_rank_until_it_comes_back() {
    if skips_torch("pytorch_recover_trains_on_without_a_rank_until_it_comes_back") {
        return;
    }
    let _alone = TORCH.lock().unwrap_or_else(PoisonError::into_inner);
    let few = ["--json", "--faults", "1", "--strategy", "shrink", "--victim", "zero"];
    let account = account(&example("pytorch_recover").args(few).output().expect("it runs"));
    assert_eq!((&account["world_kept"], &account["replicas_equal"]), (&false.into(), &true.into()), "{account}");
    let recoveries = account["recoveries"].as_array().expect("an array");
    let told: Vec<_> = recoveries.iter().map(|r| (r["who"].as_str(), r["how"].as_str())).collect();
    let expected = [("rank 0", "recovered by shrink"), ("rank 0 again", "recovered by grow")];
    assert_eq!(told, expected.map(|(who, how)| (Some(who), Some(how))), "{account}");
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

#[test]
fn mindspore_train_loses_a_worker_and_the_scheduler_and_ends_as_if_nothing_had_happened() {
    let name = "mindspore_train_loses_a_worker_and_the_scheduler_and_ends_as_if_nothing_had_happened";
    if skips("mindspore", name) {
        return;
    }
    let _alone = TORCH.lock().unwrap_or_else(PoisonError::into_inner);
    let account = account(
        &example("mindspore_train").args(["--json", "--steps", "60", "--then-workers", "2"]).output().expect("it runs"),
    );
    for good in ["completed", "loss_equal", "state_equal"] {
        assert_eq!(account[good], true, "{good}: {account}");
    }
    assert_eq!((&account["restarts"], &account["left"]), (&2.into(), &0.into()), "{account}");
    let incidents = account["incidents"].as_array().expect("an array");
    assert!(incidents.len() == 2 && incidents.iter().all(|i| i["correct"] == true), "{account}");
    assert_eq!(incidents[1]["services"], serde_json::json!(["scheduler"]), "{account}");
    assert!(account["resized"]["loss_differs"].as_f64() < Some(1e-4), "{account}");
    assert!(
        account["floor_s"].as_f64() > Some(0.5) && account["phases_ms"]["import"].as_f64() > Some(0.0),
        "{account}"
    );
}

#[test]
fn embed_host_finds_its_job_again_and_leaves_nothing_behind() {
    let account = account(&example("embed_host").arg("--json").output().expect("it runs"));
    assert_eq!(account["completed"], true, "{account}");
    assert!(account["attached_ms"].as_f64().is_some_and(|ms| ms < 1000.0), "{account}");
    assert_eq!((&account["killed"], &account["killed_seen"]), (&3.into(), &1.into()), "{account}");
    assert_eq!(account["fault_answer"], serde_json::json!({ "v": 1, "id": 1, "ok": {} }), "{account}");
    assert!(account["own_children"].as_u64().is_some_and(|children| children > 0), "{account}");
    let classes: Vec<&Value> = account["incidents"].as_array().expect("an array").iter().map(|i| &i["class"]).collect();
    assert_eq!(classes, ["exit", "leave", "device"], "{account}");
}

/// The other loops need the packages of others: they are in the soak run.
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
fn observe_finds_both_faults_and_touches_nothing() {
    if skips_torch("observe_finds_both_faults_and_touches_nothing") {
        return;
    }
    let _alone = TORCH.lock().unwrap_or_else(PoisonError::into_inner);
    let account = account(&example("observe").arg("--json").output().expect("it runs"));
    assert_eq!((&account["completed"], &account["signals_sent"]), (&true.into(), &0.into()), "{account}");
    let incidents = account["incidents"].as_array().expect("an array");
    let classes: Vec<&Value> = incidents.iter().map(|i| &i["class"]).collect();
    assert_eq!(classes, ["silence", "exit"], "{account}");
    for incident in incidents {
        assert_eq!((&incident["correct"], &incident["strategy"]), (&true.into(), &"restart".into()), "{account}");
        assert!(incident["would_have_saved_s"].as_f64().is_some(), "{account}");
    }
    assert!(
        account["supervisor_own_mib"].as_f64() < Some(3.0),
        "the rest is the program, without optimization: {account}"
    );
}

#[test]
fn find_culprit_names_the_rank_and_what_it_did() {
    if skips_torch("find_culprit_names_the_rank_and_what_it_did") {
        return;
    }
    let _alone = TORCH.lock().unwrap_or_else(PoisonError::into_inner);
    for (injected, cause) in [("stop", "frozen"), ("skip", "skipped"), ("mismatch", "mismatched")] {
        let verdict =
            account(&example("find_culprit").args(["--json", "--inject", injected]).output().expect("it runs"));
        assert_eq!((&verdict["correct"], &verdict["cause"]), (&true.into(), &cause.into()), "{verdict}");
        assert_eq!(verdict["blamed"], serde_json::json!([verdict["victim"]]), "{verdict}");
        assert!(verdict["detected_ms"].as_f64() < Some(10_000.0), "{verdict}");
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
fn trace_pytorch_breaks_steps_down_and_switches_under_them() {
    if skips_torch("trace_pytorch_breaks_steps_down_and_switches_under_them") {
        return;
    }
    let _alone = TORCH.lock().unwrap_or_else(PoisonError::into_inner);
    let out = tempfile::tempdir().expect("a directory");
    let output = example("trace_pytorch").args(["--json", "--steps", "20", "--out"]).arg(out.path()).output();
    let account = account(&output.expect("it runs"));
    let rows = account["rows"].as_array().expect("an array");
    assert_eq!(rows.len(), 8, "two ranks in four phases: {account}");
    for row in rows {
        let figure = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("no {name}: {row}"));
        let phase = row["phase"].as_str().unwrap_or_default();
        assert_eq!(figure("steps") > 0.0, phase != "nothing", "{row}");
        assert_eq!(figure("communications") > 1.9, phase.starts_with("all kinds"), "{row}");
        assert_eq!(figure("forward_ms") > 10.0, phase != "nothing", "{row}");
    }
    assert_eq!(account["written"]["dropped"], 0, "{account}");
    assert!(out.path().join("trace.pftrace").metadata().is_ok_and(|file| file.len() > 1000), "{account}");
}

#[test]
fn ascend_trace_records_what_a_stand_in_for_an_npu_makes_up_and_says_so() {
    let out = tempfile::tempdir().expect("a directory");
    let output = example("ascend_trace").args(["--json", "--steps", "20", "--out"]).arg(out.path()).output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.starts_with("no NPU: a stand-in for libmspti.so makes up what one does"), "{said}");
    let account = account(&output);
    assert_eq!(account["stand_in"], true, "{account}");
    let spans = |phase: usize| -> Vec<(String, u64)> {
        let spans = account["phases"][phase]["spans"].as_object().expect("an object");
        spans.iter().map(|(kind, count)| (kind.clone(), count.as_u64().expect("a number"))).collect()
    };
    let kinds = |phase: usize| spans(phase).into_iter().map(|(kind, _)| kind).collect::<Vec<_>>().join(" ");
    assert_eq!(kinds(0), "Communication DataLoader Forward Marker SaveCheckpoint Step", "{account}");
    let all = "Api Communication Copy DataLoader Forward Kernel Marker SaveCheckpoint Step";
    assert_eq!([kinds(1), kinds(2), kinds(3)], [all, "", "Copy Kernel"], "{account}");
    let steps = |phase: usize| {
        account["phases"][phase]["to"].as_u64().unwrap() - account["phases"][phase]["from"].as_u64().unwrap()
    };
    let of_kind = |kind: &str| spans(0).iter().find(|(known, _)| known == kind).expect("it is there").1;
    assert_eq!((of_kind("Step"), of_kind("DataLoader")), (2 * steps(0), steps(0)), "host and device: {account}");
    for (whose, count) in
        [("figures", "mspti.refused_requests"), ("figures", "mspti.cut_buffers"), ("written", "dropped")]
    {
        assert_eq!(account[whose][count].as_f64(), Some(0.0), "{account}");
    }
    let of_the_stand_in = &account["of_the_stand_in"];
    assert_eq!(
        (&of_the_stand_in["dropped"], &of_the_stand_in["calls_from_callbacks"]),
        (&0.into(), &0.into()),
        "{account}"
    );
    assert!(out.path().join("trace.pftrace").metadata().is_ok_and(|file| file.len() > 1000), "{account}");
}

#[test]
fn ascend_trace_loses_nothing_at_a_rate() {
    let output = example("ascend_trace").args(["bench", "--json", "--seconds", "1", "--rate", "300000"]).output();
    let account = account(&output.expect("it runs"));
    for run in account["runs"].as_array().expect("an array") {
        let count = |name: &str| run[name].as_f64().unwrap_or_else(|| panic!("no {name}: {run}"));
        assert_eq!((count("dropped"), count("lost"), count("calls_from_callbacks")), (0.0, 0.0, 0.0), "{run}");
        assert_eq!((count("read"), 2.0 * count("spans")), (count("made"), count("made")), "{run}");
        assert!(count("records_per_second_of_cpu") > 1e6, "an order below what it is: {run}");
    }
}
