//! Dumps of PyTorch's flight recorder, as pickle and as JSON, and the verdict about a job of which one is damaged.

use super::random::Random;
use super::{Outcome, Target, mutate};
use serde_json::Value;
use taskd_examples::program::Failure;
use taskd_pytorch::flight_recorder::{Dump, evaluate};

/// Recorded dumps, in pairs of the same job.
const PICKLES: [&[u8]; 3] = [
    include_bytes!("../../../../taskd-pytorch/tests/flight_recorder/samples/skip/dump_0"),
    include_bytes!("../../../../taskd-pytorch/tests/flight_recorder/samples/groups/dump_1"),
    include_bytes!("../../../../taskd-pytorch/tests/flight_recorder/samples/frozen/dump_2"),
];
const JSON: &[u8] = include_bytes!("../../../../taskd-pytorch/tests/flight_recorder/samples/skip_json/dump_0.json");
/// The dump of another rank of the same job.
const PEER: &[u8] = include_bytes!("../../../../taskd-pytorch/tests/flight_recorder/samples/skip_json/dump_1.json");

struct FlightRecorder {
    pickles: Vec<Vec<u8>>,
    json: Vec<Vec<u8>>,
    document: Value,
    peer: Dump,
}

pub(crate) fn target() -> Result<Box<dyn Target>, Failure> {
    Ok(Box::new(FlightRecorder {
        pickles: PICKLES.iter().map(|bytes| bytes.to_vec()).collect(),
        json: vec![JSON.to_vec(), PEER.to_vec()],
        document: serde_json::from_slice(JSON)?,
        peer: Dump::parse(1, PEER)?,
    }))
}

impl Target for FlightRecorder {
    fn case(&mut self, random: &mut Random) -> Outcome {
        let input = match random.below(4) {
            0 | 1 => {
                let dump = random.pick(&self.pickles);
                mutate::bytes(random, dump, &self.pickles)
            }
            2 => mutate::bytes(random, &self.json[0], &self.json),
            _ => {
                let mut document = self.document.clone();
                for _ in 0..=random.below(4) {
                    mutate::tree(random, &mut document);
                }
                serde_json::to_vec(&document).unwrap_or_default()
            }
        };
        match Dump::parse(0, &input) {
            Err(error) => Outcome::Refused(error.to_string()),
            Ok(dump) => {
                let left_out = dump.left_out;
                let ranks = if random.is_one_in(2) { None } else { Some(2) };
                let verdict = evaluate(&[dump, self.peer.clone()], ranks);
                if left_out == 0 {
                    return Outcome::Whole;
                }
                Outcome::Part(vec![format!("rank 0: {left_out} parts were left out; {}", verdict.summary)])
            }
        }
    }

    fn is_clear(&self, message: &str) -> bool {
        message.contains("dump") || message.starts_with("rank ")
    }
}
