//! Sequences of kernels by operator, by our own rules and beside the table of `HolisticTraceAnalysis`.

use super::hta::{rows, whole};
use super::write_job;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use taskd_pytorch::kineto::generate::Plan;
use taskd_pytorch::kineto::{Level, Operators, SequenceRow, operators_of_files};

fn files_of(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// A job in which HTA's table depends neither on the order of its sort nor on its rounding: all times are whole microseconds,
/// and no two operators start together. In other files it takes either of two nested operators that start within one.
pub(super) fn job() -> Value {
    let mut state = 7_u64;
    let mut below = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    let mut events = vec![json!({"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "pid": 1, "tid": 1,
                                 "ts": 10.0, "dur": 90_000.0, "args": {}})];
    let mut correlation = 1;
    for number in 0..300_u32 {
        let at = 100.0 + f64::from(number) * 200.0;
        let pick = |names: [&'static str; 4], number: u64| names[usize::try_from(number % 4).unwrap()];
        events.push(operator(
            pick(["aten::linear", "aten::conv2d", "aten::sum", "MyFunction"], below(4)),
            1,
            at,
            150.0,
        ));
        let inner = pick(["aten::addmm", "aten::mm", "aten::convolution", "aten::copy_"], below(4));
        events.push(operator(inner, 1, at + 20.0, 80.0));
        for launched in 0..1 + below(3) {
            let start = at + [5.0, 30.0, 50.0, 120.0][usize::try_from(below(2) + launched).unwrap()];
            events.extend(launch(pick(["gemm", "bias", "reduce", "gelu"], below(4)), 1, correlation, start));
            correlation += 1;
        }
    }
    json!({"distributedInfo": {"rank": 0}, "traceEvents": events})
}

/// Compares the innermost operators with HTA's table.
pub(super) fn compare(directory: &Path, theirs: &Value) {
    let ours = operators_of_files(&files_of(directory));
    let mut table: BTreeMap<(i64, String, String), &SequenceRow> = BTreeMap::new();
    for rank in &ours.ranks {
        for row in rank.rows.iter().filter(|row| row.level == Level::Innermost) {
            table.insert((rank.rank.into(), row.operator.clone(), row.kernels.join(" -> ")), row);
        }
    }
    let theirs = rows(theirs, "operators");
    assert!(theirs.len() >= 50, "{} rows", theirs.len());
    assert_eq!(table.len(), theirs.len());
    for row in theirs {
        let text = |column: &str| row[column].as_str().unwrap().to_owned();
        let key = (whole(&row["rank"]), text("aten_op_name"), text("kernel_sequence"));
        let found = table.get(&key).unwrap_or_else(|| panic!("{key:?} is not in {:?}", table.keys()));
        assert_eq!(found.count.cast_signed(), whole(&row["occurrence_count"]), "{key:?}");
        for (column, ns) in
            [("avg_aten_op_launch_delay", found.launch_delay_ns), ("avg_runtime_delay", found.start_delay_ns)]
        {
            let theirs = row[column].as_f64().unwrap();
            assert!((ns / 1000.0 - theirs).abs() < 0.001, "{column} of {key:?} is {ns} ns, in HTA {theirs} us");
        }
    }
}

/// Returns the sequences in a file of one rank.
fn read(events: &[Value]) -> Operators {
    let directory = tempfile::tempdir().unwrap();
    let document = json!({"distributedInfo": {"rank": 0}, "traceEvents": events});
    std::fs::write(directory.path().join("rank0.json"), document.to_string()).unwrap();
    let operators = operators_of_files(&files_of(directory.path()));
    assert_eq!(operators.missing, []);
    operators
}

fn operator(name: &str, thread: u32, start: f64, duration: f64) -> Value {
    json!({"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": duration, "args": {}})
}

/// Returns a call and its kernel, which starts 20 us later.
fn launch(name: &str, thread: u32, correlation: u32, start: f64) -> [Value; 2] {
    [
        json!({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": thread, "ts": start,
               "dur": 1.0, "args": {"correlation": correlation}}),
        json!({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start + 20.0, "dur": 10.5,
               "args": {"stream": 7, "correlation": correlation}}),
    ]
}

#[test]
fn a_launch_belongs_to_the_operators_around_it_on_its_own_thread() {
    let mut events = Vec::new();
    for (number, at) in [(0, 100.0), (1, 300.0)] {
        events.extend(launch("bias", 1, number * 10 + 1, at + 40.25));
        events.extend(launch("gemm", 1, number * 10 + 2, at + 20.25));
        events.push(operator("aten::addmm", 1, at + 10.0, 50.0));
        events.push(operator("aten::linear", 1, at, 90.0));
    }
    // Another thread has an operator at the time of this launch, but the launching one has none.
    events.extend(launch("memset", 2, 90, 330.0));
    let operators = read(&events);
    let [rank] = operators.ranks.as_slice() else { panic!("{operators:?}") };
    assert_eq!((rank.outside, rank.deeper), (1, 0));
    let row = |level, name: &str, host_ns, launch_delay_ns| SequenceRow {
        level,
        operator: name.into(),
        kernels: vec!["gemm".into(), "bias".into()],
        count: 2,
        host_ns,
        device_ns: 42_000,
        launch_delay_ns,
        start_delay_ns: 20_000.0,
    };
    let inner = row(Level::Innermost, "aten::addmm", 100_000, 10_250.0);
    let outer = row(Level::Outermost, "aten::linear", 180_000, 20_250.0);
    assert_eq!(rank.rows, [inner, outer]);
}

#[test]
fn different_sequences_of_one_operator_are_different_rows() {
    let mut events = Vec::new();
    for (number, at) in [(1, 100.0), (2, 200.0), (3, 300.0)] {
        events.push(operator("aten::sum", 1, at, 50.0));
        events.extend(launch(if number == 3 { "large" } else { "small" }, 1, number, at + 5.0));
    }
    let operators = read(&events);
    let rows: Vec<(&str, u64)> = operators.ranks[0]
        .rows
        .iter()
        .filter(|row| row.level == Level::Outermost)
        .map(|row| (row.kernels[0].as_str(), row.count))
        .collect();
    assert_eq!(rows, [("small", 2), ("large", 1)]);
}

#[test]
fn operators_that_overlap_without_end_are_bounded() {
    // Each begins within all earlier ones: no trace of PyTorch is this deep.
    let mut events: Vec<Value> = (0..2_000).map(|number| operator("aten::add", 1, f64::from(number), 1e6)).collect();
    events.extend(launch("gemm", 1, 1, 5_000.0));
    let operators = read(&events);
    assert_eq!(operators.ranks[0].deeper, 2_000 - taskd_pytorch::kineto::DEPTH_MAX as u64);
    assert_eq!(operators.ranks[0].rows.len(), 2);
}

#[test]
fn a_generated_job_has_the_sequences_of_its_layers() {
    let directory = tempfile::tempdir().unwrap();
    write_job(directory.path(), Plan { layers: 5, ..Plan::default() }, 2);
    let operators = operators_of_files(&files_of(directory.path()));
    assert_eq!(operators.ranks.len(), 2);
    for rank in &operators.ranks {
        let outer = rank.rows.iter().filter(|row| row.level == Level::Outermost);
        assert!(outer.clone().any(|row| row.operator == "aten::linear" && row.count >= 5), "{rank:?}");
        assert!(outer.map(|row| row.device_ns).sum::<i64>() > 0);
    }
}
