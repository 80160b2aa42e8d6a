//! The contract of a launcher, clause by clause, for PyTorch ranks that are real processes.
//!
//! This program is also the guard of its own test, so it has a `main` of its own.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::process::ExitCode;

use taskd_core::launch::LocalLauncher;
use taskd_core::testing::conformance::{self, launcher::Programs};
use taskd_core::testing::guarded_test;
use taskd_pytorch::TorchLauncher;

fn main() -> ExitCode {
    guarded_test("torch_ranks_on_this_machine_keep_the_contract", torch_ranks_on_this_machine_keep_the_contract)
}

async fn torch_ranks_on_this_machine_keep_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let attach = async |_owner| {
        let local = LocalLauncher::builder(dir.path().join("run")).build().await.unwrap();
        TorchLauncher::new(local, dir.path().join("torch"))
    };
    conformance::launcher(attach, Programs::shell().unwrap()).assert().await;
}
