//! Launches, queues, bandwidth of copies and annotations: hand-made traces with known figures, and the tables of
//! `HolisticTraceAnalysis` 0.5.0 for the jobs of `hta.rs`.

use super::hta::{is_near, rows, whole};
use serde_json::{Value, json};
use taskd_pytorch::kineto::{Breakdown, Mode, QueueLengths, RankBreakdown, Statistics, breakdown_of_reader};

/// Events of a file.
#[derive(Default)]
struct Events(Vec<Value>);

impl Events {
    /// Adds a call of the runtime. Times are in microseconds.
    fn call(&mut self, name: &str, correlation: i64, start: f64, duration: f64) {
        self.0.push(json!({"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": start,
                           "dur": duration, "args": {"correlation": correlation}}));
    }

    fn kernel(&mut self, name: &str, correlation: i64, stream: i64, start: f64, duration: f64) {
        self.0.push(json!({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start,
                           "dur": duration, "args": {"stream": stream, "correlation": correlation}}));
    }

    fn copy(&mut self, name: &str, correlation: i64, (start, duration): (f64, f64), bytes: u64, rate: f64) {
        let category = if name.starts_with("Memset") { "gpu_memset" } else { "gpu_memcpy" };
        self.call("cudaMemcpyAsync", correlation, start - 3.0, 1.5);
        self.0.push(
            json!({"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 20, "ts": start, "dur": duration,
                           "args": {"stream": 20, "correlation": correlation, "bytes": bytes,
                                    "memory bandwidth (GB/s)": rate}}),
        );
    }

    fn annotation(&mut self, category: &str, name: &str, start: f64, duration: f64) {
        self.0.push(json!({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 7, "ts": start, "dur": duration,
                           "args": {"External id": 3}}));
    }

    fn document(self) -> Value {
        json!({"distributedInfo": {"rank": 0}, "traceEvents": self.0})
    }

    fn breakdown(self, mode: Mode) -> Breakdown {
        breakdown_of_reader(serde_json::to_vec(&self.document()).unwrap().as_slice(), mode)
    }
}

/// Two steps, and an event before them: HTA counts the first step, and links kernels without a call to the first event.
fn steps(events: &mut Events) {
    events.annotation("user_annotation", "warm up", 90.5, 3.25);
    for (number, start) in [(0, 100.5), (1, 9_000.5)] {
        events.annotation("user_annotation", &format!("ProfilerStep#{number}"), start, 8_000.25);
    }
}

/// Jobs beside those of the generator: a queue of more than 1024 kernels; copies that overlap and touch, and
/// annotations; calls that HTA does not count, and CUDA graphs.
pub(super) fn jobs() -> Vec<(&'static str, Value)> {
    let mut full = Events::default();
    steps(&mut full);
    for number in 0..1_300_u32 {
        let (call, at) = (200.5 + f64::from(number) * 1.25, 1_800.75 + f64::from(number) * 2.5);
        full.call("cudaLaunchKernel", number.into(), call, 0.875);
        full.kernel("gemm", number.into(), 7, at, 2.125);
        full.call("cudaLaunchKernelExC", i64::from(number) + 5_000, call + 0.5, 60.5);
        full.kernel("softmax", i64::from(number) + 5_000, 9, call + 120.5 + f64::from(number % 7) * 9.5, 1.5);
    }
    let mut copies = Events::default();
    steps(&mut copies);
    let kinds =
        ["Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)", "Memcpy DtoD", "Memset (Device)", "dma"];
    for number in 0..200_u32 {
        let kind = kinds[number as usize * 7 % 11 % kinds.len()];
        let (start, duration) = (300.25 + f64::from(number) * 3.5, 0.25 + f64::from(number * 37 % 90) / 8.0);
        let bytes = u64::from(number * number % 977 * 64);
        copies.copy(kind, number.into(), (start, duration), bytes, f64::from(number % 41) * 0.1 + 0.013);
        copies.annotation("gpu_user_annotation", ["layer", "loss", "step"][number as usize % 3], start, duration * 3.0);
        copies.annotation("user_annotation", ["forward", "backward"][number as usize % 2], start, duration);
    }
    copies.annotation("gpu_user_annotation", "in the last step", 9_100.5, 10.0);
    let mut others = Events::default();
    steps(&mut others);
    others.call("cuLaunchKernel", 1, 200.5, 5.5);
    others.kernel("triton", 1, 7, 210.25, 20.5);
    others.call("cudaGraphLaunch", 2, 220.5, 5.5);
    others.kernel("gemm", 2, 7, 240.25, 20.5);
    others.kernel("gemm", 2, 9, 241.25, 20.5);
    others.call("cudaLaunchKernel", 3, 250.5, 5.5);
    others.kernel("gemm", 3, 7, 270.25, 2.5);
    others.call("cudaLaunchKernel", 4, 260.5, 5.5);
    others.call("cudaEventRecord", 5, 261.5, 5.5);
    vec![("full_queue", full.document()), ("copies", copies.document()), ("other_calls", others.document())]
}

