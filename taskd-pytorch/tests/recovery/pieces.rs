//! Pieces of recovery inside of torch processes, each alone, where something does not go as it usually does.
//!
//! What is around a piece is a double (`pieces.py`).

use serde_json::{Value, json};

use super::found_by;

fn found(test: &str, scenario: &str) -> Option<Value> {
    found_by("pieces.py", test, scenario)
}

#[test]
fn failure_that_cannot_be_reported_leaves_no_operation_waiting() {
    let test = "failure_that_cannot_be_reported_leaves_no_operation_waiting";
    let Some(found) = found(test, "completer_goes_on") else { return };
    for what in ["failed completes", "a later one completes", "tainted"] {
        assert_eq!(found[what], true, "{what}: {found:#}");
    }
    assert_eq!(
        found["reported"],
        json!([["collective", "allreduce", "default", true, "[Errno 24] Too many open files"]])
    );
    let message = "the outcome of allreduce is not known: OSError: [Errno 24] Too many open files";
    assert_eq!(found["logged"], json!([message]));
}

#[test]
fn a_callback_may_wait_for_an_operation_that_it_calls_for() {
    let test = "a_callback_may_wait_for_an_operation_that_it_calls_for";
    let Some(found) = found(test, "callback_that_waits") else { return };
    assert_eq!(found, json!({"value": [1, 2, 3]}));
}

#[test]
fn a_step_unlike_all_before_it_is_of_a_new_kind() {
    let Some(found) = found("a_step_unlike_all_before_it_is_of_a_new_kind", "kinds_of_steps") else { return };
    let new = json!([
        "the first",
        "one less",
        "others",
        "a search",
        "without a reduction",
        "none",
        "one that was given up, and does nothing",
        "a replacement's with 5 calls",
        "what was not reported"
    ]);
    assert_eq!(found, json!({"new": new, "known": 129, "one more": false}));
}

#[test]
fn communication_hooks_that_may_hold_state_are_detected() {
    let Some(found) = found("communication_hooks_that_may_hold_state_are_detected", "hooks_of_models") else { return };
    let keep = json!(["power", "wrapped power", "closure", "wrapped closure", "method", "partial"]);
    assert_eq!(found, json!({"keep a state": keep, "before": null, "after": ["FSDP", "divides"]}));
}

#[test]
fn process_that_ends_during_an_operation_has_its_own_exit_code() {
    let test = "process_that_ends_during_an_operation_has_its_own_exit_code";
    let Some(found) = found(test, "ends_with_a_bucket_under_way") else { return };
    assert_eq!(found["exit"], json!({"code": 7, "stderr": ""}), "{found:#}");
    assert_eq!(found["raise"]["code"], 1, "{found:#}");
    let stderr = found["raise"]["stderr"].as_str().unwrap();
    assert!(stderr.ends_with("ValueError: in a gradient hook\n"), "{stderr}");
}

#[test]
fn a_group_that_is_made_while_the_others_are_released_is_known() {
    let test = "a_group_that_is_made_while_the_others_are_released_is_known";
    let Some(found) = found(test, "groups_made_while_they_are_released") else { return };
    assert_eq!(found, json!({"lost": 0, "kept of those that are gone": 0}));
}

#[test]
fn an_answer_of_a_store_that_comes_too_late_is_not_taken_for_the_next_one() {
    let test = "an_answer_of_a_store_that_comes_too_late_is_not_taken_for_the_next_one";
    let Some(found) = found(test, "store_answers_late") else { return };
    let late = "the store at 127.0.0.1 does not answer: timed out";
    assert_eq!(found[0], "invalid literal for int() with base 10: 'nothing'");
    assert_eq!([&found[1], &found[2]], [late, &format!("{late}; nothing more is asked of it")], "{found:#}");
}

#[test]
fn a_join_that_is_left_as_it_connects_goes_no_further() {
    let test = "a_join_that_is_left_as_it_connects_goes_no_further";
    let Some(found) = found(test, "join_is_left_as_it_connects") else { return };
    assert_eq!(found, json!({"closed": true, "met": 0}));
}

#[test]
fn groups_of_a_failed_join_are_counted_and_ended_off_main_thread() {
    let test = "groups_of_a_failed_join_are_counted_and_ended_off_main_thread";
    let Some(found) = found(test, "joins_that_come_to_nothing") else { return };
    let one = |raised: &str| json!({"raised": raised, "on main": false, "counted": 1, "gone": true});
    assert_eq!(found, json!({"cancelled": one("Cancelled"), "fails": one("Refused")}));
}

#[test]
fn an_operation_that_is_looked_at_again_and_again_is_followed_once() {
    let test = "an_operation_that_is_looked_at_again_and_again_is_followed_once";
    let Some(found) = found(test, "future_of_a_work") else { return };
    assert_eq!(found, json!({"same": true, "followed": 1}));
}

#[test]
fn file_locks_of_the_program_survive_a_scan_of_sockets() {
    let test = "file_locks_of_the_program_survive_a_scan_of_sockets";
    let Some(found) = found(test, "locks_of_the_programs_own") else { return };
    let expected = json!({"at first": true, "listens": true, "listening": true, "shut": 0, "afterwards": true});
    assert_eq!(found, expected);
}

#[test]
fn operations_of_other_threads_after_an_abort_complete_or_raise() {
    let test = "operations_of_other_threads_after_an_abort_complete_or_raise";
    let Some(found) = found(test, "threads_behind_a_with") else { return };
    assert_eq!([&found["done for main"], &found["done for other"]], [0, 1], "{found:#}");
    assert_eq!(found["other"], "taskd.torch.process_group.abortable", "it is waited for: {found:#}");
    assert_eq!(found["other, given up"], "a collective operation of step 3 was given up", "{found:#}");
    assert_eq!(found["wait"], "a collective operation of step ? was given up", "{found:#}");
}

#[test]
fn a_module_that_is_used_in_every_step_is_looked_through_once() {
    let test = "a_module_that_is_used_in_every_step_is_looked_through_once";
    let Some(found) = found(test, "looked_through_once") else { return };
    assert_eq!(found, json!({"always": true, "asked": 1, "late": [false, true], "found": 11}));
}

#[test]
fn finished_loop_releases_its_loader_and_workers() {
    let test = "finished_loop_releases_its_loader_and_workers";
    let Some(found) = found(test, "loaders_of_loops_that_are_over") else { return };
    let opening = json!([{"0": {"rounds": 2}}, {"0": {"rounds": 5}}]);
    assert_eq!(found["opening"], opening, "as a replacement has it to be set: {found:#}");
    assert_eq!((&found["kept"], &found["gone"], &found["left"]), (&Value::Null, &json!(true), &json!([0, 0])));
}

#[test]
fn tensors_are_handed_over_as_bytes_and_come_out_as_they_went_in() {
    let test = "tensors_are_handed_over_as_bytes_and_come_out_as_they_went_in";
    let Some(found) = found(test, "tensors") else { return };
    assert_eq!(found, json!({"differ": [], "pickled": 0, "taken": []}));
}
