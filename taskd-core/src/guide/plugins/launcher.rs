use std::{sync::Arc, time::Duration};
use taskd_core::job::ProcId;
use taskd_core::launch::*;

/// Gives each rank a device of its own, around any launcher with so many devices on each host.
pub struct OneDeviceEach<L>(pub L, pub u32);

#[async_trait::async_trait]
impl<L: Launcher> Launcher for OneDeviceEach<L> {
    fn info(&self) -> LauncherInfo {
        self.0.info()
    }
    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        let mut batch = batch.clone();
        for order in &mut batch.orders {
            let Some(rank) = order.proc.role.rank() else { continue };
            let env = &mut Arc::make_mut(&mut order.spec).env;
            env.entry("ACME_DEVICE".into()).or_insert((rank.0 % self.1).to_string());
        }
        self.0.start(&batch).await
    }
    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        self.0.stop(procs, grace).await
    }
    async fn list(&self) -> Result<Listing, LaunchError> {
        self.0.list().await
    }
    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        self.0.watch(from).await
    }
    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        self.0.acknowledge(exits).await
    }
    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        self.0.detach(keep).await
    }
    fn wind_down(&self, grace: Duration) {
        self.0.wind_down(grace);
    }
}
