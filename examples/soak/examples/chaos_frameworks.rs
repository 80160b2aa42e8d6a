//! Training loops of common frameworks, with `taskd.steps` (if the framework permits it) and without: ranks are killed
//! at random moments, and every job must end with the bits of an undisturbed one.
//! `cargo run --release -p taskd-soak --example chaos_frameworks -- --kills 20`. It takes an hour and a half with two cores. Its Python environment,
//! 8 GB with torch, accelerate, DeepSpeed, Lightning and transformers, is made by itself; `TASKD_PYTHON_FRAMEWORKS` names another one.

use std::process::ExitCode;
use taskd_core::launch::guard;
use taskd_examples::program;
use taskd_pytorch::store;
use taskd_soak::frameworks::{self, Options};

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    store::init(); // nor does it return in the store
    let options: Options = program::options();
    program::run("chaos_frameworks", Box::pin(frameworks::run(&options)))
}
