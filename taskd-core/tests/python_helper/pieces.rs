//! Pieces of what lives in a rank, in real Python processes, where something does not go as it usually does.
//!
//! What is around a piece is a double (`pieces.py`).

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use taskd_core::launch::python::write_helper;
use taskd_core::testing::python::{finished, system};

/// What a scenario of that program found.
fn found(scenario: &str) -> Value {
    let (helper, directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_helper(helper.path(), &[]).unwrap();
    let program = format!("{}/tests/python_helper/pieces.py", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(Path::new(system()));
    command.arg(program).arg(directory.path()).arg(scenario);
    let (stdout, stderr) = finished(command.env("PYTHONPATH", helper.path()).output().unwrap());
    let found: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{stderr}"));
    found[scenario].clone()
}

#[test]
fn a_supervisor_that_does_not_read_costs_no_memory_without_bound() {
    let found = found("slow");
    assert!(found["dropped"].as_u64().is_some_and(|dropped| dropped > 100), "{found:#}");
    assert_eq!((&found["whole"], &found["goes on"]), (&json!(true), &json!(true)), "what is not dropped: {found:#}");
    let message = "a message to the supervisor is dropped: 256 messages wait for the supervisor, which does not read";
    assert_eq!(found["logged"], json!([message]));
}

#[test]
fn a_message_that_is_too_long_is_this_processs_own_mistake() {
    let found = found("long");
    let long = |bytes: u32| format!("a message of {bytes} bytes; at most 1048576 fit into a frame");
    let refused = json!({"reply": {"id": 7, "error": format!("the answer is too long: {}", long(1_048_603))}});
    assert_eq!(found["found"], json!([refused, {"reply": {"id": 8, "ok": {}}}]), "{found:#}");
    assert_eq!(found["logged"], json!([format!("a message to the supervisor is dropped: {}", long(1_048_587))]));
    assert_eq!(
        (&found["garbage"], &found["connected"]),
        (&json!(0), &json!(1)),
        "no other process is blamed: {found:#}"
    );
}

#[test]
fn a_directive_of_an_older_generation_has_nothing_done_twice() {
    let found = found("older");
    let given_up = json!({"id": 1, "ok": "given up"});
    let refused = json!({"id": 2, "error": "directive of generation 4, this process is in generation 5"});
    assert_eq!(found["answers"], json!([given_up, refused, given_up]), "{found:#}");
    assert_eq!(found["queued"], json!([3]), "the give-up was carried out before");
    assert_eq!((&found["known"], &found["answered"]), (&json!([4]), &json!([])), "of the next generation");
}

#[test]
fn oversized_buffers_are_skipped_and_other_state_is_stored() {
    let found = found("kept");
    let small = json!({"random": true, "buffers": true, "forward": true, "packed": 6, "logged": []});
    assert_eq!(found["small"], small, "three steps, with what each forward pass left: {found:#}");
    let message =
        "8388682 bytes of random numbers and buffers, and 4194304 fit: a successor of this rank takes a peer's buffers";
    let large = json!({"random": true, "buffers": false, "forward": false, "packed": 1, "logged": [message]});
    assert_eq!(found["large"], large, "{found:#}");
}

#[test]
fn state_that_peers_hold_for_a_rank_is_found_by_its_successor() {
    let found = found("held");
    let read = ["b'long ago'", "None", "b'start 4'", "b'forward 4'", "b'start 5'", "b'forward 5'"];
    assert_eq!(found["read"], json!(read), "its own, of when it was here, and what both hold: {found:#}");
    assert_eq!((&found["before"], &found["opened"]), (&json!("(2, None)"), &json!([5, 0])), "the newest is its window");
    assert_eq!(found["late"], json!(null), "it may have been here before, and have gone on elsewhere since: {found:#}");
    assert_eq!(found["of another"], json!([]));
    assert_eq!((&found["torn"], &found["has come"]), (&json!(null), &json!(2)));
    assert_eq!((&found["fit"], &found["refused"]), (&json!(128), &json!(true)), "there is a bound: {found:#}");
    assert_eq!(found["forgotten"], json!([[], null]), "nothing of an area's process before is its next one's");
}

#[test]
fn no_step_fails_because_nothing_can_be_kept_any_more() {
    let found = found("full");
    let message =
        "what only a rank has cannot be kept here any more, and a successor takes a peer's: [Errno 27] File too large";
    assert_eq!(found, json!({"fits": [true, true], "logged": [message], "read": null, "opened": null}));
}

#[test]
fn a_step_ahead_that_cannot_be_undone_is_refused_each_time() {
    let found = found("replayed-early");
    let why = "the average has changed";
    assert_eq!(found, json!({"refused": [why, why], "asked": ["note", "note"], "noted": 15}));
}

#[test]
fn a_server_of_copies_that_has_run_out_of_descriptors_goes_on() {
    let found = found("descriptors");
    let message = "no connection of another rank can be accepted, for now: [Errno 24] Too many open files";
    let closed = "a connection was closed that has not shown the job's secret within 5 s, or no right one";
    assert_eq!(found, json!({"copied": true, "error": null, "logged": [message, closed], "ends": true}));
}

#[test]
fn a_hello_asks_nothing_of_the_program_on_another_thread() {
    let found = found("hello");
    let at =
        |point: &str, bytes| json!({"now": point, "state_bytes": bytes, "unsupported_reason": null, "sharded": []});
    assert_eq!(found["at"], json!([at("in-loop", Some(64))]));
    assert_eq!((&found["hello"], &found["on main"]), (&json!(64), &json!(true)), "{found:#}");
    assert_eq!(found["fails"], at("parked", None), "nor is what it raises raised into it");
    let message = "the size of the state cannot be determined: KeyError: \"of the program's\"";
    assert_eq!(found["logged"], json!([message]));
}

#[test]
fn a_directive_that_comes_as_another_is_taken_is_not_overlooked() {
    assert_eq!(found("overlooked"), json!({"waits": 1, "attention": true}));
}

#[test]
fn a_copy_that_is_declared_as_its_loop_is_left_is_refused() {
    assert_eq!(found("left"), json!({"id": 1, "error": "this process keeps no copies in memory"}));
}

#[test]
fn a_failure_before_an_abort_is_not_sent_to_the_next_supervisor() {
    assert_eq!(found("stands"), json!([true, false]), "before the give-up, and after it");
}

#[test]
fn state_sent_by_a_peer_must_fit_its_slot_and_name_a_rank() {
    assert_eq!(found("heads"), json!([1, 0, 1, 0, 0]), "the longest, one byte more; the last rank, two beyond it");
}
