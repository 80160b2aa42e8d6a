//! The soak run: a real PyTorch DDP job is killed over and over, in every way and at every moment, and must end as if
//! nothing had happened.
//!
//! `cargo run --release --example chaos_pytorch -- --kills 100`. Kills come from outside of the supervisor, which is a
//! process of its own and is killed as well; the seed chooses victims and moments. The job is that of `pytorch_ddp`, and so
//! is its Python environment.

use std::process::ExitCode;
use taskd_core::launch::guard;
use taskd_examples::chaos::{self, Options};
use taskd_examples::program;

fn main() -> ExitCode {
    guard::init(); // a guard is this same program, started again: it never comes back from here
    let options: Options = program::options();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let done = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(chaos::run(&options)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chaos_pytorch: {error}");
            ExitCode::FAILURE
        }
    }
}
