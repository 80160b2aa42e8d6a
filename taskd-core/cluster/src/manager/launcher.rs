//! The launcher of all hosts: stores each new world in the consensus engine before any host gets an order for it, and
//! reports what it sees only while a majority confirms the manager: nothing is decided from less.

use super::Inner;
use super::confirmed::Confirmed;
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use taskd_runtime::job::{CommandId, ProcId};
use taskd_runtime::launch::{
    Change, DirectiveBatch, LaunchError, Launcher, LauncherInfo, Listing, PrepareOptions, Revision, StartBatch,
};

/// The [`Launcher`] of all hosts of a job. After the end of the manager's epoch every call returns
/// [`LaunchError::Superseded`].
#[derive(Clone, Debug)]
pub struct ClusterLauncher {
    pub(super) inner: Arc<Inner>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Launcher for ClusterLauncher {
    fn info(&self) -> LauncherInfo {
        let mut info = self.inner.fleet.info();
        info.name = "cluster".into();
        info.supports_detach = true;
        info
    }

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        self.inner.in_office()?;
        self.inner.commit(&batch.world, Some(batch)).await?;
        self.inner.broadcasts.together(self.inner.fleet.start(batch)).await
    }

    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        self.inner.in_office()?;
        self.inner.broadcasts.together(self.inner.fleet.stop(procs, grace)).await
    }

    async fn list(&self) -> Result<Listing, LaunchError> {
        self.inner.in_office()?;
        self.inner.confirmed().await?;
        let listing = self.inner.fleet.list().await?;
        self.inner.take_links(&listing.links);
        Ok(listing)
    }

    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        let over = self.inner.over();
        let changes = async {
            let changes = self.inner.fleet.watch(from).await?;
            match self.inner.confirmed().await? {
                Confirmed::AtOnce => Ok(changes),
                Confirmed::Late => self.inner.fleet.watch(from).await, // with all that has changed meanwhile
            }
        };
        tokio::select! {
            biased;
            error = over => Err(error),
            changes = changes => {
                let (changes, next) = changes?;
                self.inner.take_proofs(&changes);
                Ok((changes, next))
            }
        }
    }

    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        self.inner.in_office()?;
        self.inner.keep_completed(exits).await?;
        self.inner.broadcasts.together(self.inner.fleet.acknowledge(exits)).await
    }

    async fn send_directives(&self, id: CommandId, batch: &DirectiveBatch) -> Result<(), LaunchError> {
        self.inner.in_office()?;
        self.inner.commit(&batch.world, None).await?;
        self.inner.broadcasts.together(self.inner.fleet.send_directives(id, batch)).await
    }

    async fn prepare(&self, batch: &StartBatch, options: &PrepareOptions) -> Result<(), LaunchError> {
        self.inner.in_office()?;
        self.inner.fleet.prepare(batch, options).await
    }

    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        self.inner.in_office()?;
        self.inner.fleet.detach(keep).await
    }

    fn begin_shutdown(&self, grace: Duration) {
        if self.inner.in_office().is_ok() {
            self.inner.fleet.begin_shutdown(grace);
        }
    }
}
