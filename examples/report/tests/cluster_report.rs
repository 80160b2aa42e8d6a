//! The program as a user runs it, over traces of each kind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns the program, which cargo builds beside this test.
fn program() -> Command {
    let test = std::env::current_exe().expect("this program has a path");
    let target = test.parent().and_then(Path::parent).expect("it is in target/debug/deps");
    Command::new(target.join("examples/cluster_report"))
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(dir: &Path, out: &Path, more: &[&str]) -> Output {
    program().arg(dir).arg("--out").arg(out).args(more).output().expect("it runs")
}

/// Copies the samples of one kind, without the files that make them.
fn samples(from: &str, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(repository().join(from)).expect("the samples exist") {
        let path = entry.expect("an entry").path();
        if path.is_file() && path.file_name().is_some_and(|name| name != "hta_tables.json") {
            fs::copy(&path, to.join(path.file_name().expect("it has a name"))).expect("a copy");
        }
    }
}

#[test]
fn dumps_of_a_hang_yield_a_page_that_begins_with_the_culprit() {
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("page.html");
    let done = run(&repository().join("taskd-pytorch/tests/flight_recorder/samples/size"), &page, &["--json"]);
    let text = String::from_utf8(done.stdout).expect("it is UTF-8");
    assert!(done.status.success() && text.starts_with("Rank 1 does not take part in allreduce"), "{text}");
    let figures: serde_json::Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    let verdict = &figures["analysis"]["verdict"];
    assert_eq!((verdict["is_healthy"].as_bool(), verdict["blamed"][0]["ranks"][0].as_u64()), (Some(false), Some(1)));
    let page = fs::read_to_string(page).expect("the page was written");
    assert!(page.contains("Rank 1 does not take part"), "the page has the verdict");
}

#[test]
fn profiles_of_two_runs_yield_pages_an_index_and_a_comparison() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["monday", "tuesday"] {
        samples("taskd-pytorch/tests/kineto/samples", &dir.path().join("runs").join(name));
    }
    let runs = dir.path().join("runs");
    let page = dir.path().join("page.html");
    let compared = run(&runs.join("monday"), &page, &["--compare", &runs.join("tuesday").to_string_lossy()]);
    let text = String::from_utf8(compared.stdout).expect("it is UTF-8");
    assert!(compared.status.success() && text.contains("\ncompared      "), "{text}");
    assert!(dir.path().join("page.comparison.html").is_file());
    let pages = dir.path().join("pages");
    let index = run(&runs, &pages, &["--index"]);
    assert!(index.status.success(), "{index:?}");
    let index = fs::read_to_string(pages.join("index.html")).expect("the index was written");
    assert!(index.contains("monday.html") && index.contains("tuesday.html"), "{index}");
}

#[test]
fn a_directory_without_traces_is_refused_with_what_it_needs() {
    let dir = tempfile::tempdir().expect("a directory");
    let done = run(dir.path(), &dir.path().join("page.html"), &[]);
    let text = String::from_utf8(done.stderr).expect("it is UTF-8");
    assert!(!done.status.success() && text.contains("has no traces of a known kind: it needs"), "{text}");
    let done = run(Path::new("/nowhere"), &dir.path().join("page.html"), &[]);
    let text = String::from_utf8(done.stderr).expect("it is UTF-8");
    assert!(!done.status.success() && text.contains("/nowhere cannot be read: No such file"), "{text}");
}