/// Compares statistics in `unit` with those of pandas, which has no deviation of a single value.
fn compare_statistics(what: &str, ours: &Statistics, unit: f64, theirs: &Value) {
    let figures = [
        ("mean", ours.mean),
        ("std", ours.deviation),
        ("min", ours.min),
        ("25%", ours.lower_quartile),
        ("50%", ours.median),
        ("75%", ours.upper_quartile),
        ("max", ours.max),
    ];
    assert_eq!(theirs["count"].as_f64(), Some(ours.count as f64), "{what}");
    for (column, figure) in figures {
        let theirs = theirs[column].as_f64().unwrap_or(0.0);
        assert!(is_near(figure / unit, theirs), "{what}: {column} is {}, in HTA {theirs}", figure / unit);
    }
}

fn compare_launches(job: &str, ours: &Breakdown, theirs: &Value) {
    for row in rows(theirs, "launches") {
        let rank = ours.ranks.iter().find(|rank| i64::from(rank.rank) == whole(&row["rank"])).unwrap();
        let what = format!("launches of {job}, rank {}", rank.rank);
        let Some(launches) = &rank.launches else {
            assert_eq!(row["cpu_duration"]["count"].as_f64(), Some(0.0), "{what}");
            continue;
        };
        compare_statistics(&what, &launches.call_ns, 1000.0, &row["cpu_duration"]);
        compare_statistics(&what, &launches.kernel_ns, 1000.0, &row["gpu_duration"]);
        compare_statistics(&what, &launches.delay_ns, 1000.0, &row["launch_delay"]);
        let counts = [launches.short_kernels, launches.slow_calls, launches.late_kernels].map(Some);
        assert_eq!(counts, ["short", "slow", "late"].map(|column| row[column].as_u64()), "{what}");
    }
}

/// Compares the queues, and returns the number of them.
fn compare_queues(job: &str, ours: &Breakdown, theirs: &Value) -> usize {
    if theirs["counters"]["queues"].is_null() {
        assert!(ours.ranks.iter().any(|rank| rank.queues.is_empty()), "{job}: HTA has no queues");
        assert!(ours.missing.iter().any(|missing| missing.what.contains("HTA fails")), "{job}: {:?}", ours.missing);
        return 0;
    }
    let queues: Vec<(u32, &QueueLengths)> =
        ours.ranks.iter().flat_map(|rank| rank.queues.iter().map(|queue| (rank.rank, queue))).collect();
    // Without ties HTA's own order counts, else that of a stable sort.
    let has_ties = queues.iter().any(|(_, queue)| queue.ties > 0);
    let theirs = &theirs[if has_ties { "counters_stable" } else { "counters" }];
    assert_eq!(queues.len(), rows(theirs, "queues").len(), "{job}");
    for ((rank, queue), row) in queues.iter().zip(rows(theirs, "queues")) {
        let what = format!("queue of {job}, rank {rank}, stream {}", queue.stream);
        assert_eq!((i64::from(*rank), queue.stream), (whole(&row["rank"]), whole(&row["stream"])), "{what}");
        compare_statistics(&what, &queue.lengths, 1.0, row);
    }
    let full: Vec<_> = queues.iter().filter(|(_, queue)| queue.full_ns > 0).collect();
    let rows: Vec<&Value> =
        rows(theirs, "full").iter().filter(|row| whole(&row["duration_at_max_queue_length"]) > 0).collect();
    assert_eq!(full.len(), rows.len(), "{job}");
    for ((_, queue), row) in full.iter().zip(rows) {
        let expected = (whole(&row["stream"]), whole(&row["duration_at_max_queue_length"]) * 1000);
        assert_eq!((queue.stream, queue.full_ns), expected, "{job}");
    }
    queues.len()
}

