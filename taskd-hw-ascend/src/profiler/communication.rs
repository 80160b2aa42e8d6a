//! Communication operators from `communication.json`.

use super::{EVENTS_MAX, Reading, json, step_number};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fs::File;
use taskd_core::analysis::decimal::{ns_from_ms, ns_from_us};
use taskd_core::analysis::model::{Communication, Event, Kind};

/// Operators by step, then by `p2p` or `collective`, then by `operator@group`.
type Document = BTreeMap<String, BTreeMap<String, BTreeMap<String, Operator>>>;

#[derive(Deserialize)]
struct Operator {
    #[serde(rename = "Communication Time Info")]
    times: Times,
    #[serde(rename = "Communication Bandwidth Info", default)]
    bandwidth: BTreeMap<String, Transport>,
}

#[derive(Deserialize)]
struct Times {
    #[serde(rename = "Start Timestamp(us)")]
    start_us: Option<Box<RawValue>>,
    #[serde(rename = "Elapse Time(ms)")]
    elapse_ms: Option<Box<RawValue>>,
    #[serde(rename = "Transit Time(ms)")]
    transit_ms: Option<Box<RawValue>>,
    #[serde(rename = "Wait Time(ms)")]
    wait_ms: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Transport {
    #[serde(rename = "Transit Size(MB)")]
    size_mb: Option<f64>,
}

/// Converts a time that the file has as a number or as a text. Its digits count: times since 1970 do not fit in a
/// floating-point number.
fn time(raw: Option<&RawValue>, convert: fn(&[u8]) -> Option<i64>) -> Option<i64> {
    convert(raw?.get().trim_matches('"').trim().as_bytes())
}

/// Names of HCCL's operators, in lower case, and of their operations here.
const OPERATIONS: [(&str, &str, Kind); 11] = [
    ("allreduce", "all_reduce", Kind::Collective),
    ("allgather", "all_gather", Kind::Collective),
    ("reducescatter", "reduce_scatter", Kind::Collective),
    ("alltoall", "all_to_all", Kind::Collective),
    ("broadcast", "broadcast", Kind::Collective),
    ("scatter", "scatter", Kind::Collective),
    ("batchsendrecv", "send", Kind::Send),
    ("reduce", "reduce", Kind::Collective),
    ("barrier", "barrier", Kind::Collective),
    ("receive", "recv", Kind::Receive),
    ("send", "send", Kind::Send),
];

/// Returns operation and kind of an operator's name such as `hcom_allReduce__721_0_1`.
pub(super) fn operation(name: &str) -> (&'static str, Kind) {
    let name = name.to_ascii_lowercase();
    let known = OPERATIONS.iter().find(|(word, ..)| name.contains(word));
    known.map_or(("other", Kind::Collective), |(_, operation, kind)| (operation, *kind))
}

/// Reads the operators into the rank's trace. Operators without a start are counted as missing.
pub(super) fn read(reading: &mut Reading, file: File) -> Result<(), String> {
    let document: Document = json(file)?;
    let mut without_start = 0_u64;
    for (step, kinds) in &document {
        let step = step_number(step);
        for (name, operator) in kinds.values().flatten() {
            if name.starts_with("Total") {
                continue; // the sum of the others
            }
            let start = time(operator.times.start_us.as_deref(), ns_from_us);
            let elapse = time(operator.times.elapse_ms.as_deref(), ns_from_ms);
            match (start, elapse.map(u64::try_from)) {
                (Some(start_ns), Some(Ok(duration_ns))) => add(reading, name, operator, step, (start_ns, duration_ns)),
                _ => without_start += 1,
            }
        }
    }
    if without_start > 0 {
        reading.miss(format!("{without_start} operators of communication.json have no start or no length"));
    }
    Ok(())
}

fn add(reading: &mut Reading, name: &str, operator: &Operator, step: Option<u64>, span: (i64, u64)) {
    if reading.trace.events.len() >= EVENTS_MAX {
        reading.left_out += 1;
        return;
    }
    let (name, group) = name.rsplit_once('@').unwrap_or((name, ""));
    let (word, kind) = operation(name);
    let length = |raw: &Option<Box<RawValue>>| u64::try_from(time(raw.as_deref(), ns_from_ms)?).ok();
    let megabytes: f64 = operator.bandwidth.values().filter_map(|transport| transport.size_mb).sum();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates, which is meant")]
    let bytes = (megabytes * 1e6).round() as u64;
    let details = Communication {
        operation: reading.trace.names.intern(word),
        group: Some(group).filter(|group| !group.is_empty()).and_then(|group| reading.group(group)),
        bytes,
        wait_ns: length(&operator.times.wait_ms),
        transit_ns: length(&operator.times.transit_ms),
        ..Communication::default()
    };
    let communication = u32::try_from(reading.trace.communications.len()).ok();
    reading.trace.communications.push(details);
    reading.steps_of_communications.push(step);
    let (start_ns, duration_ns) = span;
    let name = reading.trace.names.intern(name);
    reading.add(Event { start_ns, duration_ns, kind, lane: 0, name, communication }, step);
}
