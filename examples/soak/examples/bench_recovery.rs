//! How long a training stands still when it loses a rank: under taskd, under other systems in their fastest
//! configuration, and under none, on this machine and in turns.
//!
//! `cargo run --release -p taskd-soak --example bench_recovery -- --n 20` prints the table, `--json` the figures as the
//! last line. The script is `examples/soak/python/bench_recovery/train.py`: the same model, data and pace for all, with
//! state of 8 MiB at most. The first run makes three Python environments in the user's cache directory, 7 GB each:
//! `TASKD_PYTHON`, `TASKD_PYTHON_NVRX` and `TASKD_PYTHON_TORCHFT` name interpreters to use instead, `--only
//! taskd-recover-in-place,torchrun` selects systems. It takes about 4 minutes a round, and needs a quiet machine: on a
//! busy one taskd's standbys, which start at low priority, may not be ready when their rank is lost; the line of each
//! repetition has the number of seated standbys.
//!
//! # What is measured
//! Each repetition is a fresh job, which trains for some seconds (`--settle-s`) and is hit once, at a random moment:
//! one rank is killed by SIGKILL; for `retry`, its script raises an exception. It is never rank 0, whose loss ends a
//! job under NVIDIA's in-process restart. Time runs from the fault to the first step that *all* ranks have completed
//! after it, according to the times that the script writes. Systems in which the world has one rank less from then on
//! are listed separately (`world kept`): for torchft time runs once until the surviving ranks continue
//! (`tuned-shrink`), and once until the lost replica takes part again (`tuned-rejoin`).
//!
//! With more than two ranks gloo reports the loss only to the lost rank's neighbours in the ring. A rank opposite stays
//! in its operation until that fails after 10 s, which is torch's time limit in the script. NVIDIA's in-process restart
//! waits for that.
//!
//! A rank that restarts resumes from a checkpoint, which rank 0 writes every ten steps: `steps lost` counts the steps
//! that are repeated. The state after every step is compared with that of an undisturbed run, if all ranks trained in
//! all steps.

use std::process::ExitCode;
use taskd_core::launch::guard;
use taskd_examples::program;
use taskd_pytorch::store;
use taskd_soak::bench_recovery::{self, Options};

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    store::init(); // nor does it return in the store
    let options: Options = program::options();
    program::run("bench_recovery", Box::pin(bench_recovery::run(&options)))
}
