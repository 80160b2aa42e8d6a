//! The program as a user runs it, over traces of each kind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::job::{Incarnation, Rank};
use taskd_core::trace::recorder::{Detail, Event, Kind, NameId};
use taskd_core::trace::store::{StoreConfig, TraceStore};
use taskd_core::trace::{NameTable, Origin, RecordBatch, TimedRecord};
use taskd_pytorch::kineto::generate::{self, Plan};

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

/// Returns the summary, and the figures of `--json`.
fn figures(done: &Output) -> (String, serde_json::Value) {
    let text = String::from_utf8(done.stdout.clone()).expect("it is UTF-8");
    assert!(done.status.success(), "{text}{}", String::from_utf8_lossy(&done.stderr));
    let figures = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    (text, figures)
}

#[test]
fn a_folder_per_rank_yields_one_run_with_its_kernels_by_both_rules() {
    let dir = tempfile::tempdir().expect("a directory");
    for rank in 0..2 {
        let folder = dir.path().join(format!("node-{rank}"));
        fs::create_dir(&folder).expect("a directory");
        let mut bytes = Vec::new();
        let plan = Plan { rank, world_size: 2, has_short_kernels: true, ..Plan::default() };
        generate::write(&plan, &mut bytes).expect("a trace");
        fs::write(folder.join("trace.json"), bytes).expect("a file");
    }
    let page = dir.path().join("page.html");
    let (text, figures) =
        figures(&run(dir.path(), &page, &["--json", "--hta", "--operators", "--reference", "--svg", "steps"]));
    let analysis = &figures["analysis"];
    assert_eq!(analysis["ranks"].as_array().map(Vec::len), Some(2), "{text}");
    let rules = analysis["kernels"]["rules"].as_array().expect("a list");
    let names: Vec<&str> = rules.iter().filter_map(|rules| rules["name"].as_str()).collect();
    assert_eq!(names, ["exact", "hta"]);
    let [exact, hta] = [0, 1].map(|at| {
        let of = |what: &str| rules[at]["devices"][0][what].as_f64().expect("a number");
        of("idle_us") / of("range_us")
    });
    let [all, counted] = [0, 1].map(|at| rules[at]["devices"][0]["kernels"].as_u64().expect("a number"));
    assert!(hta > exact && counted < all, "idle shares {exact} and {hta}, {all} and {counted} kernels");
    assert!(text.contains("\nHTA           Idle time of rank ") && text.contains("rounds starts up"), "{text}");
    for what in ["launches", "queues", "copies", "annotations"] {
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(what)).collect();
        assert!(lines.len() == 2 && lines[0].contains(" exact: ") && lines[1].contains(" hta: "), "{what}: {text}");
        let rows = rules.iter().map(|rules| rules["host"][what].as_array().map_or(0, Vec::len));
        assert!(rows.clone().all(|rows| rows >= 2), "{what}: {:?}", rows.collect::<Vec<_>>());
    }
    assert!(text.contains("\noperators     rank 1: aten::"), "{text}");
    assert_eq!(figures["operators"]["ranks"].as_array().map(Vec::len), Some(2), "{text}");
    assert!(text.contains(" launches, by HTA's rules "), "{text}");
    assert!(text.contains("\nslow node     by MindCluster's rule: {\"slownode_"), "{text}");
    assert!(text.contains("\nslow rank     by msprof-analyze's rule: "), "{text}");
    assert!(figures["reference"]["collectives"].as_u64() > Some(0), "{text}");
    let image = fs::read_to_string(dir.path().join("page.steps.svg")).expect("the image was written");
    assert!(image.starts_with("<svg "), "{image}");
    assert!(fs::read_to_string(page).expect("the page").contains("\"kernels\":{\"rules\":[{\"name\":\"exact\""));
}

#[test]
fn an_unknown_view_is_refused_with_the_known_ones() {
    let dir = tempfile::tempdir().expect("a directory");
    let done = run(dir.path(), &dir.path().join("page.html"), &["--svg", "cake"]);
    let text = String::from_utf8(done.stderr).expect("it is UTF-8");
    assert!(!done.status.success() && text.contains("the views are steps, times, timeline"), "{text}");
}

