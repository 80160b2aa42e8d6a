//! A launcher of ranks whose devices are recorded: any launcher, plus the libraries and the environment that this needs.
//!
//! It starts nothing itself and decides nothing.

use super::profile::{MsptiProfile, ProfileError};
use async_trait::async_trait;
use std::sync::Arc;
use taskd_core::job::{InheritEnv, Name, WorkerSpec};
use taskd_core::launch::{LaunchError, Launcher, LauncherInfo, StartBatch, StartOrder};

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
impl<L: Launcher> Launcher for AscendLauncher<L> {
    taskd_core::delegate!(Launcher to |this| this.inner, except info, start, prepare);

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

    async fn prepare(&self, batch: &StartBatch, in_loop: bool) -> Result<(), LaunchError> {
        self.inner.prepare(&self.all_completed(batch), in_loop).await
    }
}
