//! Test support for comparing a table in Python with the table in Rust that must equal it.

use std::collections::BTreeSet;
use std::process::Command;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{finished, system};
use crate::launch::python::{PythonFile, write_helper};

/// Runs a Python program and returns the JSON value that it prints. The program can import the helper, `json`, and the
/// modules in `files`.
///
/// # Panics
/// Panics if the program fails, or prints anything else.
#[must_use]
pub fn evaluated(files: &[PythonFile], program: &str) -> Value {
    let helper = tempfile::tempdir().unwrap();
    write_helper(helper.path(), files).unwrap();
    let mut command = Command::new(system());
    command.args(["-B", "-c", &format!("import json\n{program}")]);
    command.env("PYTHONPATH", helper.path()).env("TASKD_HOOKS", "0");
    let (stdout, stderr) = finished(command.output().unwrap());
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"))
}

/// Returns the names of an enum's variants, as serde writes them.
///
/// # Panics
/// Panics if the type is not an enum.
#[must_use]
pub fn variants<T: DeserializeOwned>() -> BTreeSet<String> {
    let errors = [json!("?"), json!({"?": null})].map(|value| serde_json::from_value::<T>(value).err());
    let expected = errors.into_iter().flatten().map(|error| error.to_string());
    let expected =
        expected.filter(|errors| errors.contains("expected")).find(|errors| errors.contains("unknown variant"));
    let expected = expected.expect("an enum that names which variants it has");
    let (_, names) = expected.split_once("expected").unwrap();
    names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the texts of a JSON list.
///
/// # Panics
/// Panics if the value is not a list.
#[must_use]
pub fn texts(list: &Value) -> BTreeSet<String> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}
