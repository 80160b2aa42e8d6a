use super::Faulty;
use crate::job::{CommandId, ProcId};
use crate::launch::{Change, DirectiveBatch, LaunchError, Launcher, Listing, PrepareOptions, Revision, StartBatch};
use async_trait::async_trait;
use std::time::Duration;
use tokio::time::sleep;

#[async_trait]
impl<L: Launcher> Launcher for Faulty<L> {
    crate::delegate!(Launcher to |this| this.inner, except start, stop, list, watch, acknowledge, send_directives, prepare, detach);

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        sleep(self.delay()).await;
        if self.call() {
            return Err(LaunchError::Unreachable("a double fails as scripted".into()));
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
    async fn send_directives(&self, id: CommandId, batch: &DirectiveBatch) -> Result<(), LaunchError> {
        sleep(self.delay()).await;
        self.inner.send_directives(id, batch).await
    }
    async fn prepare(&self, batch: &StartBatch, options: &PrepareOptions) -> Result<(), LaunchError> {
        sleep(self.delay()).await;
        self.inner.prepare(batch, options).await
    }
    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        sleep(self.delay()).await;
        self.inner.detach(keep).await
    }
}
