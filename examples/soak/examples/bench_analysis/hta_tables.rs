//! Equality of our tables in HTA mode and those of `HolisticTraceAnalysis`. Figures of whole microseconds are equal;
//! means, deviations and bandwidths, which both sum as floats in their own order, differ by less than 1e-9 of their
//! size.

use serde_json::{Value, json};
use taskd_pytorch::kineto::{Breakdown, RankBreakdown};

/// Largest difference of two floats, in parts of their size.
const NEAR: f64 = 1e-9;

/// Our columns of statistics, and those of pandas.
const COLUMNS: [(&str, &str); 8] = [
    ("count", "count"),
    ("mean", "mean"),
    ("deviation", "std"),
    ("min", "min"),
    ("lower_quartile", "25%"),
    ("median", "50%"),
    ("upper_quartile", "75%"),
    ("max", "max"),
];

/// Returns the tables of a rank, by the names that HTA's have in the script's output.
fn of_rank(rank: &RankBreakdown) -> Value {
    json!({
        "rank": rank.rank,
        "idle_time(us)": rank.idle_ns / 1000,
        "compute_time(us)": rank.compute_ns / 1000,
        "non_compute_time(us)": rank.non_compute_ns() / 1000,
        "kernel_time(us)": rank.kernel_time_ns / 1000,
        "comp_comm_overlap_pctg": rank.overlap_ratio().map(|ratio| (ratio * 10_000.0).round_ties_even() / 100.0),
        "launches": rank.launches,
        "queues": rank.queues,
        "bandwidth": rank.bandwidth,
        "annotations": rank.annotations,
    })
}

/// Returns the tables of all ranks.
pub(crate) fn of(breakdown: &Breakdown) -> Vec<Value> {
    breakdown.ranks.iter().map(of_rank).collect()
}

fn rows(tables: &Value) -> &[Value] {
    tables.as_array().map_or(&[], Vec::as_slice)
}

/// Returns the first table that differs; `None` if all are equal.
pub(crate) fn difference(ours: &Value, theirs: &Value) -> Option<&'static str> {
    let ours = rows(ours);
    let has_all = |name: &str| rows(&theirs[name]).len() == ours.len();
    if ours.is_empty() || !has_all("temporal") || !has_all("overlap") || !has_all("launches") {
        return Some("the number of ranks");
    }
    let of_rank = |table: &Value, rank: &Value| -> Vec<Value> {
        rows(table).iter().filter(|row| row["rank"].as_f64() == rank["rank"].as_f64()).cloned().collect()
    };
    ours.iter().find_map(|rank| {
        let of = |table: &Value| of_rank(table, rank);
        let counters = &theirs["counters_stable"];
        let checks = [
            ("times", times(rank, &of(&theirs["temporal"]), &of(&theirs["overlap"]))),
            ("launches", launches(&rank["launches"], &of(&theirs["launches"]))),
            ("queues", queues(rows(&rank["queues"]), &of(&counters["queues"]), &of(&counters["full"]))),
            ("bandwidth", bandwidth(rows(&rank["bandwidth"]), &of(&counters["bandwidth"]))),
            ("annotations", annotations(rows(&rank["annotations"]), &of(&theirs["annotations"]))),
        ];
        checks.iter().find(|check| !check.1).map(|check| check.0)
    })
}

fn times(rank: &Value, times: &[Value], overlaps: &[Value]) -> bool {
    let ([times], [overlap]) = (times, overlaps) else { return false };
    let columns = ["idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)"];
    columns.iter().all(|column| rank[column].as_f64() == times[column].as_f64())
        && rank["comp_comm_overlap_pctg"].as_f64() == overlap["comp_comm_overlap_pctg"].as_f64()
}

fn is_near(ours: f64, theirs: f64) -> bool {
    (ours - theirs).abs() <= NEAR * theirs.abs().max(1.0)
}

/// Compares statistics, ours in parts of this unit. pandas has no deviation of a single value.
fn is_equal(ours: &Value, unit: f64, theirs: &Value) -> bool {
    COLUMNS.iter().all(|(column, other)| {
        let unit = if *column == "count" { 1.0 } else { unit };
        is_near(ours[column].as_f64().unwrap_or(f64::NAN) / unit, theirs[other].as_f64().unwrap_or(0.0))
    })
}

fn launches(ours: &Value, theirs: &[Value]) -> bool {
    let [theirs] = theirs else { return false };
    let times = [("call_ns", "cpu_duration"), ("kernel_ns", "gpu_duration"), ("delay_ns", "launch_delay")];
    let counts = [("short_kernels", "short"), ("slow_calls", "slow"), ("late_kernels", "late")];
    times.iter().all(|(column, other)| is_equal(&ours[column], 1000.0, &theirs[other]))
        && counts.iter().all(|(column, other)| ours[column].as_u64() == theirs[other].as_u64())
}

fn queues(ours: &[Value], theirs: &[Value], full: &[Value]) -> bool {
    let is_same = |(ours, theirs): (&Value, &Value)| {
        let of_stream = full.iter().find(|row| row["stream"].as_f64() == ours["stream"].as_f64());
        let full_us = of_stream.and_then(|row| row["duration_at_max_queue_length"].as_f64()).unwrap_or(0.0);
        ours["stream"].as_f64() == theirs["stream"].as_f64()
            && ours["full_ns"].as_f64() == Some(full_us * 1000.0)
            && is_equal(&ours["lengths"], 1.0, theirs)
    };
    ours.len() == theirs.len() && ours.iter().zip(theirs).all(is_same)
}

fn bandwidth(ours: &[Value], theirs: &[Value]) -> bool {
    let is_same =
        |(ours, theirs): (&Value, &Value)| ours["kind"] == theirs["name"] && is_equal(&ours["gb_per_s"], 1.0, theirs);
    ours.len() == theirs.len() && ours.iter().zip(theirs).all(is_same)
}

fn annotations(ours: &[Value], theirs: &[Value]) -> bool {
    let columns = [
        ("sum_ns", "sum (us)"),
        ("min_ns", "min (us)"),
        ("max_ns", "max (us)"),
        ("mean_ns", "mean (us)"),
        ("deviation_ns", "stddev"),
    ];
    let is_same = |theirs: &Value| {
        let is_key = |row: &&Value| row["name"] == theirs["name"] && row["is_on_device"] == theirs["is_on_device"];
        let Some(ours) = ours.iter().find(is_key) else { return false };
        columns.iter().all(|(column, other)| {
            let of = |row: &Value, column: &str| row[column].as_f64().unwrap_or(f64::NAN);
            is_near(of(ours, column) / 1000.0, of(theirs, other))
        })
    };
    ours.len() == theirs.len() && theirs.iter().all(is_same)
}
