//! The soak run of recoveries that keep processes: real PyTorch jobs, one for each strategy, are hit repeatedly, in
//! every way and at every moment, and every step of every rank must be that of the undisturbed run, bit by bit.
//!
//! `cargo run --release -p taskd-soak --example chaos_recovery -- --faults 60`. Faults come from outside of the
//! supervisor, which is a process of its own and is killed as well; the seed chooses kinds, victims and moments. The
//! script is that of `pytorch_recover`, and so is its Python environment. Connections are cut only if the program runs
//! as root.

use std::process::ExitCode;
use taskd_core::launch::guard;
use taskd_examples::program;
use taskd_pytorch::store;
use taskd_soak::chaos_recovery::{self, Options};

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    store::init(); // nor does it return in the store
    let options: Options = program::options();
    program::run("chaos_recovery", Box::pin(chaos_recovery::run(&options)))
}
