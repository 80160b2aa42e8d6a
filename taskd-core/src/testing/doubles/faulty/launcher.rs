use super::Faulty;
use crate::job::{CommandId, ProcId};
use crate::launch::{Change, DirectBatch, LaunchError, Launcher, Listing, Revision, StartBatch};
use async_trait::async_trait;
use std::time::Duration;
use tokio::time::sleep;

#[async_trait]
impl<L: Launcher> Launcher for Faulty<L> {
    crate::delegate!(Launcher to |this| this.inner, except start, stop, list, watch, acknowledge, direct, prepare, detach);

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        sleep(self.delay()).await;
        if self.call() {
            return Err(LaunchError::Unreachable("a double fails as it was told to".into()));
        }
        self.inner.start(batch).await
    }
    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        sleep(self.delay()).await;
        self.inner.stop(procs, grace).await
    }
    async fn list(&self) -> Result<Listing, LaunchError> {
        sleep(self.delay()).await;
        self.inner.list().await
    }
    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        let (changes, next) = self.inner.watch(from).await?;
        sleep(self.delay()).await;
        if !self.repeats() {
            return Ok((changes, next));
        }
        Ok((changes.into_iter().flat_map(|change| [change.clone(), change]).collect(), next))
    }
    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        sleep(self.delay()).await;
        self.inner.acknowledge(exits).await
    }
    async fn direct(&self, id: CommandId, batch: &DirectBatch) -> Result<(), LaunchError> {
        sleep(self.delay()).await;
        self.inner.direct(id, batch).await
    }
    async fn prepare(&self, batch: &StartBatch, in_loop: bool) -> Result<(), LaunchError> {
        sleep(self.delay()).await;
        self.inner.prepare(batch, in_loop).await
    }
    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        sleep(self.delay()).await;
        self.inner.detach(keep).await
    }
}
