//! What is noted when a step begins and put back when it is given up. The programs are those of `noted.py`, each in one
//! process, with stand-ins for the link and for collectives that have lost their peer.

use serde_json::{Value, json};

use super::found_by;

fn found(test: &str, scenario: &str) -> Option<Value> {
    found_by("noted.py", test, scenario)
}

/// These programs have all bits of the undisturbed run, though steps were done again, and nothing was refused.
fn are_exact(found: &Value, names: &[&str]) {
    for name in names {
        let one = &found[name];
        assert!(one["failed"].as_u64() > Some(0), "no step of {name} was given up: {found:#}");
        assert_eq!(
            [&one["equal"], &one["refused"], &one["cannot"]],
            [&json!(true), &Value::Null, &Value::Null],
            "{name}: {one:#}"
        );
    }
}

#[test]
fn buffers_that_change_and_have_the_version_that_they_had_are_put_back() {
    let test = "buffers_that_change_and_have_the_version_that_they_had_are_put_back";
    let Some(found) = found(test, "unseen") else { return };
    are_exact(&found, &["version", "data", "numpy", "twice", "quantization", "large", "collective"]);
    assert_eq!(found["known"], json!(["model/mean"]), "what is no number is equal to itself");
}

#[test]
fn buffers_in_whose_place_a_program_puts_others_are_put_back() {
    let Some(found) = found("buffers_in_whose_place_a_program_puts_others_are_put_back", "bound") else { return };
    are_exact(&found, &["bound", "grows", "new", "made", "cache, another step"]);
    assert_eq!(
        found["kept"],
        json!([true, true, true, true]),
        "what is kept for a successor, and held of a step done alone"
    );
    let why = "a step has made a buffer table of Grows that no state_dict has, in place of another or of none; restart all ranks";
    assert_eq!(found["cache"]["refused"], why, "{found:#}");
}

#[test]
fn gradients_of_a_step_before_are_put_back_and_reported() {
    let Some(found) = found("gradients_of_a_step_before_are_put_back_and_reported", "gradients") else { return };
    let carried = ["two steps", "two steps, again", "one seldom", "put in place"];
    let zeroed = ["penalty", "adversaries", "adversaries by modules", "one adversary seldom"];
    are_exact(&found, &[carried, zeroed].concat());
    let alone =
        "what gradients have from one step to the next no rank has of a step that it does by itself; restart all ranks";
    assert_eq!(found["alone"], json!({"over_two_steps": alone, "with_penalty": null}));
    for (names, carries) in [(carried, true), (zeroed, false)] {
        for name in names {
            let one = &found[name];
            assert_eq!(
                [&one["carries"], &one["before"]["carries"]],
                [&json!(carries), &json!(carries)],
                "{name}: {one:#}"
            );
        }
    }
}

#[test]
fn changes_before_optimizer_step_are_undone_or_prevent_a_repeat() {
    let test = "changes_before_optimizer_step_are_undone_or_prevent_a_repeat";
    let Some(found) = found(test, "ahead") else { return };
    let exact = [
        "rate",
        "rate by step",
        "rate in a tensor",
        "mode",
        "mode in the window",
        "flags",
        "moving",
        "momentum in the window",
    ];
    are_exact(&found, &exact);
    are_exact(&found, &["in the first step"]);
    let why = |name: &str| {
        json!(format!(
            "{name} was changed ahead of optimizer.step(), and no step puts parameters back; restart all ranks"
        ))
    };
    for name in ["momentum", "momentum, later", "momentum by data", "momentum by data, later"] {
        let one = &found[name];
        assert_eq!(
            [&one["refused"], &one["before"]["cannot"]],
            [&why("key/weight"), &why("key/weight")],
            "{name}: {one:#}"
        );
    }
    for (name, parameter) in [("by hand", "model/weight"), ("in the first step, which fails", "model/bias")] {
        assert_eq!(found[name]["refused"], why(parameter), "{name}: {found:#}");
        assert_eq!(found[name]["before"]["cannot"], Value::Null, "{name}: {found:#}");
    }
}

#[test]
fn buffers_of_real_ranks_are_put_back_and_kept() {
    let Some(found) = found("buffers_of_real_ranks_are_put_back_and_kept", "with_ranks") else { return };
    assert_eq!(found, json!({"killed": true, "died": true, "again": true, "torn": true}));
}

#[test]
fn buffers_changed_in_place_after_the_last_pass_are_detected() {
    let test = "buffers_changed_in_place_after_the_last_pass_are_detected";
    let Some(found) = found(test, "late") else { return };
    let behind = ["model/bound", "model/large", "model/small"];
    assert_eq!(
        found,
        json!({"behind": behind, "forward": ["model/large"]}),
        "a change of a large one cannot be detected"
    );
}

#[test]
fn program_with_unusual_buffers_trains_as_without_taskd() {
    let test = "program_with_unusual_buffers_trains_as_without_taskd";
    let Some(found) = found(test, "unusual") else { return };
    for (kind, what) in [
        ("plain", None),
        ("conjugated", Some("model/1.one (a view that is conjugated or negated when it is read)")),
        ("coordinates", Some("model/1.one (torch.sparse_coo)")),
        ("rows", Some("model/1.one (torch.sparse_csr)")),
        ("nested", Some("model/1.one (nested)")),
        ("inference", Some("model/1.one (made in inference mode)")),
        ("lazy", Some("model/1.running_mean (not initialized)")),
    ] {
        let cannot = what.map(|what| format!("no step puts back the buffer {what}: restart all ranks"));
        assert_eq!(found[kind], json!({"equal": true, "cannot": cannot}), "{kind}");
    }
}
