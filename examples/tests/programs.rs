//! The example programs, run as users run them, and checked by their output.

mod support;

use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::sync::PoisonError;
use support::{TORCH, account, example, skips, skips_torch};

/// Checks that one rank was killed and another frozen, that exactly these were blamed, and that no progress was lost.
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

#[test]
fn host_history_records_what_was_injected_and_avoids_those_hosts() {
    let account = account(&example("host_history").arg("--json").output().expect("it runs"));
    assert_eq!(account["equal"], true, "{account}");
    let (injected, placed) = (&account["injected"], &account["placed"]);
    assert_eq!(placed[0], serde_json::json!(["host-0", "host-1", "host-2"]), "nothing is known yet: {account}");
    let avoids = |job: usize| !placed[job].as_array().expect("hosts").contains(&injected[0]);
    assert!(avoids(1), "{account}");
    assert_eq!(
        placed[2].as_array().map(|hosts| &hosts[..2]),
        Some(&["host-2".into(), "host-3".into()][..]),
        "{account}"
    );
}

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
    assert!(shown.starts_with("There is no GPU: a library stands in for NVIDIA's"), "{shown}");
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
fn gpu_watch_without_a_driver_exits_with_one_sentence() {
    let output = example("gpu_watch").args(["--library", "/no/such/libnvidia-ml.so.1"]).output().expect("it runs");
    let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        (output.status.code(), output_text.lines().count(), output.stdout.len()),
        (Some(69), 1, 0),
        "{output_text}"
    );
    assert!(output_text.starts_with("gpu_watch: NVML cannot be loaded (/no/such/libnvidia-ml.so.1"), "{output_text}");
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
fn pytorch_recover_in_place_and_retry_end_with_the_undisturbed_state() {
    let name = "pytorch_recover_in_place_and_retry_end_with_the_undisturbed_state";
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
        assert!(account["old_facts"].as_u64() < Some(40), "a kept rank reports its steps in the new world: {account}");
    }
}

#[test]
fn pytorch_recover_retries_a_step_whose_backward_collective_failed() {
    let name = "pytorch_recover_retries_a_step_whose_backward_collective_failed";
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
fn pytorch_recover_moves_ranks_of_a_lost_host_to_another_host() {
    if skips_torch("pytorch_recover_moves_ranks_of_a_lost_host_to_another_host") {
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
    let reported: Vec<_> = recoveries.iter().map(|r| (r["who"].as_str(), r["how"].as_str())).collect();
    let expected = [("rank 0", "recovered by shrink"), ("rank 0 again", "recovered by grow")];
    assert_eq!(reported, expected.map(|(who, how)| (Some(who), Some(how))), "{account}");
}

#[test]
fn mindspore_train_ends_undisturbed_after_worker_and_scheduler_loss() {
    let name = "mindspore_train_ends_undisturbed_after_worker_and_scheduler_loss";
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
    assert_eq!(account["fault_answer"], serde_json::json!({ "v": 2, "id": 1, "ok": {} }), "{account}");
    assert!(account["own_children"].as_u64().is_some_and(|children| children > 0), "{account}");
    let classes: Vec<&Value> = account["incidents"].as_array().expect("an array").iter().map(|i| &i["class"]).collect();
    assert_eq!(classes, ["exit", "leave", "device"], "{account}");
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
    let cases = [("stop", "frozen"), ("skip", "skipped"), ("mismatch", "mismatched"), ("bitflip", "sdc")];
    for (injected, cause) in cases {
        let verdict =
            account(&example("find_culprit").args(["--json", "--inject", injected]).output().expect("it runs"));
        assert_eq!((&verdict["correct"], &verdict["cause"]), (&true.into(), &cause.into()), "{verdict}");
        assert_eq!(verdict["blamed"], serde_json::json!([verdict["victim"]]), "{verdict}");
        assert!(verdict["detected_ms"].as_f64() < Some(10_000.0), "{verdict}");
    }
}

#[test]
fn trace_pytorch_breaks_steps_down_and_switches_under_them() {
    if skips_torch("trace_pytorch_breaks_steps_down_and_switches_under_them") {
        return;
    }
    let _alone = TORCH.lock().unwrap_or_else(PoisonError::into_inner);
    let out = tempfile::tempdir().expect("a directory");
    let mut program = example("trace_pytorch");
    program.args(["--json", "--steps", "20", "--out"]).arg(out.path());
    let live = cfg!(feature = "live");
    let output = program.args(live.then_some("--live")).output().expect("it runs");
    let served = String::from_utf8_lossy(&output.stdout).contains("live page     http://127.0.0.1:");
    assert_eq!(served, live, "{output:?}");
    let account = account(&output);
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
fn ascend_trace_without_an_npu_records_and_reports_a_stand_in() {
    let out = tempfile::tempdir().expect("a directory");
    let output = example("ascend_trace").args(["--json", "--steps", "20", "--out"]).arg(out.path()).output();
    let output = output.expect("it runs");
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output_text.starts_with("no NPU: a stand-in for libmspti.so generates the records"), "{output_text}");
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
