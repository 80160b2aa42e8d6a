//! Profiles of Ascend: one of the files of a rank is damaged.

use super::random::Random;
use super::{Outcome, Target, mutate};
use serde_json::Value;
use std::path::PathBuf;
use taskd_examples::program::Failure;
use taskd_hw_ascend::profiler;
use tempfile::TempDir;

const COMMUNICATOR: &str = "10.0.0.1%enp_60000_0";
const OUTPUT: &str = "ASCEND_PROFILER_OUTPUT";

const KERNELS: &str =
    "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,Accelerator Core,Start Time(us),Duration(us)
1,0,4294967295,1,2,aclnnMatmul,MatMul,AI_CORE,1718000000000100.125\t,50.5
1,0,4294967295,2,9,hcom_allReduce__721_0_1,hcom_allReduce_,COMMUNICATION,1718000000000160.0\t,20.0
2,0,4294967295,3,2,\"aclnnMatmul,2\",MatMul,AI_CORE,1718000000000300.0\t,50.0
";
const STEPS: &str = "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble
0,1,50.5,20.5,0,20.5,9.7,200.0,0
";

const MEMORY: &str =
    "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Stream Ptr,Device Type
PTA,1718000000000100.125\t,9.5,16.0,9.5,0,NPU:0
PTA+GE,1718000000000150.125\t,1.0,8.0,1.0,0,NPU:0
MindSpore,1718000000000250.125\t,3.5,8.0,3.5,0,NPU:0
";

/// A file of the profile.
struct Part {
    name: &'static str,
    path: PathBuf,
    bytes: Vec<u8>,
    /// The content, if it is JSON.
    document: Option<Value>,
}

struct Ascend {
    root: TempDir,
    parts: Vec<Part>,
    all: Vec<Vec<u8>>,
}

/// Returns a directory in memory if the machine has one: a case writes a file.
pub(crate) fn fast_directory() -> std::io::Result<TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}

fn documents() -> [(&'static str, String); 6] {
    let hash = profiler::group_hash(COMMUNICATOR);
    let groups = format!(
        r#"{{"parallel_group_info":{{"{COMMUNICATOR}":{{"group_name":"dp","group_rank":0,"global_ranks":[0,1]}}}}}}"#
    );
    let times = r#"{"Start Timestamp(us)":1718000000000160.250,"Elapse Time(ms)":0.0205,"Transit Time(ms)":0.005,"Wait Time(ms)":0.0155}"#;
    let bandwidth = r#"{"HCCS":{"Transit Size(MB)":1.5,"Transit Time(ms)":0.005},"SDMA":{"Transit Size(MB)":0.5}}"#;
    let operators = format!(
        r#"{{"step1":{{"p2p":{{}},"collective":{{"hcom_allReduce__721_0_1@{hash}":{{"Communication Time Info":{times},"Communication Bandwidth Info":{bandwidth}}}}}}}}}"#
    );
    let link = r#"{"Transport Type":"HCCS","Transit Size(MB)":2.0,"Transit Time(ms)":0.004,"Op Name":"x"}"#;
    let matrix = format!(r#"{{"step1":{{"collective":{{"allreduce-total@{hash}":{{"0-1":{link}}}}}}}}}"#);
    [
        ("profiler_metadata.json", groups),
        ("communication.json", operators),
        ("communication_matrix.json", matrix),
        ("kernel_details.csv", KERNELS.to_owned()),
        ("step_trace_time.csv", STEPS.to_owned()),
        ("memory_record.csv", MEMORY.to_owned()),
    ]
}

pub(crate) fn target() -> Result<Box<dyn Target>, Failure> {
    let root = fast_directory()?;
    let dir = root.path().join("node-1_1000_20260101000000000_ascend_pt");
    std::fs::create_dir_all(dir.join(OUTPUT))?;
    std::fs::write(dir.join("profiler_info_0.json"), "{}")?;
    let mut parts = Vec::new();
    for (name, text) in documents() {
        let path = if name == "profiler_metadata.json" { dir.join(name) } else { dir.join(OUTPUT).join(name) };
        std::fs::write(&path, &text)?;
        let document = if name.ends_with("json") { Some(serde_json::from_str(&text)?) } else { None };
        parts.push(Part { name, path, bytes: text.into_bytes(), document });
    }
    let all = parts.iter().map(|part| part.bytes.clone()).collect();
    Ok(Box::new(Ascend { root, parts, all }))
}

impl Target for Ascend {
    fn case(&mut self, random: &mut Random) -> Outcome {
        let part = random.pick(&self.parts);
        let input = match &part.document {
            Some(document) if random.is_one_in(2) => {
                let mut document = document.clone();
                for _ in 0..=random.below(3) {
                    mutate::tree(random, &mut document);
                }
                serde_json::to_vec(&document).unwrap_or_default()
            }
            _ => mutate::bytes(random, &part.bytes, &self.all),
        };
        if let Err(error) = std::fs::write(&part.path, input) {
            return Outcome::Refused(format!("{} was not written: {error}", part.path.display()));
        }
        let outcome = if part.name == "step_trace_time.csv" {
            match profiler::read_step_trace(&part.path) {
                Ok(_) => Outcome::Whole,
                Err(why) => Outcome::Refused(why),
            }
        } else {
            match profiler::read(self.root.path()) {
                Err(error) => Outcome::Refused(error.to_string()),
                Ok(trace) if trace.missing.is_empty() => Outcome::Whole,
                Ok(trace) => Outcome::Part(trace.missing.into_iter().map(|missing| missing.what).collect()),
            }
        };
        drop(std::fs::write(&part.path, &part.bytes));
        outcome
    }

    fn is_clear(&self, message: &str) -> bool {
        message.contains("rank ") || self.parts.iter().any(|part| message.contains(part.name))
    }
}
