//! What goes wrong in a rank's own part of a recovery, without a framework. The cases are those of `mishaps.py`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use taskd_core::launch::python::write_helper;
use taskd_core::testing::python::{finished, system};

/// What was seen in a case, and what was printed on stderr.
fn seen(case: &str) -> (Value, String) {
    let helper = tempfile::tempdir().unwrap();
    write_helper(helper.path(), &[]).unwrap();
    let mut command = Command::new(Path::new(system()));
    command.arg(format!("{}/tests/python_helper/mishaps.py", env!("CARGO_MANIFEST_DIR"))).arg(case);
    let (stdout, stderr) = finished(command.env("PYTHONPATH", helper.path()).output().unwrap());
    (serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{stderr}")), stderr)
}

#[test]
fn a_step_whose_batch_was_changed_in_place_is_never_done_again() {
    let (found, _) = seen("changed_in_place");
    let why = "TooMany: a batch was changed in place, so its step cannot be done again; from now on batches are copied";
    assert_eq!(found["refused"], json!([why, why, why]), "not the second time either");
    assert_eq!(found["cursors"], json!([1, 2]), "nor is any loader taken back");
    assert_eq!(found["copied"], json!([3]), "in the next step it is what it was");
}

#[test]
fn an_abort_is_queued_once_if_the_release_of_waiters_fails() {
    let (found, stderr) = seen("release_fails");
    assert_eq!(found["raised"], json!([null, null]), "the connection stays");
    assert_eq!(found["queued"], json!([[1, 2, "abort"]]), "once, for the main thread");
    assert_eq!((&found["counted"], stderr.matches("Too many open files").count()), (&json!(1), 1), "{stderr}");
}

#[test]
fn a_process_of_whose_hooks_one_has_failed_takes_part_in_no_recovery() {
    let (found, stderr) = seen("hook_fails");
    let why = "this process cannot be recovered in place, restart all ranks: \
               the hook in theirs.optim failed (AttributeError: module 'theirs' has no attribute 'Optimizer')";
    assert_eq!(found["answers"], json!([{"id": 1, "error": why}, {"id": 2, "error": why}]), "{found:#}");
    assert_eq!((&found["can"], &found["queued"]), (&json!([]), &json!(0)));
    assert!(!found["could"].as_array().unwrap().is_empty(), "before the module was imported");
    assert_eq!(found["hooked"], json!(["theirs"]), "the other one is in place");
    assert_eq!(stderr, format!("taskd: {why}\n"));
}

#[test]
fn a_grandchild_of_a_fork_inherits_the_childs_open_files() {
    let (found, _) = seen("forks_again");
    assert_eq!(found["reused"], true, "its descriptors have the numbers of those that the link had");
    assert_eq!(found["found"], json!([null, null, null, null, null, null, null, null]));
    assert_eq!(found["still_here"], Value::Null, "those of the rank itself stay");
}

#[test]
fn a_loop_that_could_not_begin_is_over() {
    let (found, _) = seen("entry_fails");
    let under_way =
        "RuntimeError: taskd.steps: the loop before this one is still under way; there can be one at a time";
    assert_eq!(found["raised"], json!(["ZeroDivisionError: division by zero", null, under_way]));
    assert_eq!(found["left"], json!([true, "before-loop"]));
    assert_eq!(found["numbers"], json!([0, 1, 1]), "the second loop's, and those of the one that was under way");
}

#[test]
fn a_raising_directive_is_answered_with_its_source_location() {
    let (found, stderr) = seen("directives_fail");
    let place = format!("{}:{} in breaks", found["file"].as_str().unwrap(), found["line"]);
    let why = format!("join failed: KeyError: 'a name that has moved' ({place})");
    assert_eq!(found["answers"], json!([{"id": 7, "error": why}]), "{found:#}");
    assert_eq!((&found["done"], &found["needs"]), (&json!(false), &json!(false)));
    let raised = format!("line {}, in breaks", found["line"]);
    assert_eq!(
        (stderr.matches("Traceback (most recent call last)").count(), stderr.matches(&raised).count()),
        (2, 2),
        "{stderr}"
    );
    assert!(stderr.contains("taskd: join failed:\nTraceback"), "{stderr}");
}

#[test]
fn a_step_has_its_completed_flag_after_the_with_block() {
    let (found, _) = seen("behind_the_with");
    assert_eq!(found["seen"], json!([[true, false, true], [true, false, false]]), "ahead of it, inside, and behind it");
    let remark =
        "raised behind `with step:` of step 1, which was not completed; such code belongs under `if step.completed:`";
    assert_eq!(found["remarks"], json!(["", remark, ""]), "the last one when the loop is over");
    assert_eq!(
        (&found["last"][0], &found["left"]),
        (&json!(false), &json!(true)),
        "it stays so when the loop was left"
    );
    assert_eq!(
        found["reported"],
        json!([1, 8]),
        "a step behind whose body the loop is left counts, and one that was given up does not"
    );
    assert_eq!(found["plain"], json!([true, true]), "without a supervisor");
}

#[test]
fn phases_of_a_loop_are_those_of_its_table() {
    let (found, stderr) = seen("phases");
    let recovery = "READY TRAINING READY TRAINING READY WAITING ABORTING WAITING JOINING WAITING SYNCING WAITING \
                    RESUMING WAITING TRAINING READY FINISHED";
    assert_eq!(found["seen"], json!(recovery.split_whitespace().collect::<Vec<_>>()), "{found:#}{stderr}");
    assert_eq!(found["numbers"], json!([0, 1, 1]), "the step that has failed is repeated");
    let answered = json!(["id", "ok"]);
    assert_eq!(found["answers"], json!([answered, answered, answered, answered]));
    let why = "RuntimeError: the step loop cannot go from phase NEW to phase TRAINING; this is an error in taskd";
    assert_eq!(found["wrong"], json!([why, "NEW"]), "a transition that is not in the table");
    let table = found["table"].as_object().unwrap();
    let ends =
        |(from, then): (&String, &Value)| from == "FINISHED" || then.as_array().unwrap().contains(&json!("FINISHED"));
    assert!(table.iter().all(ends), "a program can leave its loop in every phase: {table:?}");
    let reached: BTreeSet<_> = table.values().flat_map(|then| then.as_array().unwrap()).map(Value::as_str).collect();
    assert_eq!(reached.len() + 1, table.len(), "all but NEW are reached: {table:?}");
    assert_eq!(found["drawn"], json!([]), "the diagram names all of them");
}

#[test]
fn a_checkpoint_in_a_directory_that_hosts_do_not_share_is_refused_with_the_reason() {
    let (found, _) = seen("not_shared");
    let why = "NoDump: DIR/step-7-world-1-1/part-1 of rank 1: No such file or directory; all hosts have to see the same \
               directory";
    assert_eq!(found, json!({"refused": why, "there": [false, false]}), "and no checkpoint comes from it");
}

#[test]
fn a_standby_that_cannot_become_its_rank_exits() {
    let (found, stderr) = seen("seating_fails");
    assert_eq!(found, json!({"found": null, "code": 70}));
    assert!(stderr.contains("taskd: this standby cannot become its rank: KeyError: 'NOT_SET'"), "{stderr}");
}

#[test]
fn supervisor_messages_are_accepted_or_refused_and_counted() {
    let (found, stderr) = seen("garbage");
    assert_eq!(found["wrong"], Value::Null, "a conversation that should have ended otherwise");
    assert_eq!(found["counts"], json!({"garbage": found["refused"], "failed": 0}), "{stderr}");
    let often = |what: &str| found[what].as_u64().unwrap() > 1000;
    assert!(["refused", "answers", "directives"].into_iter().all(often), "each is there: {found}");
    let expected = json!([
        "NoFrame: a frame of 1048577 bytes; at most 1048576 are allowed",
        "a welcome of version 2; this is version 1",
        "neither a welcome nor a directive",
        null,
    ]);
    assert_eq!(found["complaints"], expected);
    assert_eq!(stderr.lines().count(), 1, "only the first one is logged: {stderr}");
}
