//! The layer between a service and taskd: a job on two hosts, its logs, and the operators' socket.
//!
//! Everything is kept in one directory, so that a restarted service finds its job and continues it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{ExitDetector, SilenceDetector, StallDetector};
use taskd_core::job::{JobSpec, Name, NodeId, Ready, WorkerSpec};
use taskd_core::launch::{LocalLauncher, MultiHostLauncher, OnOwnerLoss};
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::Runtime;
use taskd_core::runtime::control::{ControlSocket, SocketLimits};
use taskd_examples::program::Failure;
use taskd_examples::trainer::TrainerSettings;

/// The hosts of the job.
pub(crate) const NODES: [&str; 2] = ["node-a", "node-b"];
/// Number of ranks.
pub(crate) const RANKS: u32 = 4;
/// How long the guards keep the job without its service.
const KEEP: Duration = Duration::from_secs(60);
const SILENT_AFTER: Duration = Duration::from_secs(2);

/// Returns the path of the service's socket.
pub(crate) fn socket_path(dir: &Path) -> PathBuf {
    dir.join("control.sock")
}

/// The job's settings.
pub(crate) fn settings(dir: &Path) -> TrainerSettings {
    TrainerSettings { steps: 1_000_000, step_time_us: 2_000, ..TrainerSettings::in_dir(&dir.join("job")) }
}

/// A runtime over two hosts, and the objects that must live as long.
#[derive(Debug)]
pub(crate) struct Embedded {
    pub(crate) runtime: Runtime,
    pub(crate) launchers: Vec<Arc<LocalLauncher>>,
    pub(crate) socket: ControlSocket,
}

/// Builds the runtime: for each host a launcher, which attaches to a running guard or starts one.
pub(crate) async fn embed(dir: &Path) -> Result<Embedded, Failure> {
    let mut launchers = Vec::new();
    for node in NODES {
        let launcher = LocalLauncher::builder(dir.join(node))
            .job_name("embedded")
            .node(NodeId(Name::new(node)))
            .slots(RANKS)
            .on_owner_loss(OnOwnerLoss::Keep { at_most: KEEP });
        launchers.push(Arc::new(launcher.build().await?));
    }
    let mut builder = Runtime::builder()
        .job(job(dir)?)
        .detector(ExitDetector::new())
        .detector(SilenceDetector::after(SILENT_AFTER))
        .detector(StallDetector::after(Duration::from_secs(30)))
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .launcher(MultiHostLauncher::of(launchers.iter().cloned()).await?)
        .journal(dir.join("journal"));
    for (node, launcher) in NODES.into_iter().zip(&launchers) {
        builder = builder.source(launcher.heartbeats(SILENT_AFTER / 4).named(format!("heartbeats-{node}")));
    }
    let runtime = builder.build()?;
    let socket = ControlSocket::bind(socket_path(dir), runtime.handle(), SocketLimits::default())?;
    Ok(Embedded { runtime, launchers, socket })
}

fn job(dir: &Path) -> Result<JobSpec, Failure> {
    let this = std::env::current_exe()?.to_string_lossy().into_owned();
    let args = settings(dir).to_args().into_iter().map(|a| a.to_string_lossy().into_owned());
    // The two guards have different ids, but the ranks of one job need one name on both hosts for their rendezvous.
    let worker = WorkerSpec::new([this, "rank".to_owned()].into_iter().chain(args)).with_env("TRAINER_JOB", "embedded");
    let nodes = NODES.map(|node| NodeId(Name::new(node)));
    let mut spec = JobSpec::new("embedded", RANKS, worker).with_nodes(nodes);
    spec.policy.ready = Ready::Stepping; // an incident stays open until the job trains again
    spec.policy.termination_grace_period = Duration::from_millis(500);
    spec.policy.start_timeout = Duration::from_secs(60);
    Ok(spec)
}
