use std::sync::Arc;
use taskd_core::launch::*;

/// Launcher that wraps another one and gives each rank a device of its own. The second field is the number of
/// devices on each host.
pub struct OneDeviceEach<L>(pub L, pub u32);

impl<L> OneDeviceEach<L> {
    fn completed(&self, batch: &StartBatch) -> StartBatch {
        let mut batch = batch.clone();
        for order in &mut batch.starts {
            let Some(rank) = order.proc.role.rank() else { continue };
            let env = &mut Arc::make_mut(&mut order.spec).env;
            env.entry("ACME_DEVICE".into()).or_insert((rank.0 % self.1).to_string());
        }
        batch
    }
}

#[async_trait::async_trait]
impl<L: Launcher> Launcher for OneDeviceEach<L> {
    taskd_core::delegate!(Launcher to |this| this.0, except start, prepare);

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        self.0.start(&self.completed(batch)).await
    }
    async fn prepare(&self, batch: &StartBatch, options: &PrepareOptions) -> Result<(), LaunchError> {
        self.0.prepare(&self.completed(batch), options).await
    }
}
