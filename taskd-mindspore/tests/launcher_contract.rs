//! The contract of a launcher, clause by clause, for MindSpore processes that are real processes.
//!
//! This program is also the guard of its own test, so it has a `main`: that of a test runner as small as can be.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::process::ExitCode;

use taskd_core::launch::{LocalLauncher, guard};
use taskd_core::testing::conformance::{self, launcher::Programs};
use taskd_mindspore::MindSporeLauncher;

const NAME: &str = "mindspore_processes_on_this_machine_keep_the_contract";

fn main() -> ExitCode {
    guard::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|word| word == "--list") {
        println!("{NAME}: test");
        return ExitCode::SUCCESS;
    }
    let mut filters = arguments.iter().filter(|word| !word.starts_with('-')).peekable();
    if filters.peek().is_none() || filters.any(|filter| NAME.contains(filter.as_str())) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(mindspore_processes_on_this_machine_keep_the_contract());
        println!("test {NAME} ... ok");
    }
    ExitCode::SUCCESS
}

async fn mindspore_processes_on_this_machine_keep_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let attach = async |_owner| {
        let local = LocalLauncher::builder(dir.path().join("run")).build().await.unwrap();
        MindSporeLauncher::new(local, dir.path().join("mindspore"))
    };
    conformance::launcher(attach, Programs::shell().unwrap()).assert().await;
}