fn compare_bandwidth(job: &str, ours: &Breakdown, theirs: &Value) {
    let kinds = ours.ranks.iter().flat_map(|rank| rank.bandwidth.iter().map(|kind| (rank.rank, kind)));
    let theirs = rows(&theirs["counters_stable"], "bandwidth");
    assert_eq!(kinds.clone().count(), theirs.len(), "{job}");
    for ((rank, kind), row) in kinds.zip(theirs) {
        let what = format!("bandwidth of {job}, rank {rank}, {}", kind.kind);
        assert_eq!((i64::from(rank), Some(&*kind.kind)), (whole(&row["rank"]), row["name"].as_str()), "{what}");
        compare_statistics(&what, &kind.gb_per_s, 1.0, row);
    }
}

fn compare_annotations(job: &str, ours: &Breakdown, theirs: &Value) {
    let mut table: Vec<_> = ours.ranks.iter().flat_map(|rank| &rank.annotations).collect();
    table.sort_by_key(|row| (!row.is_on_device, row.rank, &row.name));
    let theirs = rows(theirs, "annotations");
    assert_eq!(table.len(), theirs.len(), "{job}");
    for (row, expected) in table.iter().zip(theirs) {
        let key = (expected["is_on_device"].as_bool(), whole(&expected["rank"]), expected["name"].as_str());
        assert_eq!((Some(row.is_on_device), i64::from(row.rank), Some(&*row.name)), key, "{job}");
        let figures = [
            ("sum (us)", row.sum_ns as f64),
            ("max (us)", row.max_ns as f64),
            ("min (us)", row.min_ns as f64),
            ("mean (us)", row.mean_ns),
            ("stddev", row.deviation_ns),
        ];
        for (column, figure) in figures {
            let theirs = expected[column].as_f64().unwrap();
            assert!(is_near(figure / 1000.0, theirs), "{job}, {}: {column} is {figure} ns, {theirs} us", row.name);
        }
    }
}

/// Compares the figures of HTA mode with HTA's tables. Returns the number of queues that were compared.
pub(super) fn compare(job: &str, ours: &Breakdown, theirs: &Value) -> usize {
    compare_launches(job, ours, theirs);
    compare_bandwidth(job, ours, theirs);
    compare_annotations(job, ours, theirs);
    compare_queues(job, ours, theirs)
}

fn only(breakdown: &Breakdown) -> &RankBreakdown {
    assert_eq!(breakdown.missing, []);
    &breakdown.ranks[0]
}

