//! The soak run: a real PyTorch DDP job is killed repeatedly, in every way and at every moment, and must end with the
//! result of an undisturbed one.
//!
//! `cargo run --release -p taskd-soak --example chaos_pytorch -- --kills 100`. Kills come from outside of the supervisor, which is a
//! process of its own and is killed as well; the seed chooses victims and moments. The job is that of `pytorch_ddp`, and so
//! is its Python environment.

use std::process::ExitCode;
use taskd_core::launch::guard;
use taskd_examples::program;
use taskd_soak::chaos::{self, Options};

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    let options: Options = program::options();
    program::run("chaos_pytorch", Box::pin(chaos::run(&options)))
}
