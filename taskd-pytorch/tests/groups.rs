//! Process groups under the hook, in real torch processes: everything is seen, and no program notices.
//!
//! The programs are those of `groups/`. Each of them runs its ranks with the hook and without, and writes what it found
//! into a file. The hook records into a stand-in for libtaskd there.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod support;

use std::fs;
use std::process::Command;
use std::sync::Mutex;

use serde_json::Value;
use taskd_core::launch::python::write_helper;
use taskd_pytorch::PYTHON_FILES;

/// They need both cores of a small machine for themselves.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Most functions that the hook may call for a collective while it records, and while nothing is recorded.
const HOOK_CALLS_MAX: u64 = 50;
const HOOK_CALLS_OFF_MAX: u64 = 18;

/// What a program of `groups/` found; `None` where tests that need torch are skipped.
fn findings(test: &str, program: &str) -> Option<Value> {
    let python = support::torch_python(test)?;
    let _alone = ONE_AT_A_TIME.lock();
    let found = tempfile::NamedTempFile::new().unwrap();
    let helper = tempfile::tempdir().unwrap();
    write_helper(helper.path(), PYTHON_FILES).unwrap();
    let here = env!("CARGO_MANIFEST_DIR");
    let mut command = Command::new(python);
    command.arg(format!("{here}/tests/groups/{program}")).arg(found.path());
    command.env("PYTHONPATH", helper.path()).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("GLOO_SOCKET_IFNAME", "lo");
    let out = command.output().unwrap();
    let text = fs::read(found.path()).unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && !text.is_empty(), "{program}: {}\n{stderr}", out.status);
    let found: Value = serde_json::from_slice(&text).unwrap();
    assert!(!ends_in_null(&found), "{program}: a rank failed\n{stderr}");
    Some(found)
}

