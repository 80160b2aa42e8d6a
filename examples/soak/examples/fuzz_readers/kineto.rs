//! Files of PyTorch's profiler: plain and gzip, by the reader of whole traces, both modes of the breakdown, and the operators.

use super::random::Random;
use super::{Outcome, Target, mutate};
use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use taskd_core::analysis::model::Missing;
use taskd_examples::program::Failure;
use taskd_pytorch::kineto::generate::{self, Plan};
use taskd_pytorch::kineto::{self, Mode};

/// Name of the file in messages.
const NAME: &str = "rank0.json";

struct Kineto {
    document: Value,
    plain: Vec<Vec<u8>>,
    compressed: Vec<Vec<u8>>,
}

/// Events that the generator does not write.
fn further_events() -> Value {
    json!([
        {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 5_009_734_009_700.5,
         "args": {"Total Reserved": 0, "Total Allocated": 2048, "Bytes": 2048, "Device Id": 0, "Device Type": 1}},
        {"ph": "B", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 1, "ts": 5_009_734_009_701.0},
        {"ph": "E", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 1, "ts": 5_009_734_009_702.0},
        {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 1, "tid": 1, "ts": 5_009_734_009_703.5, "dur": 2.25,
         "args": {"Input Dims": [[64], [8, 64], [64, 64], [], []]}},
        {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 1, "tid": 2, "ts": 5_009_734_009_704.0,
         "dur": 9.0, "args": {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Collective name": "allreduce",
         "In msg nelems": 4, "Out msg nelems": 4, "dtype": "Float", "Seq": 3}},
        {"ph": "X", "cat": "cuda_sync", "name": "Context Sync", "pid": 0, "tid": 7, "ts": 5_009_734_009_705.0, "dur": 1.0,
         "args": {"stream": -1, "correlation": 5}}
    ])
}

/// A file with one event of each form.
fn small() -> Result<Value, Failure> {
    let mut bytes = Vec::new();
    generate::write(&Plan { steps: 2, layers: 1, world_size: 2, ..Plan::default() }, &mut bytes)?;
    let mut document: Value = serde_json::from_slice(&bytes)?;
    let mut known = BTreeSet::new();
    if let Some(events) = document["traceEvents"].as_array_mut() {
        events.retain(|event| {
            let name = event["name"].as_str().unwrap_or_default();
            let class: String = name.chars().take(12).collect();
            known.insert((event["cat"].to_string(), event["ph"].to_string(), class))
        });
        events.truncate(14);
        events.extend(further_events().as_array().cloned().unwrap_or_default());
    }
    Ok(document)
}

pub(crate) fn target() -> Result<Box<dyn Target>, Failure> {
    let document = small()?;
    let plain = vec![
        serde_json::to_vec(&document)?,
        serde_json::to_vec_pretty(&document)?,
        serde_json::to_vec(&document["traceEvents"])?,
    ];
    let compress = |bytes: &Vec<u8>| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes)?;
        encoder.finish()
    };
    let compressed = plain.iter().map(compress).collect::<Result<_, _>>()?;
    Ok(Box::new(Kineto { document, plain, compressed }))
}

impl Kineto {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        match random.below(8) {
            0 => {
                let file = random.pick(&self.compressed);
                mutate::bytes(random, file, &self.compressed)
            }
            1..=4 => {
                let file = random.pick(&self.plain);
                mutate::bytes(random, file, &self.plain)
            }
            other => {
                let mut document = self.document.clone();
                for _ in 0..=random.below(3) {
                    mutate::tree(random, &mut document);
                }
                let bytes = serde_json::to_vec(&document).unwrap_or_default();
                if other == 7 { mutate::bytes(random, &bytes, &self.plain) } else { bytes }
            }
        }
    }
}

impl Target for Kineto {
    fn case(&mut self, random: &mut Random) -> Outcome {
        let input = self.input(random);
        let (is_empty, missing): (bool, Vec<Missing>) = match random.below(4) {
            0 => {
                let trace = kineto::read(NAME, &input[..]);
                (trace.ranks.values().all(|rank| rank.events.is_empty()), trace.missing)
            }
            3 => {
                let operators = kineto::operators_of_reader(&input[..]);
                (operators.ranks.iter().all(|rank| rank.rows.is_empty()), operators.missing)
            }
            other => {
                let mode = if other == 1 { Mode::Exact } else { Mode::Hta };
                let breakdown = kineto::breakdown_of_reader(&input[..], mode);
                (breakdown.ranks.is_empty(), breakdown.missing)
            }
        };
        let messages: Vec<String> = missing.into_iter().map(|missing| missing.what).collect();
        match (messages.is_empty(), is_empty) {
            (true, _) => Outcome::Whole,
            (false, true) => Outcome::Refused(messages.join("; ")),
            (false, false) => Outcome::Part(messages),
        }
    }

    fn is_clear(&self, message: &str) -> bool {
        [NAME, "the trace", "ranks have no trace file"].iter().any(|place| message.contains(place))
    }
}
