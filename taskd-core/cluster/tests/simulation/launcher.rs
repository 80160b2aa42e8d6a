//! The launcher of a simulated machine, and its fence.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskd_cluster::consensus::Epoch;
use taskd_runtime::job::{CommandId, NodeId, ProcId};
use taskd_runtime::launch::{
    Change, ChangeLog, DirectiveBatch, Fence, LaunchError, Launcher, LauncherInfo, Listing, Phase, Revision, StartBatch,
};

use crate::cluster::{Cluster, Machine, Proc, State, stop_time};

/// The launcher of one machine. The machine's ranks outlive it.
#[derive(Clone)]
pub(crate) struct MachineLauncher {
    cluster: Arc<Cluster>,
    index: usize,
    log: Arc<ChangeLog>,
}

impl MachineLauncher {
    pub(crate) fn new(cluster: &Arc<Cluster>, index: usize) -> MachineLauncher {
        let log = Arc::clone(&cluster.lock().machines[index].log);
        MachineLauncher { cluster: Arc::clone(cluster), index, log }
    }
}

/// Returns a live process of the rank of `proc`, and its host.
fn beside(machines: &[Machine], proc: &ProcId) -> Option<(ProcId, NodeId)> {
    machines.iter().find_map(|machine| {
        let other = machine.procs.keys().find(|other| other.role == proc.role)?;
        Some((other.clone(), machine.name.clone()))
    })
}

#[async_trait]
impl Launcher for MachineLauncher {
    fn info(&self) -> LauncherInfo {
        LauncherInfo::new("machine").with_detach()
    }

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        let now = self.cluster.now();
        let mut state = self.cluster.lock();
        let State { machines, ledger, .. } = &mut *state;
        if machines[self.index].fence.is_some_and(|at| at <= now) {
            return Err(LaunchError::Unreachable("the deadline of this host's guard has passed".into()));
        }
        ledger.ordered(now, &batch.world);
        for order in &batch.starts {
            let epoch = order.spec.argv.last().and_then(|epoch| epoch.parse().ok());
            ledger.obeys(now, &machines[self.index].name, Epoch(epoch.unwrap_or_default()));
            let pending = machines[self.index].status(&order.proc, Phase::Pending("accepted".into()));
            if self.log.admit([pending]).is_empty() {
                continue;
            }
            let other = beside(machines, &order.proc);
            let machine = &mut machines[self.index];
            ledger.started(now, &order.proc, &machine.name, other);
            machine.procs.insert(order.proc.clone(), Proc { dies_at: None });
            self.log.push(Change::Proc(machine.status(&order.proc, Phase::Running)));
        }
        Ok(())
    }

    async fn stop(&self, procs: &[ProcId], _grace: Duration) -> Result<(), LaunchError> {
        let (now, limit) = (self.cluster.now(), self.cluster.settings().stop_within);
        let mut state = self.cluster.lock();
        let State { machines, dice, .. } = &mut *state;
        for proc in procs {
            if let Some(proc) = machines[self.index].procs.get_mut(proc) {
                let at = now + stop_time(dice, limit);
                proc.dies_at = Some(proc.dies_at.map_or(at, |earlier| earlier.min(at)));
            }
        }
        Ok(())
    }

    async fn list(&self) -> Result<Listing, LaunchError> {
        Ok(self.log.listing())
    }

    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        self.log.after(from).await
    }

    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        self.log.acknowledge(exits);
        Ok(())
    }

    async fn send_directives(&self, id: CommandId, batch: &DirectiveBatch) -> Result<(), LaunchError> {
        let now = self.cluster.now();
        let mut state = self.cluster.lock();
        let host = state.machines[self.index].name.clone();
        state.ledger.ordered(now, &batch.world);
        state.ledger.carried_out(now, id, &host);
        Ok(())
    }
}

/// The guard of one machine: kills its ranks at the deadline, whatever becomes of the agent.
pub(crate) struct MachineFence {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) index: usize,
}

impl Fence for MachineFence {
    fn set_deadline(&self, deadline: Option<Duration>) {
        self.cluster.lock().machines[self.index].fence = deadline;
    }
}
