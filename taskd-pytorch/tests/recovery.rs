//! Recovery inside of real torch processes: ranks are killed, frozen and cut off, and end as if nothing had been.
//!
//! The programs are those of `recovery/`, run by forked ranks over gloo. The supervisor there is a
//! stand-in; the link, the groups, the copies and the replacements are the real ones.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

#[path = "recovery/fork_server.rs"]
mod fork_server;
#[path = "recovery/halves.rs"]
mod halves;
#[path = "recovery/handed.rs"]
mod handed;
#[path = "recovery/noted.rs"]
mod noted;
#[path = "recovery/pieces.rs"]
mod pieces;
mod support;

use std::fs;

use serde_json::{Value, json};

/// Groups that wait for their time-out, of those that were given up: the share of recoveries, in per cent, and the
/// threads and descriptors of each.
const LEFT_PERCENT_MAX: usize = 35;
const LEFT_EACH_MAX: usize = 5;

/// What the processors may take more for a step, in microseconds, on a machine that does nothing else: 300 to 400 are
/// seen.
const COST_MICROS_MAX: f64 = 1000.0;

/// What a copy reaches at least of one plain `process_vm_readv`, or of bytes alone over TCP, on a machine that does
/// nothing else.
const COPY_RATIO_MIN: f64 = 0.7;

/// Times are printed by every run; what they have to be holds in the soak run, beside which nothing else runs.
fn is_soak() -> bool {
    std::env::var("TASKD_SOAK").is_ok_and(|value| value == "1")
}

/// What a scenario found; `None` where tests that need torch are skipped.
fn findings(test: &str, scenario: &str) -> Option<Value> {
    found_by("scenarios.py", test, scenario)
}

