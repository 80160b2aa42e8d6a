//! The reader of Kineto traces: files of this crate's generator, a recorded file, damaged files, and the figures of
//! `HolisticTraceAnalysis` for the same files.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod bytes;
mod damage;
mod hta;
mod launches;
mod operators;
mod reader;

use std::path::Path;
use taskd_pytorch::kineto::generate::{self, Plan};

/// Returns a generated file.
fn generated(plan: &Plan) -> Vec<u8> {
    let mut bytes = Vec::new();
    generate::write(plan, &mut bytes).unwrap();
    bytes
}

/// Writes the files of a job of this many ranks.
fn write_job(directory: &Path, plan: Plan, world_size: u32) {
    for rank in 0..world_size {
        let bytes = generated(&Plan { rank, world_size, ..plan });
        std::fs::write(directory.join(format!("rank{rank}.json")), bytes).unwrap();
    }
}
