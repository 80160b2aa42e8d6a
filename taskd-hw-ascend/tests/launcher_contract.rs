//! The contract of a launcher, clause by clause, for ranks that are real processes and load the probe with a stand-in for
//! libmspti.so.
//!
//! This program is also the guard of its own test, so it has a `main` of its own.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::path::Path;
use std::process::{Command, ExitCode};

use taskd_core::launch::{Launcher, LocalLauncher};
use taskd_core::testing::conformance::{self, launcher::Programs};
use taskd_core::testing::guarded_test;
use taskd_hw_ascend::mspti::{AscendLauncher, MsptiProfile};

fn main() -> ExitCode {
    guarded_test(
        "ranks_with_the_probe_over_a_stand_in_keep_the_contract",
        ranks_with_the_probe_over_a_stand_in_keep_the_contract,
    )
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
        launcher.info().limitations.last().unwrap(),
        "an NPU: libmspti.so is a stand-in that generates its records"
    );
    drop(launcher);
    conformance::launcher(attach, Programs::shell().unwrap()).assert().await;
}
