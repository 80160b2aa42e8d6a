//! What ranks hand to each other comes from ranks of the job, and nothing else is read, run or served (`sealed.py`).

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use taskd_core::launch::python::write_helper;
use taskd_core::testing::OtherHost;
use taskd_core::testing::python::{finished, system};

/// What a scenario of that program found.
fn found(scenario: &str) -> Value {
    found_with(scenario, &[])
}

fn found_with(scenario: &str, arguments: &[String]) -> Value {
    let helper = tempfile::tempdir().unwrap();
    write_helper(helper.path(), &[]).unwrap();
    let program = format!("{}/tests/python_helper/sealed.py", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(Path::new(system()));
    let (stdout, stderr) =
        finished(command.args([&program, scenario]).args(arguments).env("PYTHONPATH", helper.path()).output().unwrap());
    serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{stderr}"))
}

#[test]
fn values_round_trip_and_foreign_bytes_are_not_decoded() {
    let refused = [
        "a builtins.object",
        "a __main__.Evil",
        "a builtins.function",
        "a builtins.type",
        "a defaultdict of <built-in method fromkeys of type object",
        "values more than 50 deep in each other",
    ];
    assert_eq!(found("codec"), json!({"same": true, "refused": refused, "all": true, "malformed": true}));
}

#[test]
fn a_store_value_not_written_by_a_rank_of_the_job_is_refused() {
    let without = "this process has no secret of its job (TASKD_SECRET), by which ranks of one job know each other";
    assert_eq!(found("store"), json!({"read": "value", "there": true, "refused": true, "without": [4, without]}));
}

#[test]
fn unauthenticated_connections_take_no_thread_and_few_descriptors() {
    let found = found("connections");
    assert_eq!((&found["answers"], &found["threads"]), (&json!(["ping", "ping"]), &json!(1)), "{found:#}");
    assert_eq!(
        (&found["few"], &found["over"], &found["ends"]),
        (&json!(true), &json!(true), &json!(true)),
        "{found:#}"
    );
    let message = "a connection was closed that has not shown the job's secret within 2 s, or no right one";
    assert_eq!(found["logged"], json!([message]), "once");
}

#[test]
fn a_peer_without_the_job_secret_is_neither_served_nor_believed() {
    let not_taken = "what listens at 127.0.0.1:PORT does not take this process for one of its job";
    let no_rank = "what listens at 127.0.0.1:PORT is no rank of this job";
    let outcomes = json!({
        "another job's": not_taken, "for another purpose": not_taken, "a liar": no_rank, "a peer that sends it back": no_rank,
        "a relay to another rank": not_taken,
    });
    assert_eq!(found("strangers"), outcomes);
}

#[test]
fn a_ranks_memory_is_given_to_ranks_of_its_job_alone_at_its_own_address() {
    let stranger = "what listens at 127.0.0.1:PORT does not take this process for one of its job";
    let expected = json!({"read": 16, "same": true, "outside": true, "stranger": stranger, "at": "127.0.0.1"});
    assert_eq!(found("memory"), expected);
}

/// What is left is no matter of this listener: a process of another host can hold 64 connections of a rank for five
/// seconds each (SECURITY.md, *Listeners*).
#[test]
fn a_host_without_the_secret_reaches_no_job_and_no_rank_memory() {
    let name = "another_host_that_does_not_know_the_secret_reaches_no_job_of_one_host";
    let Some(other) = OtherHost::join(name) else { return };
    let command = other.command("env");
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(|word| word.to_str().unwrap().to_owned()).collect();
    let found = found_with("other_host", &[&[other.here().to_string()], &words[..]].concat());
    let received = json!({"dialled": "what listens at HERE:PORT does not take this process for one of its job", "at most a challenge": true});
    let expected = json!({
        "refused": ["ConnectionRefusedError", true], "at": true, "intruder": received, "few": true, "a rank is served": true,
    });
    assert_eq!(found, expected);
}