#[test]
fn dumps_in_a_directory_per_host_are_evaluated_together() {
    let dir = tempfile::tempdir().expect("a directory");
    let from = repository().join("taskd-pytorch/tests/flight_recorder/samples/size");
    for entry in fs::read_dir(from).expect("the samples exist") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("it has a name").to_string_lossy().into_owned();
        let host = dir.path().join(format!("host-{}", name.trim_start_matches(|c: char| !c.is_ascii_digit())));
        fs::create_dir_all(&host).expect("a directory");
        fs::copy(&path, host.join(&name)).expect("a copy");
    }
    let (text, _) = figures(&run(dir.path(), &dir.path().join("page.html"), &["--json"]));
    assert!(text.starts_with("Rank 1 does not take part in allreduce"), "{text}");
}

#[test]
fn a_store_of_taskd_yields_its_steps() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = TraceStore::open(StoreConfig::new(dir.path(), "task")).expect("a store");
    for number in 0..4 {
        for rank in 0..2 {
            let record = |unix_nanos, event, detail| TimedRecord {
                unix_nanos,
                thread: 1,
                kind: Kind::Step,
                event,
                name: NameId(0),
                detail,
            };
            let begun = 1_700_000_000_000_000_000 + number * 100_000_000;
            let records = vec![
                record(begun, Event::Begin { range: number }, Detail::Step { number, cpu_nanos: 0 }),
                record(begun + 90_000_000, Event::End { range: number }, Detail::None),
            ];
            let origin = Origin { rank: Rank(rank), incarnation: Incarnation(1), pid: 70 + rank };
            store.append(Arc::new(RecordBatch { origin, names: Arc::new(NameTable::default()), lost: 0, records }));
        }
    }
    assert!(store.flush(Duration::from_secs(20)), "the records are on disk");
    let (text, figures) = figures(&run(dir.path(), &dir.path().join("page.html"), &["--json"]));
    let analysis = &figures["analysis"];
    assert_eq!(analysis["sources"], serde_json::json!(["taskd store"]), "{text}");
    assert_eq!(analysis["steps"], serde_json::json!([0, 1, 2, 3]), "{text}");
    assert_eq!(analysis["breakdown"]["total_us"][1][2], 90_000, "{text}");
}

#[test]
fn profiles_of_ascend_yield_kernels_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let kernels = "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,Accelerator Core,Start Time(us),Duration(us)\n\
                   1,0,4294967295,1,2,aclnnMatmul,MatMul,AI_CORE,1718000000000100.125\t,50.5\n\
                   1,0,4294967295,2,2,aclnnMatmul,MatMul,AI_CORE,1718000000000200.0\t,49.5\n";
    for rank in 0..2 {
        let profile = dir.path().join(format!("node-1_{}_20260101000000000_ascend_pt", 1000 + rank));
        let output = profile.join("ASCEND_PROFILER_OUTPUT");
        fs::create_dir_all(&output).expect("a directory");
        fs::write(profile.join(format!("profiler_info_{rank}.json")), "{}").expect("a file");
        fs::write(output.join("kernel_details.csv"), kernels).expect("a file");
    }
    let (text, figures) = figures(&run(dir.path(), &dir.path().join("page.html"), &["--json"]));
    let analysis = &figures["analysis"];
    assert_eq!(analysis["sources"], serde_json::json!(["Ascend profiler"]), "{text}");
    let rules = &analysis["kernels"]["rules"][0];
    let kernel = &rules["kernels"][1];
    assert_eq!(rules["names"], serde_json::json!(["aclnnMatmul"]), "{text}");
    assert_eq!((&kernel["name"], &kernel["rank"], &kernel["count"]), (&0.into(), &1.into(), &2.into()));
    assert_eq!(kernel["sum_us"], 100.0, "{text}");
}