/// Whether it is a list of what each rank found in which a rank is missing.
fn ends_in_null(found: &Value) -> bool {
    match found {
        Value::Object(parts) => parts.values().any(ends_in_null),
        Value::Array(ranks) => ranks.first().is_some_and(Value::is_null),
        _ => false,
    }
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

fn each(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().unwrap().iter()
}

#[test]
fn every_operation_of_ddp_fsdp_and_fsdp2_is_recorded() {
    let Some(found) = findings("every_operation_of_ddp_fsdp_and_fsdp2_is_recorded", "counts.py") else { return };
    for (world, rank) in each(&found).flat_map(|(world, ranks)| list(ranks).iter().map(move |rank| (world, rank))) {
        assert_eq!(rank["exceptions"], serde_json::json!({}));
        for (wrapper, counted) in each(&rank["counted"]) {
            let what = format!("{wrapper} on {world} ranks: {counted:#}");
            let recorded = counted["recorded"].as_u64().unwrap();
            assert!(recorded > 4, "{what}");
            for independent in ["profiler", "sequence", "of its group"] {
                assert_eq!(counted[independent], recorded, "{independent}, {what}");
            }
            let numbers: Vec<u64> = list(&counted["numbers"]).iter().map(|number| number.as_u64().unwrap()).collect();
            assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{what}");
            assert_eq!(counted["unended"], 0, "{what}");
        }
    }
}

/// A newer torch brings new ones: each has to be hooked, or written down as no operation between ranks.
#[test]
fn collectives_of_the_installed_torch_are_all_recorded() {
    let test = "collectives_of_the_installed_torch_are_all_recorded";
    let Some(found) = findings(test, "known.py") else { return };
    for rank in list(&found) {
        assert_eq!(rank["unknown methods"], serde_json::json!([]), "hook them in _group_calls.py");
        assert_eq!(rank["unknown functions"], serde_json::json!([]), "call them in known.py");
        assert_eq!(rank["exceptions"], serde_json::json!({}));
        for (function, recorded) in each(&rank["recorded"]) {
            assert!(!list(&recorded["operations"]).is_empty(), "{function}: {recorded}");
        }
    }
}

#[test]
fn a_program_gets_the_same_answers() {
    let Some(found) = findings("a_program_gets_the_same_answers", "answers.py") else { return };
    for hook in ["quiet", "on"] {
        for (with, without) in list(&found[hook]).iter().zip(list(&found["off"])) {
            for (of, answers) in each(&without["answers"]) {
                assert_eq!(&with["answers"][of], answers, "{of}, with the hook {hook}");
            }
            assert_eq!(with["exceptions"], serde_json::json!({}));
            assert_eq!(with["unended"], serde_json::json!([]));
            assert_eq!(with["records"].as_u64().unwrap() > 100, hook == "on");
        }
    }
}

#[test]
fn training_gives_the_same_bits() {
    let Some(found) = findings("training_gives_the_same_bits", "bits.py") else { return };
    assert_eq!(found["on"], found["off"]);
}

#[test]
fn errors_are_what_they_were() {
    let Some(found) = findings("errors_are_what_they_were", "errors.py") else { return };
    assert_eq!(found["on"], found["off"]);
    assert!(found["on"].to_string().contains("peer gone"), "{found:#}");
}

#[test]
fn ranges_end_when_works_complete_and_no_process_is_held_up() {
    let test = "ranges_end_when_works_complete_and_no_process_is_held_up";
    let Some(found) = findings(test, "ends.py") else { return };
    let (first, second) = (&found["ends"][0], &found["ends"][1]);
    let nanos = |span: &Value, at: usize| span[at].as_u64().unwrap();
    for what in ["unwaited", "waited", "between two", "in backward"] {
        let peer_came = nanos(&second[what]["span"], 0);
        assert!(nanos(&first[what]["span"], 1) >= peer_came, "{what}: {found:#}");
    }
    assert_eq!([&first["unwaited"]["ends"], &first["in backward"]["ends"]], [true, true]);
    assert_eq!(first["unwaited"]["early"], false);
    assert!(nanos(&first["waited"]["span"], 1) <= nanos(&first["waited"]["around"], 1), "{first:#}");
    assert_eq!([&first["overtaken"]["ended"], &first["overtaken"]["open still"]], [true, true]);
    let received = &first["between two"];
    assert!(received["before"].is_null(), "{received}");
    assert_eq!([&received["peer"], &received["number"]], [1, 0]);
    assert_eq!(first["dropped"]["ends"], true);
    let left_alone = serde_json::json!({
        "class": "Foreign", "sum": 2.0, "called": true, "reported": "a process group of class Foreign is not recorded"
    });
    assert_eq!(first["foreign"], left_alone);
    let failed =
        serde_json::json!({ "sum": 4.0, "recorded": 0, "reported": "the hook failed: KeyError: 'of the hook'" });
    assert_eq!(first["failing"], failed);
    for (program, codes) in each(&found["exits"]) {
        assert_eq!(codes["on"], serde_json::json!([7, 7]), "{program}: {codes}");
        assert_eq!(codes["on"], codes["off"], "{program}");
    }
}

/// A deadlock, or an abort, of torch's own: its thread wants the interpreter's lock from a process that is ending.
#[test]
fn a_process_ends_though_a_thread_of_gloos_is_late() {
    let Some(found) = findings("a_process_ends_though_a_thread_of_gloos_is_late", "late.py") else { return };
    for (program, code) in each(&found) {
        assert_eq!(code, 7, "{program}: {found}");
    }
}

/// A client of the store without the secret can copy what it cannot sign.
#[test]
fn gloo_address_of_another_group_or_generation_is_refused() {
    let test = "gloo_address_of_another_group_or_generation_is_refused";
    let Some(found) = findings(test, "replayed.py") else { return };
    assert_eq!(found["own"], serde_json::json!([true, [["10.0.0.7", 4001]]]));
    for copied in ["another group", "none of another group", "another generation"] {
        assert_eq!(found[copied], "refused", "{copied}: {found}");
    }
}

#[test]
fn compiled_code_is_the_same_and_its_operations_are_recorded() {
    let test = "compiled_code_is_the_same_and_its_operations_are_recorded";
    let Some(found) = findings(test, "compiled.py") else { return };
    for (with, without) in list(&found["on"]).iter().zip(list(&found["off"])) {
        assert_eq!(with["answers"], without["answers"]);
        assert_eq!(with["recorded"], with["seen"]);
    }
}

/// Counted and not timed: a machine that is busy, or half as fast, fails no test. `bench_trace` has the microseconds.
#[test]
fn the_hook_calls_few_functions_for_a_collective() {
    let Some(found) = findings("the_hook_calls_few_functions_for_a_collective", "cost.py") else { return };
    println!("functions that the hook calls for a collective: {found}");
    for rank in list(&found) {
        let of_the_hook = |what: &str| rank[what].as_u64().unwrap();
        assert!(of_the_hook("on") <= HOOK_CALLS_MAX && of_the_hook("off") <= HOOK_CALLS_OFF_MAX, "{rank}");
    }
}
