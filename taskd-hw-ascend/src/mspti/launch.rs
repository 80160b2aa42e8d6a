//! A launcher of ranks whose devices are recorded: any launcher, plus the libraries and the environment that this needs.
//!
//! It starts nothing itself and decides nothing.

use super::profile::{MsptiProfile, ProfileError};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::job::{CommandId, InheritEnv, Name, ProcId, WorkerSpec};
use taskd_core::launch::{
    Change, DirectBatch, LaunchError, Launcher, LauncherInfo, Listing, Revision, StartBatch, StartOrder,
};

/// Has the ranks of `L` record what their devices do.
///
/// Every rank gets libmspti.so, the probe and `libtaskd.so` in its `LD_PRELOAD`, behind what is preloaded already, and CANN's
/// environment where the profile has it; services pass through unchanged. A launcher that completes ranks for a framework stands
/// around this one or within it, as one likes. Without a profile everything passes through, and
/// [`info`](Launcher::info) says why.
#[derive(Debug)]
pub struct AscendLauncher<L> {
    inner: L,
    profile: Result<MsptiProfile, ProfileError>,
    /// This process's, which ranks inherit.
    preload: Option<String>,
}

impl<L: Launcher> AscendLauncher<L> {
    /// Completes what passes through `inner`, by a profile such as [`MsptiProfile::find`] gives.
    pub fn new(inner: L, profile: Result<MsptiProfile, ProfileError>) -> AscendLauncher<L> {
        AscendLauncher { inner, profile, preload: std::env::var("LD_PRELOAD").ok() }
    }

    /// The launcher that does the work.
    pub const fn inner(&self) -> &L {
        &self.inner
    }

    fn all_completed(&self, batch: &StartBatch) -> StartBatch {
        let orders = batch.orders.iter().map(|order| self.completed(order)).collect();
        StartBatch { world: Arc::clone(&batch.world), orders }
    }

    fn completed(&self, order: &StartOrder) -> StartOrder {
        let mut order = order.clone();
        if let (Ok(profile), Some(_)) = (&self.profile, order.proc.role.rank()) {
            let spec = Arc::make_mut(&mut order.spec);
            let inherited = inherits(spec, "LD_PRELOAD").then(|| self.preload.clone()).flatten();
            profile.complete(spec, |_| inherited.clone());
        }
        order
    }
}

fn inherits(spec: &WorkerSpec, name: &str) -> bool {
    match &spec.inherit {
        InheritEnv::All => true,
        InheritEnv::Nothing => false,
        InheritEnv::Only(names) => names.contains(name),
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<L: Launcher> Launcher for AscendLauncher<L> {
    fn info(&self) -> LauncherInfo {
        let mut info = self.inner.info();
        info.name = Name::from(format!("ascend over {}", info.name));
        match &self.profile {
            Ok(profile) if profile.is_stand_in() => {
                info.goes_without.push("an NPU: libmspti.so is a stand-in that makes up what it tells".to_owned());
            }
            Ok(_) => (),
            Err(why) => info.goes_without.push(format!("records of what NPUs do: {why}")),
        }
        info
    }

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        self.inner.start(&self.all_completed(batch)).await
    }

    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        self.inner.stop(procs, grace).await
    }

    async fn list(&self) -> Result<Listing, LaunchError> {
        self.inner.list().await
    }

    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        self.inner.watch(from).await
    }

    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        self.inner.acknowledge(exits).await
    }

    async fn direct(&self, id: CommandId, batch: &DirectBatch) -> Result<(), LaunchError> {
        self.inner.direct(id, batch).await
    }

    async fn prepare(&self, batch: &StartBatch, in_loop: bool) -> Result<(), LaunchError> {
        self.inner.prepare(&self.all_completed(batch), in_loop).await
    }

    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        self.inner.detach(keep).await
    }

    fn wind_down(&self, grace: Duration) {
        self.inner.wind_down(grace);
    }
}
