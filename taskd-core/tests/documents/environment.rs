//! The table of environment variables in the guide names exactly those that the code does.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Parts of the repository that read or set variables.
const SOURCES: [&str; 6] = ["src", "python", "build", "tests", "examples", "include"];
const CRATES: [&str; 14] = [
    "taskd-core",
    "taskd-core/analysis",
    "taskd-core/kernel",
    "taskd-core/live",
    "taskd-core/runtime",
    "taskd-core/testing",
    "taskd-core/probe",
    "taskd-pytorch",
    "taskd-mindspore",
    "taskd-hw-ascend",
    "taskd-hw-cuda",
    "examples",
    "examples/report",
    "examples/soak",
];

/// Words of this form in a text; a prefix such as `TASKD_` alone is none.
fn variables(text: &str) -> BTreeSet<String> {
    let is_of_a_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let words = text.split(|c: char| !is_of_a_name(c));
    words
        .filter(|word| word.strip_prefix("TASKD_").is_some_and(|rest| !rest.is_empty() && !rest.ends_with('_')))
        .map(str::to_owned)
        .collect()
}

fn collect(path: &Path, found: &mut BTreeSet<String>) {
    if path.is_dir() && path.file_name().is_none_or(|name| name != "recorded" && name != "samples" && name != "target")
    {
        fs::read_dir(path).unwrap().flatten().for_each(|entry| collect(&entry.path(), found));
    } else if path.extension().is_some_and(|end| end == "rs" || end == "py" || end == "sh")
        && !path.ends_with("environment.rs")
    {
        found.extend(variables(&fs::read_to_string(path).unwrap_or_default()));
    }
}

#[test]
fn the_table_of_environment_variables_names_exactly_those_of_the_code() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let constants_of_c = variables(&fs::read_to_string(home.join("runtime/include/taskd.h")).unwrap());
    let mut named = BTreeSet::new();
    for part in CRATES.iter().flat_map(|name| SOURCES.map(|source| home.join("..").join(name).join(source))) {
        if part.exists() {
            collect(&part, &mut named);
        }
    }
    for script in fs::read_dir(home.join("../.ci")).unwrap().flatten() {
        named.extend(variables(&fs::read_to_string(script.path()).unwrap_or_default()));
    }
    // The C header names this one in a comment.
    let both = ["TASKD_LIB"];
    named.retain(|name| !constants_of_c.contains(name) || both.contains(&name.as_str()));
    let table = variables(&fs::read_to_string(home.join("src/guide/environment.md")).unwrap());
    let missing: Vec<&String> = named.difference(&table).collect();
    let unknown: Vec<&String> = table.difference(&named).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "not in the table: {missing:?}; in the table alone: {unknown:?}");
}
