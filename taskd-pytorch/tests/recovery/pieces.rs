//! Pieces of recovery inside of torch processes, each alone, where something does not go as it usually does.
//!
//! What is around a piece is a double that says so (`pieces.py`).

use serde_json::{Value, json};

use super::found_by;

fn found(test: &str, scenario: &str) -> Option<Value> {
    found_by("pieces.py", test, scenario)
}

#[test]
fn a_failure_that_cannot_be_told_leaves_no_pass_waiting() {
    let test = "a_failure_that_cannot_be_told_leaves_no_pass_waiting";
    let Some(found) = found(test, "completer_goes_on") else { return };
    for what in ["failed completes", "a later one completes", "tainted"] {
        assert_eq!(found[what], true, "{what}: {found:#}");
    }
    assert_eq!(found["told"], json!([["collective", "allreduce", "default", true, "[Errno 24] Too many open files"]]));
    let said = "what became of allreduce is not known: OSError: [Errno 24] Too many open files";
    assert_eq!(found["said"], json!([said]));
}
