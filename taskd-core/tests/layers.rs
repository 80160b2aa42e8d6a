//! Modules form layers: no module uses one that uses it, directly or through others.
//!
//! The packages inside this folder are layers that the compiler enforces. Within each, the graph is read from the
//! sources: every `crate::MODULE` path in code, without tests and comments.
//! `cargo test -p taskd-core --test layers -- --nocapture` prints it.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Each package with its modules, from the lowest to the highest. A module may use those before it.
const PACKAGES: [(&str, &[&str]); 2] = [
    ("kernel", &["redact", "check", "job", "state", "trace", "detect", "recover", "kernel"]),
    (
        "runtime",
        &["private", "proc_fs", "trace", "secrets", "worker", "launch", "journal", "host_history", "runtime", "schema"],
    ),
];
/// The macro names the traits of all plugins.
const OUTSIDE: [&str; 2] = ["delegate", "lib"];

/// The code of a file, without comments and without its tests.
fn code(text: &str) -> String {
    let tests = text
        .find("\n#[cfg(test)]\nmod ")
        .filter(|at| text[*at..].lines().nth(2).is_some_and(|line| line.ends_with('{')));
    let lines = text[..tests.unwrap_or(text.len())].lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The modules that a text of code uses by paths from the crate's root.
fn uses(code: &str) -> BTreeSet<String> {
    let name =
        |rest: &str| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default().to_owned();
    let mut found: BTreeSet<String> = code.split("crate::").skip(1).map(name).collect();
    for group in code.split("use crate::{").skip(1) {
        found.extend(group.split("};").next().unwrap_or_default().split(',').map(|one| name(one.trim_start())));
    }
    found
}

fn collect(path: &Path, module: &str, graph: &mut BTreeMap<String, BTreeSet<String>>) {
    if path.is_dir() {
        return fs::read_dir(path).unwrap().flatten().for_each(|entry| collect(&entry.path(), module, graph));
    }
    let is_test = path.ends_with("tests.rs") || path.components().any(|part| part.as_os_str() == "tests");
    if path.extension().is_some_and(|end| end == "rs")
        && !is_test
        && !path.ends_with("properties.rs")
        && !path.ends_with("fixture.rs")
    {
        graph.entry(module.to_owned()).or_default().extend(uses(&code(&fs::read_to_string(path).unwrap())));
    }
}

fn graph(package: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut graph = BTreeMap::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(package).join("src")).unwrap().flatten() {
        let module = entry.file_name().into_string().unwrap().trim_end_matches(".rs").to_owned();
        collect(&entry.path(), &module, &mut graph);
    }
    let modules: BTreeSet<String> = graph.keys().filter(|name| !OUTSIDE.contains(&name.as_str())).cloned().collect();
    graph.retain(|module, _| modules.contains(module));
    for (module, used) in &mut graph {
        used.retain(|other| other != module && modules.contains(other));
    }
    graph
}

#[test]
fn every_module_uses_only_modules_of_lower_layers() {
    for (package, layers) in PACKAGES {
        let graph = graph(package);
        let unknown: Vec<&String> = graph.keys().filter(|module| !layers.contains(&module.as_str())).collect();
        assert!(unknown.is_empty(), "{package}: modules without a layer: {unknown:?}");
        for (module, used) in &graph {
            println!("{package}: {module} -> {}", used.iter().map(String::as_str).collect::<Vec<_>>().join(", "));
            let own = layers.iter().position(|layer| layer == module);
            let upwards: Vec<&String> =
                used.iter().filter(|other| layers.iter().position(|layer| layer == other) >= own).collect();
            assert!(upwards.is_empty(), "{package}: {module} uses higher layers: {upwards:?}");
        }
    }
}

#[test]
fn a_use_of_a_higher_layer_is_found_in_each_of_its_forms() {
    let text = "//! crate::kernel\nuse crate::{job::Name, runtime::Runtime};\nfn f() { crate::journal::open() }\n#[cfg(test)]\nmod tests {\n    use crate::sim::run;\n}\n";
    let found = uses(&code(text));
    let expected = ["job", "journal", "runtime"].map(str::to_owned);
    assert!(expected.iter().all(|module| found.contains(module)), "{found:?}");
    assert!(!found.contains("kernel") && !found.contains("sim"), "{found:?}");
}
