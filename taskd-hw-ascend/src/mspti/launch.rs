//! A launcher that wraps another one, and adds the libraries and the environment for recording devices to its ranks.

use super::profile::{MsptiProfile, ProfileError};
use async_trait::async_trait;
use std::sync::Arc;
use taskd_core::job::Name;
use taskd_core::launch::{LaunchError, Launcher, LauncherInfo, PrepareOptions, StartBatch, StartOrder};

/// Launcher that wraps the launcher `L` and makes its ranks record the activity of their devices.
///
/// Every rank gets libmspti.so (unless it is listed there already), the probe `libtaskd_mspti.so` and `libtaskd.so`
/// in its `LD_PRELOAD`, after the libraries that are listed there already, and CANN's environment if the profile
/// contains it. Ranks with `TASKD_HOOKS=0` and services are not changed. A launcher that adapts ranks to a
/// framework, such as `TorchLauncher`, may wrap this launcher or be wrapped by it. If the profile is an error, ranks
/// are not changed either, and [`info`](Launcher::info) contains the error.
#[derive(Debug)]
pub struct AscendLauncher<L> {
    inner: L,
    profile: Result<MsptiProfile, ProfileError>,
    /// Value of `LD_PRELOAD` in this process, which ranks inherit.
    preload: Option<String>,
}

impl<L: Launcher> AscendLauncher<L> {
    /// Wraps the launcher `inner`. Its ranks will load the libraries of `profile`, which is, for example, the result of
    /// [`MsptiProfile::find`].
    pub fn new(inner: L, profile: Result<MsptiProfile, ProfileError>) -> AscendLauncher<L> {
        AscendLauncher { inner, profile, preload: std::env::var("LD_PRELOAD").ok() }
    }

    /// Returns the wrapped launcher.
    pub const fn inner(&self) -> &L {
        &self.inner
    }

    fn all_completed(&self, batch: &StartBatch) -> StartBatch {
        let orders = batch.starts.iter().map(|order| self.completed(order)).collect();
        StartBatch::new(Arc::clone(&batch.world), orders)
    }

    fn completed(&self, order: &StartOrder) -> StartOrder {
        let mut order = order.clone();
        if let (Ok(profile), Some(_)) = (&self.profile, order.proc.role.rank()) {
            let spec = Arc::make_mut(&mut order.spec);
            let inherited = spec.inherit.passes("LD_PRELOAD").then(|| self.preload.clone()).flatten();
            profile.complete(spec, |_| inherited.clone());
        }
        order
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
                info.limitations.push("an NPU: libmspti.so is a stand-in that generates its records".to_owned());
            }
            Ok(_) => (),
            Err(why) => info.limitations.push(format!("records of the activity of NPUs: {why}")),
        }
        info
    }

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        self.inner.start(&self.all_completed(batch)).await
    }

    async fn prepare(&self, batch: &StartBatch, options: &PrepareOptions) -> Result<(), LaunchError> {
        self.inner.prepare(&self.all_completed(batch), options).await
    }
}
