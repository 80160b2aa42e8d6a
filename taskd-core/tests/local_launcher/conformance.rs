//! The contract of a launcher, clause by clause.

use crate::support::builder;
use std::time::Duration;
use taskd_core::launch::OnOwnerLoss;
use taskd_core::testing::conformance::{self, launcher::Programs};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_local_launcher_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let attach = async |_owner| {
        let keep = OnOwnerLoss::Keep { at_most: Duration::from_secs(60) };
        builder(dir.path()).on_owner_loss(keep).build().await.unwrap()
    };
    conformance::launcher(attach, Programs::shell().unwrap()).assert().await;
}
