//! Rank tables of all forms: read and written without loss, refused with the path of what is wrong.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod bytes;
mod files;
mod mutations;
mod samples;
mod tables;

use serde_json::Value;
use taskd_hw_ascend::ranktable::RankTable;

/// A table of which it is known that it can be read.
fn read(text: &str) -> RankTable {
    RankTable::from_json(text).unwrap_or_else(|problems| panic!("{problems}\n{text}"))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// The problems of a table that cannot be used, one a line.
fn problems(value: &Value) -> Vec<String> {
    let problems = RankTable::from_json(&value.to_string()).expect_err("it is wrong");
    assert_eq!(problems.more, 0);
    problems.all.iter().map(ToString::to_string).collect()
}
