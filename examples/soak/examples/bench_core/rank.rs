//! The ranks that are measured: one fills memory and waits, one keeps a core busy, one sleeps.

use super::Failure;
use std::hint::black_box;
use taskd_core::worker::Lifeline;

/// Printed by a rank when it has filled its memory.
pub(crate) const READY: &str = "ready";
const PAGE_BYTES: usize = 4096;

/// Runs as a rank until it is killed. With `TASKD_HOOKS=0` it has no lifeline.
pub(crate) fn run(act: &str, mib: &str) -> Result<(), Failure> {
    let _lifeline = Lifeline::take_from_env();
    let memory = vec![1u8; mib.parse::<usize>()? << 20];
    black_box(memory.iter().step_by(PAGE_BYTES).map(|byte| u64::from(*byte)).sum::<u64>());
    println!("{READY}");
    loop {
        match act {
            "busy" => {
                black_box(memory.iter().map(|byte| u64::from(*byte)).sum::<u64>());
            }
            _ => std::thread::park(),
        }
    }
}

/// Returns the command that starts such a rank.
pub(crate) fn command(act: &str, mib: u32) -> Result<[String; 4], Failure> {
    let program = std::env::current_exe()?.to_string_lossy().into_owned();
    Ok([program, "rank".to_owned(), act.to_owned(), mib.to_string()])
}
