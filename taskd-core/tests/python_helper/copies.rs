//! Copies in memory as Python ranks make them: whatever is killed, lags or is lost, one that was declared is there on
//! all.
//!
//! `TASKD_SOAK=1` runs a hundred times as many worlds. The supervisor in them is a model.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use taskd_core::launch::python::write_helper;
use taskd_core::testing::python::{finished, system};

#[test]
fn a_declared_copy_is_whole_on_all_ranks_after_kills_and_losses() {
    let soak = std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1");
    let (helper, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_helper(helper.path(), &[]).unwrap();
    let program = format!("{}/tests/python_helper/copies.py", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(Path::new(system()));
    command.arg(program).arg(memory.path().join("worlds")).arg(if soak { "5000" } else { "50" });
    let (stdout, stderr) = finished(command.env("PYTHONPATH", helper.path()).output().unwrap());
    let found: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{stderr}"));
    println!("in random worlds: {}", found["random"]);
    println!("gigabytes a second, median, least and most: {}", found["rate"]);
    for what in ["declared", "killed", "killed_copying", "lost", "dropped"] {
        assert!(found["random"][what].as_u64() > Some(5), "{what}: {found:#}");
    }
    assert_eq!(found["late"]["wait"], json!({"whole": true, "counted": [1, 0]}));
    assert_eq!(found["late"]["drop"], json!({"whole": false, "counted": [0, 1]}));
    assert!(found["damaged"].as_str().unwrap().contains("step 10 in this rank's memory is damaged"), "{found:#}");
    assert!(found["no_room"]["logged"].as_str().unwrap().contains("no copy"), "{found:#}");
    assert_eq!((&found["no_room"]["whole"], &found["no_room"]["dropped"]), (&json!(false), &json!(1)));
    assert_eq!(found["room_for_both"], json!([true, true]), "{found:#}");
    let loops = &found["loops"];
    assert_eq!((&loops["kept"], &loops["left"]), (&json!([true, false, false, true]), &json!(0)), "{found:#}");
    assert!(
        loops["logged"].as_str().unwrap().contains("step 20, and this one begins at 0: give taskd.steps the `start`")
    );
    let fails = &found["fails"];
    assert_eq!((&fails["whole"], &fails["dropped"]), (&json!([false, false]), &json!(2)), "{found:#}");
    assert!(fails["logged"][1].as_str().unwrap().contains("no copy of step 20 is made in memory: ZeroDivisionError"));
    assert_eq!(found["grows"], json!([[20, 100_000], [30, 5_000_000]]));
}
