//! The manager's launcher as the runtime uses it, and commands of which each must be carried out at most once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use taskd_cluster::ClusterLauncher;
use taskd_cluster::consensus::Epoch;
use taskd_runtime::job::World;
use taskd_runtime::launch::{Directive, DirectiveBatch, LaunchError, Launcher, StartBatch};
use tokio::time::{sleep, timeout};

use crate::cluster::Cluster;

/// Time between two commands.
const EVERY: Duration = Duration::from_millis(300);
/// Time after which the answer of a command is not awaited any more.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Keeps the world of the last order.
pub(crate) struct Orders {
    launcher: ClusterLauncher,
    epoch: Epoch,
    world: Mutex<Option<Arc<World>>>,
}

impl Orders {
    pub(crate) fn new(launcher: ClusterLauncher, epoch: Epoch, world: Option<Arc<World>>) -> Orders {
        Orders { launcher, epoch, world: Mutex::new(world) }
    }

    fn world(&self) -> Option<Arc<World>> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Launcher for Orders {
    taskd_runtime::delegate!(Launcher to |this| this.launcher, except start);

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        *self.world.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&batch.world));
        self.launcher.start(batch).await
    }
}

/// Sends commands to the ranks, one after the other, each with a number of its own.
pub(crate) async fn probe(cluster: &Arc<Cluster>, orders: &Orders) {
    loop {
        sleep(EVERY).await;
        let Some(world) = orders.world() else { continue };
        let procs = world.members().keys().filter_map(|rank| world.proc(*rank));
        let directives = procs.map(|proc| (proc, Directive::Abort {})).collect();
        let id = cluster.lock().ledger.next_directive(orders.epoch);
        let batch = DirectiveBatch::new(world, directives);
        let answer = timeout(ANSWER_WITHIN, orders.launcher.send_directives(id, &batch)).await;
        if let Ok(Ok(())) = answer {
            let now = cluster.now();
            cluster.lock().ledger.served = now;
        }
    }
}
