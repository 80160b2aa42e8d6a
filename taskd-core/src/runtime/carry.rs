//! Commands to the launcher, in the order in which they were given, and its answers and changes back.
//!
//! In order, because a stop that overtakes its start would leave a process that nobody wants.

use crate::job::{CommandId, Domain, ProcId, Role};
use crate::kernel::{Command, Input, Request};
use crate::launch::{LaunchError, Launcher, Revision};
use crate::recover::{Action, Failure, Output};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Commands that may wait for the launcher; further ones are answered "unreachable" at once.
pub const LAUNCHER_QUEUE_MAX: usize = 4096;

/// How long to wait before a launcher that could not be reached is asked again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// How long to wait before a stale cursor is followed by another listing: a launcher whose history is always gone must
/// not keep us busy.
const RELIST_AFTER: Duration = Duration::from_millis(5);

/// How long the end of a job waits for the launcher to take its last commands.
const FINISH_WITHIN: Duration = Duration::from_secs(1);

/// Panics while being watched after which a launcher is given up.
const PANICS_MAX: u32 = 16;

/// The launcher's side of the shell.
pub(super) struct Carrier {
    orders: mpsc::Sender<Command>,
    urgent: mpsc::Sender<Input>,
    carrying: JoinSet<()>,
    others: JoinSet<()>, // all ended when this is dropped: nothing outlives the shell
}

impl Carrier {
    pub(super) fn spawn(launcher: Arc<dyn Launcher>, urgent: &mpsc::Sender<Input>) -> Carrier {
        let (orders, waiting) = mpsc::channel(LAUNCHER_QUEUE_MAX);
        let (mut carrying, mut others) = (JoinSet::new(), JoinSet::new());
        carrying.spawn(carry_out(Arc::clone(&launcher), waiting, urgent.clone()));
        others.spawn(follow(launcher, urgent.clone()));
        Carrier { orders, urgent: urgent.clone(), carrying, others }
    }

    /// Lets the launcher take what was given: an exit that is not acknowledged is told to the next owner again.
    pub(super) async fn finish(self) {
        let Carrier { orders, mut carrying, .. } = self;
        drop(orders);
        let _ = tokio::time::timeout(FINISH_WITHIN, carrying.join_next()).await; // too slow: it is told again
    }

    /// Passes a start, a stop or an acknowledgement on.
    pub(super) fn give(&mut self, command: Command) {
        if let Err(mpsc::error::TrySendError::Full(command)) = self.orders.try_send(command) {
            let why = format!("the launcher has not kept up: {LAUNCHER_QUEUE_MAX} commands wait for it");
            let results = answers(&command.action, &Err(Failure::Unreachable(why)));
            let (urgent, id) = (self.urgent.clone(), command.id);
            self.others.spawn(async move {
                let _ = urgent.send(Input::Answered { id, results }).await;
            });
        }
    }
}

async fn carry_out(launcher: Arc<dyn Launcher>, mut waiting: mpsc::Receiver<Command>, urgent: mpsc::Sender<Input>) {
    while let Some(Command { id, action, .. }) = waiting.recv().await {
        let result = call(&launcher, action.clone(), &urgent).await;
        let results = answers(&action, &result);
        if !results.is_empty() && send(&urgent, id, results).await.is_err() {
            return;
        }
    }
}

async fn send(
    urgent: &mpsc::Sender<Input>,
    id: CommandId,
    results: Vec<(Domain, Result<Output, Failure>)>,
) -> Result<(), ()> {
    urgent.send(Input::Answered { id, results }).await.map_err(|_| ())
}

/// One call, in a task of its own, so that a panic in the launcher ends the call and not us.
async fn call(launcher: &Arc<dyn Launcher>, action: Action, urgent: &mpsc::Sender<Input>) -> Result<Output, Failure> {
    let name = launcher.info().name;
    let launcher = Arc::clone(launcher);
    let mut inner = JoinSet::new();
    inner.spawn(async move {
        match action {
            Action::Start { batch, .. } => launcher.start(&batch).await,
            Action::Stop { procs, grace, .. } => launcher.stop(&procs, grace).await,
            Action::Acknowledge(proc) => launcher.acknowledge(&[proc]).await,
            _ => Ok(()),
        }
    });
    match inner.join_next().await {
        Some(Ok(Ok(()))) => Ok(Output::Accepted),
        Some(Ok(Err(LaunchError::Refused(why)))) => Err(Failure::Refused(why)),
        Some(Ok(Err(other))) => Err(Failure::Unreachable(other.to_string())),
        _ => {
            let what = "it panicked in a call".to_owned();
            let _ = urgent.send(Input::Requested(Request::PluginFailed { plugin: name, what })).await;
            Err(Failure::Unreachable("the launcher panicked".into()))
        }
    }
}

/// One result for every process of the command. Acknowledgements have none: an exit is told again until one succeeds.
fn answers(action: &Action, result: &Result<Output, Failure>) -> Vec<(Domain, Result<Output, Failure>)> {
    let answer = |role: &Role| (Domain::Process(role.clone()), result.clone());
    let of = |procs: &[ProcId]| procs.iter().map(|p| answer(&p.role)).collect();
    match action {
        Action::Start { batch, .. } => batch.orders.iter().map(|o| answer(&o.proc.role)).collect(),
        Action::Stop { procs, .. } => of(procs),
        _ => Vec::new(),
    }
}

/// Follows the launcher for as long as the job runs. A launcher that panics is asked again, within a bound.
async fn follow(launcher: Arc<dyn Launcher>, urgent: mpsc::Sender<Input>) {
    for _ in 0..PANICS_MAX {
        let mut inner = JoinSet::new(); // ends with us
        inner.spawn(list_and_watch(Arc::clone(&launcher), urgent.clone()));
        if !inner.join_next().await.is_some_and(|end| end.is_err_and(|e| e.is_panic())) {
            return;
        }
        let what = "it panicked while it was watched".to_owned();
        let failed = Request::PluginFailed { plugin: launcher.info().name, what };
        if urgent.send(Input::Requested(failed)).await.is_err() {
            return;
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
    let reason = format!("the launcher panicked {PANICS_MAX} times: the job cannot be watched any more");
    let _ = urgent.send(Input::Requested(Request::Stop { reason, grace: None })).await;
}

/// Lists, then watches from there; a stale cursor or a lost connection means: list again.
async fn list_and_watch(launcher: Arc<dyn Launcher>, urgent: mpsc::Sender<Input>) {
    loop {
        let error = match launcher.list().await {
            Ok(listing) => {
                let from = listing.revision;
                if urgent.send(Input::Listed(listing)).await.is_err() {
                    return;
                }
                let Some(error) = watch(launcher.as_ref(), from, &urgent).await else { return };
                error
            }
            Err(error) => error,
        };
        if error == LaunchError::Stale {
            tokio::time::sleep(RELIST_AFTER).await;
        } else {
            tracing::warn!(%error, "the launcher cannot be listed or watched; trying again");
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }
}

/// Passes changes on until the launcher fails; `None` when nobody listens any more.
async fn watch(launcher: &dyn Launcher, from: Revision, urgent: &mpsc::Sender<Input>) -> Option<LaunchError> {
    let mut at = from;
    loop {
        let (changes, next) = match launcher.watch(at).await {
            Ok(more) => more,
            Err(error) => return Some(error),
        };
        for change in changes {
            urgent.send(Input::Changed(change)).await.ok()?;
        }
        at = next;
    }
}
