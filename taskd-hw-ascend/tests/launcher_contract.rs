//! The contract of a launcher, clause by clause, for ranks that are real processes and load the probe with a stand-in for
//! libmspti.so.
//!
//! This program is also the guard of its own test, so it has a `main`: that of a test runner as small as can be.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::path::Path;
use std::process::{Command, ExitCode};

use taskd_core::launch::{Launcher, LocalLauncher, guard};
use taskd_core::testing::conformance::{self, launcher::Programs};
use taskd_hw_ascend::mspti::{AscendLauncher, MsptiProfile};

const NAME: &str = "ranks_with_the_probe_over_a_stand_in_keep_the_contract";

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
        runtime.block_on(ranks_with_the_probe_over_a_stand_in_keep_the_contract());
        println!("test {NAME} ... ok");
    }
    ExitCode::SUCCESS
}

async fn ranks_with_the_probe_over_a_stand_in_keep_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("libmspti.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mspti/standin.c");
    let mut cc = Command::new("cc"); // what cargo links with
    cc.args(["-std=c11", "-O2", "-fPIC", "-shared", "-pthread", "-o"]).arg(&library).arg(source);
    assert!(cc.status().unwrap().success());
    let attach = async |_owner| {
        let local = LocalLauncher::builder(dir.path().join("run")).build().await.unwrap();
        AscendLauncher::new(local, MsptiProfile::of(&library))
    };
    let launcher = attach(0).await;
    assert_eq!(
        launcher.info().goes_without.last().unwrap(),
        "an NPU: libmspti.so is a stand-in that makes up what it tells"
    );
    drop(launcher);
    conformance::launcher(attach, Programs::shell().unwrap()).assert().await;
}
