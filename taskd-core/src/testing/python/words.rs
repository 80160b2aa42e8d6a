//! For tests that compare a table of Python's with the one of Rust's that must be equal to it.

use std::collections::BTreeSet;
use std::process::Command;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{finished, system};
use crate::launch::python::{PythonFile, write_helper};

/// What a Python program prints that has the helper's files, and these, on its path: a JSON value. `json` is imported.
///
/// # Panics
/// If it fails, or prints anything else.
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

/// The names of an enum's variants, as serde writes them.
///
/// # Panics
/// If the type is no enum.
#[must_use]
pub fn variants<T: DeserializeOwned>() -> BTreeSet<String> {
    let told = [json!("?"), json!({"?": null})].map(|value| serde_json::from_value::<T>(value).err());
    let expected = told.into_iter().flatten().map(|error| error.to_string());
    let expected = expected.filter(|told| told.contains("expected")).find(|told| told.contains("unknown variant"));
    let expected = expected.expect("an enum that says which variants it has");
    let (_, names) = expected.split_once("expected").unwrap();
    names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The texts of a JSON list.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn texts(list: &Value) -> BTreeSet<String> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}
