//! The contract of a launcher, clause by clause.

use crate::support::builder;
use taskd_core::testing::conformance::{self, launcher::Programs};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_local_launcher_satisfies_the_launcher_contract() {
    let dir = tempfile::tempdir().unwrap();
    let attach = async |_owner| builder(dir.path()).build().await.unwrap();
    conformance::launcher(attach, Programs::shell().unwrap()).assert().await;
}
