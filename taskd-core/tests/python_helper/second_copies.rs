//! Second copies of in-memory checkpoints, in the memory of ranks on other hosts: when a host is lost with its memory, its
//! ranks find their copies there.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use taskd_core::launch::python::write_helper;
use taskd_core::testing::python::{finished, system};

#[test]
fn ranks_of_a_lost_host_find_their_copies_on_another_host() {
    let (helper, directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_helper(helper.path(), &[]).unwrap();
    let program = format!("{}/tests/python_helper/second_copies.py", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(Path::new(system()));
    command.arg(program).arg(directory.path()).env("PYTHONPATH", helper.path());
    let (stdout, stderr) = finished(command.output().unwrap());
    let lines = || stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let found = lines().find_map(|line| line.get("found").cloned()).unwrap_or_else(|| panic!("{stdout}{stderr}"));

    let lost = &found["lost_host"];
    assert_eq!(lost["whole"], json!([[true; 4]].repeat(3)), "{lost:#}");
    let held = [2, 3, 1, 0].map(|rank| json!({"alone": 0, "held": [[rank, 20], [rank, 30]]}));
    assert_eq!(lost["answers"], json!(held), "rank 3 has the copies of rank 0, rank 2 those of rank 1");
    assert_eq!((&lost["steps"], &lost["from"]), (&json!([20, 30]), &json!({"0": 3, "1": 2})), "{lost:#}");
    assert_eq!(lost["same"], json!([true, true]), "every byte of both ranks");

    let partner = &found["partner_lost"];
    assert_eq!(partner["whole"], json!([true, true, true]), "checkpoints go on without the partner");
    assert_eq!((&partner["alone"], &partner["held"]), (&json!([0, 1, 1]), &json!([[0, 20], [0, 30]])), "{partner:#}");
    assert_eq!(found["alone"], json!({"whole": [true, true, true, true], "alone": 2}));
    let changed = "the copy of step 20 has changed on its way: its check sum is another";
    assert_eq!(found["freed"], json!({"before": true, "kept": [2], "left": [], "after": true, "wrong": changed}));
    assert_eq!(found["loaded"], json!([10, 20, 20, 10]), "the copy with which all ranks have begun is kept");
    let cases = json!({
        "all have their own": [[10, {}]], "one is held": [], "each holds the other's": [[10, {"0": 1, "1": 0}]],
        "of a rank that is gone": [[10, {}]], "two hold it": [[10, {"1": 0}]],
    });
    assert_eq!(found["places"]["cases"], cases);
    let order = json!([[2, 3, 0], [2, 3, 0], [0, 2, 3], [2, 3, 0], [2, 3, 0]]);
    assert_eq!(found["places"]["order"], order, "the named rank, then the next ones");
}