/// The same, of a scenario of this program.
fn found_by(program: &str, test: &str, scenario: &str) -> Option<Value> {
    let python = support::torch_python(test)?;
    let found = tempfile::NamedTempFile::new().unwrap();
    fork_server::run(&python, program, &[scenario, found.path().to_str().unwrap()]);
    Some(serde_json::from_slice(&fs::read(found.path()).unwrap()).unwrap())
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

/// Every rank ends with the bits of the undisturbed run, in every loss and in all state.
fn ends_as_undisturbed(test: &str, scenario: &str) -> Option<Value> {
    let found = findings(test, scenario)?;
    println!("{scenario}: seed {}, {} recoveries, in ms: {}", found["seed"], found["recoveries"], wholes(&found));
    for what in ["digests", "losses"] {
        assert!(list(&found[what]).iter().all(|equal| equal == true), "{what}: {found:#}");
    }
    assert!(found["recoveries"].as_u64().unwrap() > 0);
    Some(found)
}

fn wholes(found: &Value) -> String {
    let each = list(&found["phases"]).iter().map(|phases| format!("{:.0}", phases["whole"].as_f64().unwrap()));
    each.collect::<Vec<_>>().join(" ")
}

macro_rules! ends_as_undisturbed {
    ($($test:ident: $scenario:literal,)*) => {
        $(#[test]
        fn $test() {
            ends_as_undisturbed(stringify!($test), $scenario);
        })*
    };
}

ends_as_undisturbed! {
    ranks_that_are_killed_are_replaced: "kill",
    a_replacement_that_starts_when_it_is_needed: "kill_unparked",
    two_ranks_at_once: "kill_two",
    a_rank_that_dies_in_a_recovery: "kill_while_recovering",
    a_rank_that_stands_still_is_replaced: "stop",
    a_step_is_repeated_though_no_rank_died: "retry",
    a_script_without_the_with_and_without_named_state: "unguarded",
    all_reduce_by_hand_in_several_groups: "plain",
    gradients_of_several_batches_from_a_loader_that_shuffles: "accumulated",
    batches_that_the_program_changes_in_place: "in_place",
    loaders_with_random_numbers_of_their_own: "shuffled",
    a_loader_with_workers_that_load_ahead: "loader",
    a_dataloader_whose_iter_is_a_generator: "loader_that_generates",
    an_object_that_yields_from_a_dataloader_and_counts_its_epochs: "loader_of_the_programs_own",
    a_loader_of_a_framework_that_synchronizes_random_numbers_and_loads_one_batch_ahead: "loader_of_a_framework",
    a_dataloader_with_persistent_workers: "loader_with_persistent_workers",
    an_epoch_that_begins_with_a_collective_of_which_some_ranks_have_done_their_part: "epoch_that_some_have_begun",
    ranks_whose_host_is_lost_come_on_another_with_what_only_they_had: "other_hosts",
    ranks_that_are_lost_with_one_of_those_that_have_what_only_they_had: "host_and_holder",
    two_optimizers_with_operations_between_them: "gan",
    two_optimizers_and_no_rank_died: "gan_retry",
    mixed_precision_with_steps_that_its_scaler_leaves_out: "scaled",
    state_of_the_programs_own_is_copied_to_a_replacement: "keeping",
    state_of_the_programs_own_is_put_back_when_a_step_is_done_again: "keeping_retry",
    state_of_the_programs_own_when_a_rank_dies_between_gradients_and_optimizer: "keeping_died",
    state_too_large_to_be_copied_that_changes_after_the_optimizer: "large_late",
    state_that_changes_after_the_backward_pass: "changes_late",
    state_that_is_found_late_and_parts_of_what_is_named: "found_late",
    code_behind_the_with_of_steps_that_are_given_up: "behind",
    what_a_group_that_was_given_up_still_writes_is_put_right: "late_write",
    a_supervisor_that_goes_and_comes_back: "supervisor_gone",
    a_step_in_which_the_order_of_gradients_was_learned_is_done_again: "first_cut",
    ranks_of_which_some_have_made_their_buckets: "late",
    whatever_befalls_the_first_steps: "early",
    a_backward_pass_that_ends_in_its_middle_for_want_of_memory: "short_of_memory",
    a_step_in_which_an_allocator_refuses_is_done_again: "refused_by_an_allocator",
    fsdp_that_shards_nothing_is_recovered_as_ddp_is: "fsdp_replicated",
    ddp_with_unused_parameters_a_static_graph_or_views_of_buckets: "other_settings",
    steps_of_which_parts_are_compiled: "compiled_steps",
    a_program_with_a_default_time_out_for_sockets: "with_default_timeout",
}

/// Compiled, exported, traced, transformed: with taskd's hooks and without, in a step loop and without one.
#[test]
fn a_step_in_which_torch_compiles_or_traces_computes_the_same() {
    for scenario in ["ways", "ways_inductor"] {
        let Some(found) = findings("a_step_in_which_torch_compiles_or_traces_computes_the_same", scenario) else {
            return;
        };
        let ways = found.as_object().unwrap();
        assert!(ways.len() > 2, "{found:#}");
        for (way, settings) in ways.iter().filter(|(name, _)| *name != "reasons") {
            for (setting, is_equal) in settings.as_object().unwrap() {
                assert_eq!(is_equal, true, "{way}, with {setting}");
            }
        }
        let has_failed = |reason: &&Value| reason.as_str().is_some_and(|reason| reason.contains("the hook failed"));
        assert_eq!(list(&found["reasons"]).iter().find(has_failed), None);
    }
}

#[test]
fn a_pass_that_torch_only_traces_is_known_as_such() {
    let Some(found) = findings("a_pass_that_torch_only_traces_is_known_as_such", "traces_seen") else { return };
    assert_eq!(found, json!([false, true, true, false]), "only by torch.fx and torch.jit");
}

/// Beside this, the stand-in compares the checksums of all ranks in all scenarios: at the same steps, and after every
/// repair.
#[test]
fn checksums_are_equal_for_replicas_and_differ_for_stages() {
    let test = "checksums_are_equal_for_replicas_and_differ_for_stages";
    let Some(found) = findings(test, "checksums") else { return };
    let steps = ["0", "1", "2", "4", "8"];
    let rounds = |program: &str, [first, later]: [[u32; 3]; 2]| {
        let expected = steps.map(|step| (step.to_owned(), json!(if step == "0" { first } else { later })));
        assert_eq!(found[program], Value::Object(expected.into_iter().collect()), "{program}: {found:#}");
    };
    // How many checksums, how many different ones, how many groups of the framework.
    rounds("ddp", [[2, 1, 1]; 2]);
    rounds("ddp with broadcast", [[2, 1, 1]; 2]);
    rounds("ddp, found", [[2, 1, 1]; 2]);
    rounds("by hand", [[2, 1, 0]; 2]);
    rounds("stages", [[2, 1, 0], [2, 2, 0]]);
}

/// Without a backend, made again over the same store, in a world of its own, with a process that is no rank.
#[test]
fn unusual_groups_work_and_those_without_abort_are_reported() {
    let test = "unusual_groups_work_and_those_without_abort_are_reported";
    let Some(found) = findings(test, "meetings") else { return };
    let sums = [
        ("no_backend", json!([2.0, 2.0])),
        ("again", json!([2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0])),
        ("again, lazily", json!([2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0])),
        ("default_timeout", json!([2.0, 2.0])),
        ("own_world", json!([1.0])),
        ("with_helper", json!([2.0, 2.0])),
        ("tried_by_one", json!([2.0, 2.0])),
        ("later_than_waited_for", json!([2.0])),
    ];
    for (program, sums) in sums {
        let why = match program {
            "own_world" => Some("is of 1 processes where the job has 2 ranks, and cannot be given up"),
            "with_helper" | "later_than_waited_for" => {
                Some("has a member without taskd's hooks, which is no rank of the job, and cannot be given up")
            }
            _ => None,
        };
        for rank in list(&found[program]) {
            assert_eq!(rank["sums"], sums, "{program}: {found:#}");
            assert_eq!(
                rank["inside"],
                if why.is_some() { "ProcessGroup" } else { "AbortableGroup" },
                "{program}: {found:#}"
            );
            assert_eq!(rank["cannot"].as_str().is_some(), why.is_some(), "{program}: {found:#}");
            assert!(rank["cannot"].as_str().is_none_or(|cannot| cannot.contains(why.unwrap())), "{program}: {found:#}");
        }
    }
    assert_eq!(found["default_timeout"][0]["blocking"], json!([true, true]), "they are the program's own");
    assert_eq!(found["with_helper"][0]["helper"], 0);
    assert_eq!(found["tried_by_one"][0]["tried"], 1, "alone: {found:#}");
    let reconfigured = &found["reconfigured"][0];
    let is_older = reconfigured["refused"] == "TypeError"; // a torch that does not know the argument
    assert!(is_older || reconfigured["inside"].is_string(), "{found:#}");
}

#[test]
fn a_step_in_which_the_loop_is_left_counts_if_it_was_completed() {
    let Some(found) = findings("a_step_in_which_the_loop_is_left_counts_if_it_was_completed", "left") else { return };
    let expected = json!({
        "break": [6, 6], "return": [6, 6], "break inside": [6, 6], "break ahead of the optimizer": [5, 5], "raise": [5, 5],
        "to the end": [20, 20],
    });
    assert_eq!(found, expected);
}

/// Bodies of its `DistributedTest`, which comes with the wheel: some here, all in a soak.
#[test]
fn torchs_own_distributed_tests_have_the_same_outcomes() {
    let Some(found) = findings("torchs_own_distributed_tests_have_the_same_outcomes", "torchs_own") else { return };
    println!("{} bodies: {} pass, {} are skipped without taskd", found["bodies"], found["passed"], found["skipped"]);
    assert_eq!(found["differ"], json!({}));
    let few = if is_soak() { 80 } else { 10 };
    assert!(found["passed"].as_u64() >= Some(few), "{found:#}");
}

#[test]
fn an_operation_that_completes_late_has_not_failed() {
    let scenario = "completes_as_it_is_looked_at";
    let Some(found) = findings("an_operation_that_completes_late_has_not_failed", scenario) else { return };
    assert_eq!(found, serde_json::json!({"waited": true, "failed": []}));
}

/// In this scenario a replacement cannot take the lost rank's place, and reports why.
fn is_refused(test: &str, scenario: &str, why: &str) {
    let Some(found) = findings(test, scenario) else { return };
    assert!(found["refused"].as_str().is_some_and(|refused| refused.contains(why)), "{found:#}");
}

#[test]
fn a_replacement_whose_gradients_come_in_another_order_is_refused() {
    let test = "a_replacement_whose_gradients_come_in_another_order_is_refused";
    let why = "the buckets of DDP module 0 are others than those of the other ranks; restart all ranks";
    is_refused(test, "other_buckets", why);
}

#[test]
fn a_replacement_to_the_second_step_of_a_static_graph_is_refused() {
    let test = "a_replacement_to_the_second_step_of_a_static_graph_is_refused";
    is_refused(test, "second_step", "a static graph of DDP is in its second step, which a replacement cannot enter");
}

/// The group's backend is a stand-in for one that cannot be left.
#[test]
fn abort_of_a_group_with_another_backend_is_refused_at_once() {
    let test = "abort_of_a_group_with_another_backend_is_refused_at_once";
    let Some(found) = findings(test, "other_backend") else { return };
    let why =
        "refuses abort: a group with the backend fake cannot be given up inside of the process; restart all ranks";
    assert!(found["refused"].as_str().is_some_and(|refused| refused.contains(why)), "{found:#}");
    assert!(found["seconds"].as_f64().is_some_and(|seconds| seconds < 5.0), "{found:#}");
    assert_eq!(found["replacement"], "parked", "it can make such a group as well: {found:#}");
}

#[test]
fn a_model_that_is_sharded_is_not_done_again_in_place() {
    for (scenario, what) in
        [("fsdp", "model"), ("fsdp2", "model"), ("fsdp_unnamed", "model"), ("fsdp2_unnamed", "optimizer")]
    {
        let why =
            format!("{what} is sharded (FSDP), and does not come back from a pass that was given up in its middle");
        is_refused("a_model_that_is_sharded_is_not_done_again_in_place", scenario, &why);
    }
}

#[test]
fn a_pipeline_of_torchs_own_is_not_done_again_in_place() {
    let why = "a stage of torch.distributed.pipelining keeps what a schedule has under way, and does not come back from a step";
    is_refused("a_pipeline_of_torchs_own_is_not_done_again_in_place", "pipelined", why);
}

#[test]
fn step_that_may_have_changed_an_uncopied_state_is_not_repeated() {
    let test = "step_that_may_have_changed_an_uncopied_state_is_not_repeated";
    let why = "own was changed ahead of optimizer.step() and is too large to be copied at every step";
    is_refused(test, "large_early", why);
    is_refused(test, "large_copies", "it cannot be determined whether the step has changed own");
}

#[test]
fn a_place_in_a_step_that_goes_over_an_epochs_end_is_where_it_began() {
    let test = "a_place_in_a_step_that_goes_over_an_epochs_end_is_where_it_began";
    let Some(found) = findings(test, "over_an_epochs_end") else { return };
    for whose in ["own", "program"] {
        assert_eq!(found[whose][0], found[whose][1], "{whose}: {found:#}");
    }
}

#[test]
fn abort_with_a_loader_that_uses_collectives_is_refused() {
    let why = "refuses abort: Dispatching calls for operations of all ranks with every batch";
    is_refused("abort_with_a_loader_that_uses_collectives_is_refused", "loader_that_dispatches", why);
}

#[test]
fn state_that_is_lost_at_the_end_of_a_step_is_refused() {
    let test = "state_that_is_lost_at_the_end_of_a_step_is_refused";
    let Some(found) = findings(test, "own_that_is_lost") else { return };
    for (how, why) in [
        (
            "own",
            "own/mean is this rank's own, and was changed at the end of a step that rank 0 has completed; restart all ranks",
        ),
        ("noisy", "Noisy takes random numbers in its step, which this rank has not done"),
    ] {
        assert!(found[how].as_str().is_some_and(|refused| refused.contains(why)), "{how}: {found:#}");
    }
}

#[test]
fn gradients_carried_between_steps_are_reported_before_a_failure() {
    let test = "gradients_carried_between_steps_are_reported_before_a_failure";
    let Some(found) = findings(test, "carries") else { return };
    let carried = ["what gradients have from one step to the next"];
    let none: [[&str; 0]; 2] = [[], []];
    let expected = json!({
        "yes": [carried, carried], "others": [carried, carried],
        "first": none, "model": none, "zeros": none, "none": none,
    });
    assert_eq!(found, expected);
}

#[test]
fn state_that_is_made_in_the_loop_is_reported_before_anything_has_failed() {
    let test = "state_that_is_made_in_the_loop_is_reported_before_anything_has_failed";
    let Some(found) = findings(test, "made_late") else { return };
    assert_eq!(found["reported"], json!([["scheduler#2"], ["scheduler#2"]]), "{found:#}");
    let why = "this rank has no scheduler#2, which rank 0 has; is it the same program?";
    assert!(found["refused"].as_str().is_some_and(|refused| refused.contains(why)), "{found:#}");
}

#[test]
fn a_batch_that_could_not_be_loaded_is_loaded_when_its_step_is_done_again() {
    let test = "a_batch_that_could_not_be_loaded_is_loaded_when_its_step_is_done_again";
    let Some(found) = findings(test, "draw_fails") else { return };
    let loaders = found.as_object().unwrap();
    assert_eq!(loaders.len(), 4, "{found:#}");
    for (loader, runs) in loaders {
        assert_eq!(runs[0], runs[1], "{loader}: {found:#}");
    }
}

#[test]
fn a_step_whose_batches_are_not_there_any_more_is_not_done_again() {
    let test = "a_step_whose_batches_are_not_there_any_more_is_not_done_again";
    let why = "a batch was changed in place, so its step cannot be done again; from now on batches are copied";
    is_refused(test, "in_place_once", why);
    is_refused(test, "too_many", "a step of more than 2 batches cannot be done again; take fewer in one step");
}

#[test]
fn registered_object_without_state_is_reported() {
    let Some(found) = findings("registered_object_without_state_is_reported", "no_state") else { return };
    let logged = "taskd: losses is no state that can be recovered: a list without state_dict and load_state_dict";
    assert!(found["logged"].as_str().is_some_and(|text| text.contains(logged)), "{found:#}");
    assert_eq!(found["known"], serde_json::json!(["tensor"]));
}

#[test]
fn replacements_with_another_layout_are_refused_and_change_nothing() {
    let test = "replacements_with_another_layout_are_refused_and_change_nothing";
    let Some(found) = ends_as_undisturbed(test, "other_state") else { return };
    let why = [
        "average/weight is (8, 16) torch.float32 on rank 0 and (9, 16) torch.float32 here",
        "this rank has no average/bias, which rank 0 has; is it the same program?",
        "the state of rank 0 has no mean/",
    ];
    for (refused, sentence) in list(&found["refused"]).iter().zip(why) {
        assert!(refused.as_str().is_some_and(|refused| refused.contains(sentence)), "{sentence}: {found:#}");
    }
    assert_eq!(list(&found["refused"]).len(), why.len());
}

#[test]
fn a_replacement_copies_a_part_of_the_state_from_each_of_three_peers() {
    let test = "a_replacement_copies_a_part_of_the_state_from_each_of_three_peers";
    let Some(found) = ends_as_undisturbed(test, "of_three") else { return };
    for way in list(&found["given"]) {
        for given in list(way) {
            let (all, parts) = (given["all"].as_u64().unwrap(), given["parts"].as_object().unwrap());
            if parts.is_empty() {
                continue; // the others were a step behind, and one gave all
            }
            let counts: Vec<u64> = parts.values().map(|count| count.as_u64().unwrap()).collect();
            assert_eq!(counts.iter().sum::<u64>(), all, "{found:#}");
            assert!(counts.iter().all(|count| *count > all / 4 && *count < all / 2 + 4096), "{found:#}");
        }
    }
    // A peer that is a step behind when a rank dies copies as well, and gives nothing: here none is.
    for way in list(&found["of_one_step"]) {
        let [given] = &list(way)[..] else { panic!("{found:#}") };
        assert_eq!(given["parts"].as_object().unwrap().len(), 3, "{found:#}");
    }
}

#[test]
fn copy_is_refused_if_one_of_three_peers_has_other_state() {
    let test = "copy_is_refused_if_one_of_three_peers_has_other_state";
    let Some(found) = ends_as_undisturbed(test, "of_three_unlike") else { return };
    let why = "optimizer/0.0.max_exp_avg_sq is missing with rank 0 and";
    assert!(found["refused"].as_str().is_some_and(|refused| refused.contains(why)), "{found:#}");
}

#[test]
fn framework_callbacks_report_the_save_and_the_exit() {
    let test = "framework_callbacks_report_the_save_and_the_exit";
    let Some(found) = findings(test, "ordered_to_exit") else { return };
    let expected = serde_json::json!([["save", found["where"], found["step"]], ["exit", 7]]);
    assert_eq!(found["called"], serde_json::json!([expected, expected, expected, expected]), "{found:#}");
    assert_eq!(found["exits"], serde_json::json!([7, 7, 7, 7]));
}

#[test]
fn ranks_report_unsupported_recoveries_before_a_failure() {
    let test = "ranks_report_unsupported_recoveries_before_a_failure";
    let Some(found) = findings(test, "limits") else { return };
    for rank in 0..2 {
        let of = |name: &str| (&found[name][rank][0], list(&found[name][rank][1]));
        for name in ["fsdp", "found"] {
            let (cannot, sharded) = of(name);
            assert!(cannot.as_str().is_some_and(|why| why.contains("is sharded (FSDP)")), "{found:#}");
            assert!(!sharded.is_empty(), "{found:#}");
        }
        let (cannot, sharded) = of("zero");
        assert!(cannot.is_null() && sharded == &["optimizer"], "a failure that all survive can be mended: {found:#}");
        for name in ["ddp", "replicated"] {
            let (cannot, sharded) = of(name);
            assert!(cannot.is_null() && sharded.is_empty(), "{name}: {found:#}");
        }
    }
}

#[test]
fn sigterm_handler_affects_only_a_loop_with_an_exit_callback() {
    let Some(found) = findings("sigterm_handler_affects_only_a_loop_with_an_exit_callback", "owner_of_the_signal")
    else {
        return;
    };
    assert_eq!(found, serde_json::json!({"without": true, "own": true, "helper": 15, "after": 15, "late": 15}));
}

#[test]
fn state_too_large_to_undo_is_reported_once() {
    let test = "state_too_large_to_undo_is_reported_once";
    let Some(found) = findings(test, "state_too_large_to_undo") else { return };
    let [logged] = &list(&found["logged"])[..] else { panic!("{found:#}") };
    assert!(logged.as_str().unwrap().contains("(9 MiB) is larger than what is copied"), "{found:#}");
    assert!(found["undo"].is_null());
}

#[test]
fn a_replacement_in_another_step_loop_is_refused() {
    let why = "this rank is in step loop 1 of its program, and rank 0 in loop 2; restart all ranks";
    is_refused("a_replacement_in_another_step_loop_is_refused", "other_loop", why);
}

#[test]
fn ranks_that_are_killed_are_replaced_with_the_recorder_on() {
    let test = "ranks_that_are_killed_are_replaced_with_the_recorder_on";
    let Some(found) = ends_as_undisturbed(test, "kill_recorded") else { return };
    assert!(list(&found["recorded"]).iter().all(|begun| begun.as_u64() > Some(100)), "{found:#}");
    assert_eq!(found["reasons"], serde_json::json!([]), "every kind is recorded to the end");
}

#[test]
fn world_that_shrinks_and_grows_redistributes_its_data() {
    let test = "world_that_shrinks_and_grows_redistributes_its_data";
    for scenario in ["smaller", "fsdp_smaller"] {
        let Some(found) = findings(test, scenario) else { return };
        is_shared_out_again(&found);
    }
}

fn is_shared_out_again(found: &Value) {
    for (rank, places) in list(&found["places"]).iter().enumerate() {
        let is_new = rank == 1;
        let there = serde_json::json!([[rank, 4]]);
        assert_eq!(places[0], if is_new { serde_json::json!([]) } else { there.clone() }, "{found:#}");
        let without = serde_json::json!([[rank.saturating_sub(1), 3]]);
        assert_eq!(places[1], if is_new { serde_json::json!([]) } else { without }, "{found:#}");
        assert_eq!(places[2], there, "{found:#}");
    }
    let weights = list(&found["weights"]);
    assert!(weights.iter().all(|weight| *weight == weights[0]), "{found:#}");
    // What rank 1 had before it died it does not report, nor what it was handed out with the step that it died in.
    let before_it_died = 2 * (found["shrunk"].as_u64().unwrap() + 1);
    let epochs = list(&found["epochs"]);
    let (twice, never) = (epochs[0]["twice"].as_u64().unwrap(), epochs[0]["never"].as_u64().unwrap());
    assert!(twice <= 4 && never <= before_it_died + 16, "{found:#}");
    assert_eq!(epochs[1], serde_json::json!({"twice": 0, "never": 0}), "the next epoch is whole: {found:#}");
    let (shrunk, grown) = (&found["shrunk"], &found["grown"]);
    let survivor = serde_json::json!([
        ["stop"],
        ["clean"],
        ["rebuild", 1, 3],
        ["repair", shrunk],
        ["rollback", shrunk],
        ["stop"],
        ["clean"],
        ["rebuild", 2, 4],
        ["repair", grown],
        ["rollback", grown],
    ]);
    // A rank that has not committed the last step when it stops copies it from one that has.
    let stopped =
        list(&found["called"][2]).iter().filter(|call| call[0] == "stop").map(|call| call[1].as_u64().unwrap());
    let behind = stopped.zip([shrunk, grown]).map(|(at, step)| step.as_u64().unwrap().checked_sub(at));
    assert!(behind.into_iter().all(|behind| behind.is_some_and(|behind| behind <= 1)), "{found:#}");
    let calls = list(&found["called"][2]).iter().map(|call| match call[0].as_str() {
        Some("stop") => serde_json::json!(["stop"]),
        Some("repair") => serde_json::json!(["repair", call[1]]),
        _ => call.clone(),
    });
    assert_eq!(calls.collect::<Vec<_>>(), *list(&survivor), "{found:#}");
}

/// A step is given up once for its own failure, and once more for that of the next.
#[test]
fn recoveries_equal_the_injected_faults() {
    let test = "recoveries_equal_the_injected_faults";
    for (scenario, many) in [("between_passes", 1), ("two_in_a_row", 2)] {
        let Some(found) = ends_as_undisturbed(test, scenario) else { return };
        assert_eq!(found["generations"], many, "{scenario}: {found:#}");
    }
}

#[test]
fn operations_that_python_calls_for_raise_step_aborted() {
    let test = "operations_that_python_calls_for_raise_step_aborted";
    for scenario in ["plain_died", "plain_stop"] {
        let Some(found) = ends_as_undisturbed(test, scenario) else { return };
        assert_eq!(found["raised"], serde_json::json!(["StepAborted"]), "{found:#}");
    }
}

#[test]
fn bucket_that_fails_in_backward_completes_and_step_is_repeated() {
    let test = "bucket_that_fails_in_backward_completes_and_step_is_repeated";
    let Some(found) = ends_as_undisturbed(test, "in_backward") else { return };
    let failures = list(&found["failures"]);
    assert!(failures.iter().any(|one| one["in_backward"] == true && one["op"] == "allreduce"), "{failures:#?}");
    assert!(failures.iter().all(|one| one["kind"] == "collective" && one["group"] == "default"), "{failures:#?}");
}

#[test]
fn sharded_optimizer_step_is_repeated_and_a_lost_shard_reported() {
    let test = "sharded_optimizer_step_is_repeated_and_a_lost_shard_reported";
    let Some(_) = ends_as_undisturbed(test, "zero") else { return };
    let Some(lost) = findings(test, "lost_shard") else { return };
    assert!(lost["error"].as_str().is_some_and(|error| error.contains("optimizer is sharded")), "{lost}");
}

#[test]
fn many_recoveries_leave_little_behind() {
    let Some(found) = ends_as_undisturbed("many_recoveries_leave_little_behind", "many") else { return };
    let most = list(&found["phases"]).len() * LEFT_PERCENT_MAX / 100 * LEFT_EACH_MAX;
    for what in ["threads", "descriptors"] {
        let counts: Vec<usize> =
            list(&found["left"][what]).iter().map(|one| usize::try_from(one.as_u64().unwrap()).unwrap()).collect();
        println!("{what} after each recovery: {counts:?}");
        assert!(counts.iter().max().unwrap() - counts[0] <= most, "{what}: {counts:?}");
    }
}

#[test]
fn garbage_on_the_control_link_is_refused_and_training_continues() {
    let Some(found) = ends_as_undisturbed("garbage_on_the_control_link_is_refused_and_training_continues", "garbage")
    else {
        return;
    };
    let refused = |kind: &str| found["refused"][kind].as_str().unwrap_or_default().to_owned();
    assert!(refused("dance").contains("no directive dance"), "{found:#}");
    assert_eq!(refused("abort"), "directive of generation 0, this process is in generation 1");
    for kind in ["resume", "sync-state"] {
        assert!(refused(kind).contains("without an abort"), "{found:#}");
    }
}

/// All ranks, with the bits of the undisturbed run.
fn is_exact(found: &Value) -> bool {
    ["digests", "losses"].iter().all(|what| list(&found[what]).iter().all(|equal| equal == true))
}

/// Where all ranks have begun, if they agree.
fn start(found: &Value) -> Option<u64> {
    let starts = list(&found["starts"]);
    starts.iter().all(|one| *one == starts[0]).then_some(starts[0].as_u64()?)
}

#[test]
fn repeated_directives_are_executed_once_and_answered_again() {
    let test = "repeated_directives_are_executed_once_and_answered_again";
    let Some(found) = ends_as_undisturbed(test, "asked_twice") else { return };
    assert_eq!(found["refused"], serde_json::json!([]), "{found:#}");
    assert_eq!(found["again"], 16, "four directives of four ranks: {found:#}");
}

#[test]
fn all_start_again_from_a_dying_checkpoint_and_end_as_if_nothing_had_been() {
    let test = "all_start_again_from_a_dying_checkpoint_and_end_as_if_nothing_had_been";
    let Some(found) = findings(test, "dump_restart") else { return };
    assert!(is_exact(&found), "{found:#}");
    assert_eq!(start(&found), found["step"].as_u64(), "the step in flight is done again, and no other");
}

#[test]
fn state_of_the_programs_own_is_in_a_dying_checkpoint() {
    let Some(found) = findings("state_of_the_programs_own_is_in_a_dying_checkpoint", "dump_own") else { return };
    assert!(is_exact(&found), "{found:#}");
    assert_eq!(start(&found), found["step"].as_u64(), "all of it fits: {found:#}");
}

/// The Accelerator is a stand-in.
#[test]
fn dying_checkpoint_of_accelerate_loads_without_accelerate() {
    let test = "dying_checkpoint_of_accelerate_loads_without_accelerate";
    let Some(found) = findings(test, "dump_accelerated") else { return };
    assert!(is_exact(&found), "{found:#}");
    assert_eq!(start(&found), found["step"].as_u64(), "all of it fits: {found:#}");
    assert_eq!(found["other"], json!({"step": found["step"], "logged": "", "changed": true}));
}

/// By case, as `recovery/early_replay.py` has them: the step with which all go on.
#[test]
fn replacement_replays_the_open_step_early_and_undoes_it_if_unneeded() {
    let test = "replacement_replays_the_open_step_early_and_undoes_it_if_unneeded";
    let Some(found) = findings(test, "early_replay") else { return };
    for (case, step) in [("parked", 16), ("started", 16), ("on another host", 16), ("not completed", 15), ("fails", 16)]
    {
        let case = &found[case];
        assert_eq!((&case["step"], &case["done"]), (&json!(step), &json!([[], [], [15], []])), "{case:#}");
        for what in ["digests", "losses"] {
            assert!(list(&case[what]).iter().all(|equal| equal == true), "{what}: {case:#}");
        }
    }
}

#[test]
fn rank_without_saved_random_numbers_uses_those_of_a_peer() {
    let test = "rank_without_saved_random_numbers_uses_those_of_a_peer";
    let Some(found) = findings(test, "dump_lost") else { return };
    for (when, exact) in [("after", true), ("before", false)] {
        assert_eq!(start(&found[when]), Some(23));
        assert_eq!(is_exact(&found[when]), exact, "what it had was gone {when} the checkpoint was saved: {found:#}");
    }
}

#[test]
fn rank_lost_after_its_step_restarts_with_its_random_numbers() {
    let test = "rank_lost_after_its_step_restarts_with_its_random_numbers";
    let Some(found) = findings(test, "dump_lost_late") else { return };
    assert_eq!((start(&found), found["step"].as_u64()), (Some(24), Some(24)));
    assert!(is_exact(&found), "{found:#}");
}

#[test]
fn ranks_that_all_live_save_and_go_on_and_others_begin_there() {
    let test = "ranks_that_all_live_save_and_go_on_and_others_begin_there";
    let Some(found) = findings(test, "dump_asked") else { return };
    for (way, from) in [("on", Some(0)), ("from", found["step"].as_u64()), ("alone", found["step"].as_u64())] {
        assert!(is_exact(&found[way]), "{way}: {found:#}");
        assert_eq!(start(&found[way]), from, "{way}");
    }
}

#[test]
fn a_full_disk_and_a_second_death_leave_no_half_checkpoint() {
    let test = "a_full_disk_and_a_second_death_leave_no_half_checkpoint";
    let Some(found) = findings(test, "dump_faults") else { return };
    let error = |what: &str| found[what].as_str().unwrap_or_default().to_owned();
    assert!(error("full").contains("cannot be written: [Errno 27] File too large"), "{found:#}");
    assert_eq!(list(&found["temporary"]).len(), 0, "{found:#}");
    assert!(error("unsealed").contains("of rank 2: No such file"), "{found:#}");
    assert_eq!(found["half"], serde_json::json!({"step": null, "logged": "", "changed": false}));
    assert_eq!(found["swept"], true, "what was left of the others is gone");
    assert!(is_exact(&found) && start(&found) == found["step"].as_u64(), "{found:#}");
}

#[test]
fn damaged_checkpoint_is_refused_and_the_previous_one_is_loaded() {
    let test = "damaged_checkpoint_is_refused_and_the_previous_one_is_loaded";
    let Some(found) = findings(test, "dump_damaged") else { return };
    let is = |what: &str, step: &Value, logged: &str| {
        let one = &found[what];
        assert_eq!((&one["step"], &one["changed"]), (step, &Value::Bool(!step.is_null())), "{what}: {one:#}");
        let text = one["logged"].as_str().unwrap();
        assert!(text.contains(logged) && text.is_empty() == logged.is_empty(), "{what}: {text}");
    };
    let (older, newer) = (&found["older"], &found["newer"]);
    is("whole", newer, "");
    is("no part", older, "the part of rank 1 cannot be read: No such file or directory");
    is("short part", older, "the part of rank 1 has 999 bytes of");
    is("flipped part", older, "the part of rank 2 is damaged: its check sum is another");
    is("lacks a shard", older, "its manifest lacks a shard: part 1 of 4");
    is("lacks all shards", older, "its manifest lacks every part of the state of rank 0");
    is("another step", older, "is of step");
    is("flipped manifest", older, "its manifest is damaged");
    is("half a manifest", older, "its manifest is damaged");
    is("no manifest", older, "");
    is(
        "another layout",
        &Value::Null,
        "model/0.bias is (64,) torch.float32 in it and (32,) torch.float32 in this program",
    );
    is("other groups", &Value::Null, "optimizer has 1 groups of parameters in it and 2 in this program");
    is("nothing", &Value::Null, "");
}

#[test]
fn steps_cost_little_while_nothing_fails() {
    let Some(found) = findings("steps_cost_little_while_nothing_fails", "cost") else { return };
    println!("microseconds a step, with a supervisor and without: {found}");
    assert_eq!(found["digests"], 4, "every rank has the same bits in all runs");
    let used = |name: &str| found["best"]["used"][name].as_f64().unwrap();
    assert!(!is_soak() || used("with") - used("without") <= COST_MICROS_MAX, "{found}");
}

#[test]
fn the_client_of_a_store_speaks_as_torchs_own() {
    let Some(found) = findings("the_client_of_a_store_speaks_as_torchs_own", "store") else { return };
    assert_eq!([&found["theirs sees"], &found["after"]], ["of ours", "-2"], "{found:#}");
    assert_eq!(found["ours sees"], serde_json::json!([0, 1]));
    assert_eq!(found["added"], serde_json::json!([5, -2, 1]));
    assert_eq!(found["several"], serde_json::json!(["of ours", "-2"]));
    assert_eq!(found["checked"], serde_json::json!([true, false]));
    assert_eq!(found["deleted"], serde_json::json!([true, false]));
    assert!(found["waited"].as_str().unwrap().contains("no rank has set"), "{found:#}");
    assert!(found["unreachable"].as_str().unwrap().contains("cannot be reached"), "{found:#}");
    for what in ["set", "append"] {
        assert!(
            found[what].as_str().is_some_and(|why| why.contains("it does not take 9437184 bytes of long")),
            "{found:#}"
        );
    }
}

#[test]
fn a_large_state_is_copied_about_as_fast_as_the_kernel_can() {
    let Some(found) = findings("a_large_state_is_copied_about_as_fast_as_the_kernel_can", "copied") else { return };
    println!("gigabytes a second: {found}");
    assert_eq!(found["equal"], true);
    assert!(!is_soak() || found["ratio"].as_f64().unwrap() >= COPY_RATIO_MIN, "{found}");
    assert!(found["refused"].as_str().unwrap().contains("does not take this process for one of its job"), "{found}");
}

#[test]
fn a_large_state_is_copied_between_hosts_about_as_fast_as_bytes_alone() {
    let test = "a_large_state_is_copied_between_hosts_about_as_fast_as_bytes_alone";
    let Some(found) = findings(test, "copied_between_hosts") else { return };
    if let Some(why) = found["why"].as_str() {
        println!("not between network namespaces, which cannot be made here: {why}");
        return;
    }
    println!("gigabytes a second between two network namespaces: {found}");
    assert_eq!(found["equal"], true);
    assert!(!is_soak() || found["ratio"].as_f64().unwrap() >= COPY_RATIO_MIN, "{found}");
}
