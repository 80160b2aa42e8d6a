//! What a rank is handed: batches of a step that is done again, and the state and the place in the data of another
//! rank.
//!
//! Each but one is one process, and what is around a piece is a double (`handed.py`).

use serde_json::{Value, json};

use super::{found_by, is_exact};

const CHANGED: &str = "a batch was changed in place, so its step cannot be done again; from now on batches are copied";
const ADDED: &str = "optimizer has groups of [2, 2] parameters on rank 0 and of [2] here: one that was added in the step loop has no \
                     place; restart all ranks";
fn found(test: &str, scenario: &str) -> Option<Value> {
    found_by("handed.py", test, scenario)
}

/// Why an optimizer's state is not copied that has such keys.
fn strange(kind: &str) -> String {
    let why = "which only this process has: it is neither copied nor put back";
    format!("optimizer keeps a state by a key that is a {kind}, {why}")
}

/// All of these are so, and there are as many.
fn are_all(found: &Value, count: usize) {
    let found = found.as_object().unwrap();
    assert!(found.len() == count && found.values().all(|one| one == true), "{found:#?}");
}

#[test]
fn batches_changed_by_the_program_are_restored_for_a_repeat() {
    let test = "batches_changed_by_the_program_are_restored_for_a_repeat";
    let Some(found) = found(test, "changed_batches") else { return };
    are_all(&found, 14);
}

#[test]
fn step_with_unrestorable_batches_is_refused() {
    let test = "step_with_unrestorable_batches_is_refused";
    let Some(found) = found(test, "batches_that_are_not_there_any_more") else { return };
    let lock = "it cannot be determined whether the program changes its batches, which cannot be pickled, so no step is done again: TypeError: \
                cannot pickle '_thread.lock' object";
    let large =
        "a batch has more than 16 MiB beside its tensors, which is not copied, so its step cannot be done again";
    let expected = json!({
        "an encoding in place": CHANGED,
        "a slot": CHANGED,
        "nothing of a slot": null,
        "a lock": lock,
        "a large array": large,
        "early": [],
        "logged": [lock, large],
    });
    assert_eq!(found, expected);
}

#[test]
fn unchanged_batches_are_returned_without_a_copy() {
    let test = "unchanged_batches_are_returned_without_a_copy";
    let Some(mut found) = found(test, "batches_as_they_are") else { return };
    let held = "a batch was changed where its loader holds it, so its step cannot be done again";
    assert_eq!(found["one buffer"].take(), json!([[0.0, 1.0, CHANGED], [2.0, 3.0, held]]));
    found.as_object_mut().unwrap().remove("one buffer");
    are_all(&found, 6);
}

#[test]
fn replacement_gets_original_batches_after_a_warm_up_changed_them() {
    let test = "replacement_gets_original_batches_after_a_warm_up_changed_them";
    let Some(found) = found(test, "warm_batches") else { return };
    let batches = |count: usize| (0..count).map(|at| vec![at as f64; 2]).collect::<Vec<_>>();
    assert_eq!(found, json!({"warm": batches(2), "then": batches(4)}));
}

#[test]
fn replacement_gets_all_parameters_and_state_of_its_optimizer() {
    let Some(found) = found("replacement_gets_all_parameters_and_state_of_its_optimizer", "replacements") else {
        return;
    };
    let (whole, refused) =
        (json!({"copied": true, "checksums": true, "later": true}), json!({"refused": ADDED, "untouched": true}));
    let expected = json!({
        "plain": whole,
        "unnamed model": whole,
        "criterion": whole,
        "state of no parameter": whole,
        "state of a module": {"refused": strange("Linear"), "untouched": true},
        "state by parameters": {"refused": strange("Parameter"), "untouched": true},
        "thawed": whole,
        "thawed by the step's number": whole,
        "rate that became a tensor": whole,
        "added group": refused,
        "added group with momentum": refused,
    });
    assert_eq!(found, expected);
}

#[test]
fn a_parameter_that_is_in_no_module_is_a_part_of_the_checksum() {
    let Some(found) = found("a_parameter_that_is_in_no_module_is_a_part_of_the_checksum", "checksums_differ") else {
        return;
    };
    assert_eq!(found, json!({"differ": true}));
}

#[test]
fn an_optimizers_state_that_is_no_parameters_is_undone_with_the_rest() {
    let Some(found) = found("an_optimizers_state_that_is_no_parameters_is_undone_with_the_rest", "undone") else {
        return;
    };
    assert_eq!(found, json!({"undone": true, "same": true, "times": 1}));
}

#[test]
fn replacement_has_the_epoch_of_a_sampler_deep_inside_of_a_loader() {
    let test = "replacement_has_the_epoch_of_a_sampler_deep_inside_of_a_loader";
    let Some(found) = found(test, "epochs") else { return };
    let kinds = found.as_object().unwrap();
    let is_so = |one: &Value| *one == json!({"same": true, "whole epochs": true, "orders": 3});
    assert!(kinds.len() == 6 && kinds.values().all(is_so), "{found:#}");
}

#[test]
fn the_epoch_that_a_step_has_set_is_put_back() {
    let Some(found) = found("the_epoch_that_a_step_has_set_is_put_back", "epoch_is_put_back") else { return };
    assert_eq!(found, json!({"epoch": 0}));
}

#[test]
fn a_program_whose_state_cannot_be_pickled_trains_on_without_an_undo() {
    let test = "a_program_whose_state_cannot_be_pickled_trains_on_without_an_undo";
    let Some(found) = found(test, "no_undo") else { return };
    let so = "so what an optimizer's step has changed is not taken back: if an operation in it fails, all start again";
    let lost = "): where a rank is lost all start again";
    for (name, of, what) in [
        ("scheduler", "scheduler", "builtins.function"),
        ("group", "optimizer", "builtins.function"),
        ("object", "locked", "_thread.lock"),
        ("time", "clock", "NotEncodable: a datetime.datetime"),
    ] {
        let given = &found[name]["given"];
        let begins = format!("{of} cannot be given to a rank that takes the place of a lost one (");
        let is_line = |one: &str| one.starts_with(&begins) && one.contains(what) && one.ends_with(lost);
        assert!(given.as_array().unwrap().len() == 1 && is_line(given[0].as_str().unwrap()), "{name}: {given:#}");
        let (of, logged) = (&found[name], found[name]["logged"].as_array().unwrap());
        let is_line = |one: &str| one.starts_with("this rank's state cannot be copied (") && one.ends_with(so);
        assert!(logged.len() == 1 && is_line(logged[0].as_str().unwrap()), "{name}: {of:#}");
        assert_eq!((&of["completed"], &of["undo"]), (&json!([true, true, true]), &json!(false)), "{name}");
    }
}

#[test]
fn program_with_manual_averaging_and_killed_ranks_is_bit_exact() {
    let test = "program_with_manual_averaging_and_killed_ranks_is_bit_exact";
    let Some(found) = found(test, "killed") else { return };
    assert!(is_exact(&found), "{found:#}");
}

#[test]
fn a_class_beside_torchs_makes_its_objects_itself() {
    let Some(found) = found("a_class_beside_torchs_makes_its_objects_itself", "made_by_a_mixin") else { return };
    assert_eq!(found, json!({"made": 1, "arguments": [1, ["lr"]], "noted": true}));
}