#[test]
fn both_modes_have_the_launches_that_their_rules_count() {
    let job = || jobs().into_iter().find(|job| job.0 == "other_calls").unwrap().1;
    let read = |mode| breakdown_of_reader(serde_json::to_vec(&job()).unwrap().as_slice(), mode);
    let (exact, hta) = (read(Mode::Exact), read(Mode::Hta));
    // The call of a graph is one launch of two kernels; two calls launched no kernel.
    let exact = only(&exact);
    let launches = exact.launches.unwrap();
    assert_eq!((launches.call_ns.count, launches.call_ns.min, launches.call_ns.max), (3, 5_500.0, 5_500.0));
    assert_eq!(
        (launches.kernel_ns.min, launches.kernel_ns.median, launches.kernel_ns.max),
        (2_500.0, 20_500.0, 41_000.0)
    );
    assert_eq!((launches.delay_ns.min, launches.delay_ns.max), (4_250.0, 14_250.0));
    assert_eq!((launches.short_kernels, launches.slow_calls, launches.late_kernels), (1, 0, 0));
    let queues: Vec<(i64, u64, f64)> =
        exact.queues.iter().map(|queue| (queue.stream, queue.lengths.count, queue.lengths.max)).collect();
    assert_eq!(queues, [(7, 6, 1.0), (9, 2, 1.0)]);
    // By HTA's rules only one of them counts, and another one for the queue. Starts are rounded up, ends down.
    let hta = only(&hta);
    let launches = hta.launches.unwrap();
    assert_eq!((launches.call_ns.count, launches.call_ns.max, launches.kernel_ns.max), (1, 5_000.0, 1_000.0));
    assert_eq!((launches.delay_ns.max, launches.short_kernels), (15_000.0, 1));
    let queues: Vec<(i64, u64)> = hta.queues.iter().map(|queue| (queue.stream, queue.lengths.count)).collect();
    assert_eq!(queues, [(7, 4)]);
}

#[test]
fn a_full_queue_has_its_time_in_nanoseconds() {
    let mut events = Events::default();
    // The last of 1024 calls is at 1,023.5; the first kernel begins at 2,000.001.
    for number in 0..1024_u32 {
        events.call("cudaLaunchKernel", number.into(), 0.5 + f64::from(number), 0.25);
        events.kernel("gemm", number.into(), 7, 2_000.001 + f64::from(number), 0.5);
    }
    let exact = events.breakdown(Mode::Exact);
    let [queue] = only(&exact).queues.as_slice() else { panic!("{exact:?}") };
    assert_eq!((queue.lengths.max, queue.lengths.min, queue.full_ns), (1024.0, 0.0, 976_501));
}

#[test]
fn exact_bandwidth_does_not_count_copies_that_touch_as_one() {
    let copies = || {
        let mut events = Events::default();
        events.copy("Memcpy HtoD (Pinned -> Device)", 1, (10.0, 2.0), 20_000, 10.0);
        events.copy("Memcpy HtoD (Pinned -> Device)", 2, (12.0, 4.0), 20_000, 5.0);
        events.copy("Memset (Device)", 3, (20.5, 0.1), 50, 0.4);
        events
    };
    let (exact, hta) = (copies().breakdown(Mode::Exact), copies().breakdown(Mode::Hta));
    let [copy, fill] = only(&exact).bandwidth.as_slice() else { panic!("{exact:?}") };
    assert_eq!((copy.copies, copy.bytes, copy.busy_ns, copy.gb_per_s.max), (2, 40_000, 6_000, 10.0));
    assert_eq!((fill.kind.as_str(), fill.busy_ns, fill.gb_per_s.max), ("Memset", 100, 0.5));
    let [copy] = only(&hta).bandwidth.as_slice() else { panic!("{hta:?}: a fill of -1 us has no bandwidth in HTA") };
    assert_eq!(
        (copy.busy_ns, copy.gb_per_s.max),
        (6_000, 15.0),
        "HTA starts the second copy before the first one ends"
    );
}

#[test]
fn annotations_of_host_and_device_are_counted_apart() {
    let mut events = Events::default();
    steps(&mut events);
    events.annotation("gpu_user_annotation", "ProfilerStep#0", 150.25, 10.001);
    events.kernel("gemm", 1, 7, 150.25, 10.001);
    let exact = events.breakdown(Mode::Exact);
    let rows: Vec<(bool, &str, i64)> =
        only(&exact).annotations.iter().map(|row| (row.is_on_device, row.name.as_str(), row.sum_ns)).collect();
    let expected = [
        (true, "ProfilerStep#0", 10_001),
        (false, "ProfilerStep#0", 8_000_250),
        (false, "ProfilerStep#1", 8_000_250),
        (false, "warm up", 3_250),
    ];
    assert_eq!(rows, expected);
}
