//! Sends commands to the launcher in the order of issue, and returns its answers and changes.
//!
//! The order matters, because a stop that overtakes its start would leave an unwanted process. Secrets are inserted
//! into start orders only here; kernel and log never contain them. A launcher receives an order with all its secrets,
//! or not at all.

use crate::job::{CommandId, Domain, Name, ProcId, Role, printable};
use crate::kernel::Effect;
use crate::kernel::{Command, Input, Request};
use crate::launch::{LaunchError, Launcher, Revision};
use crate::recover::{Action, Failure, TargetReply};
use crate::secrets::Secrets;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Maximum number of commands of a supervisor that wait for its launcher at one time. A further command fails
/// immediately, as if the launcher were unreachable.
pub const LAUNCHER_QUEUE_MAX: usize = 4096;

/// Delay before an unreachable launcher is called again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Delay before listing again after a stale cursor. Prevents a busy loop if a launcher always lacks history.
const RELIST_AFTER: Duration = Duration::from_millis(5);

/// Time that the end of a job waits for the launcher to take its last commands.
pub(super) const FINISH_WITHIN: Duration = Duration::from_secs(1);

/// Time limit for the launcher to hand its processes over.
pub(super) const DETACH_WITHIN: Duration = Duration::from_secs(5);

/// Panics of a launcher while it is watched, after which the job is stopped.
const PANICS_MAX: u32 = 16;

/// The shell's connection to the launcher, and its tasks.
pub(super) struct Carrier {
    orders: mpsc::Sender<Order>,
    launcher: Called,
    carrying: JoinSet<()>,
    following: JoinSet<()>,
    others: JoinSet<()>, // dropping the shell ends all of them
    superseded: mpsc::Receiver<String>,
}

/// Entry of the launcher's queue.
#[derive(Debug)]
enum Order {
    Command(Box<Command>),
    /// Notified when all orders before it have been carried out.
    Mark(oneshot::Sender<()>),
}

impl Carrier {
    /// Starts the tasks. `name` is the launcher's; it is passed in, because asking the launcher in a task could panic.
    pub(super) fn spawn(
        launcher: Arc<dyn Launcher>,
        name: Name,
        secrets: &Arc<Secrets>,
        urgent: &mpsc::Sender<Input>,
    ) -> Carrier {
        let (orders, waiting) = mpsc::channel(LAUNCHER_QUEUE_MAX);
        let (mut carrying, mut following) = (JoinSet::new(), JoinSet::new());
        let (superseding, superseded) = mpsc::channel(1);
        let secrets = Arc::clone(secrets);
        let launcher = Called { launcher, name, secrets, urgent: urgent.clone(), superseded: superseding };
        carrying.spawn(carry_out(launcher.clone(), waiting));
        following.spawn(follow(launcher.clone()));
        Carrier { orders, launcher, carrying, following, others: JoinSet::new(), superseded }
    }

    /// Waits until another supervisor has taken the job over, and returns its description.
    pub(super) async fn superseded(&mut self) -> String {
        match self.superseded.recv().await {
            Some(by) => by,
            None => std::future::pending().await, // cannot happen: the carrier holds a sender
        }
    }

    /// Hands the processes over to a later owner, after the launcher has taken all earlier commands.
    ///
    /// Each of the two steps has a time limit. If the launcher has not taken all commands in time, a warning is logged
    /// and the next supervisor issues them again. On an error the launcher is followed as before. The caller must keep
    /// receiving answers meanwhile.
    pub(super) async fn detach(&mut self, keep: Duration) -> Result<(), LaunchError> {
        let (mark, reached) = oneshot::channel();
        let given = async {
            let sent = self.orders.send(Order::Mark(mark)).await;
            sent.is_ok() && reached.await.is_ok()
        };
        if !timeout(FINISH_WITHIN, given).await.unwrap_or(false) {
            tracing::warn!("the launcher has not accepted all commands yet; the next supervisor sends them again");
        }
        self.following.shutdown().await; // a job without an owner is not followed
        let result = self.launcher.detach(keep).await;
        if result.is_err() {
            self.following.spawn(follow(self.launcher.clone()));
        }
        result
    }

    /// Lets the launcher take all earlier commands. An unacknowledged exit is reported to the next owner again.
    pub(super) async fn finish(self) {
        let Carrier { orders, mut carrying, .. } = self;
        drop(orders);
        let _ = timeout(FINISH_WITHIN, carrying.join_next()).await; // too slow: the exit is reported again
    }

    /// Queues a start, a stop, an acknowledgement or directives.
    pub(super) fn give(&mut self, command: Command) {
        let order = Order::Command(Box::new(command));
        if let Err(mpsc::error::TrySendError::Full(Order::Command(command))) = self.orders.try_send(order) {
            let why = format!("the launcher has not kept up: {LAUNCHER_QUEUE_MAX} commands wait for it");
            let results = answers(&command.effect, &Err(Failure::Unreachable(why)));
            let (urgent, id) = (self.launcher.urgent.clone(), command.id);
            self.others.spawn(async move {
                let _ = urgent.send(Input::Answered { id, results }).await;
            });
        }
    }
}

/// A launcher, with the channels for its results.
#[derive(Clone)]
struct Called {
    launcher: Arc<dyn Launcher>,
    name: Name,
    secrets: Arc<Secrets>,
    urgent: mpsc::Sender<Input>,
    /// Channel that receives a description of the other supervisor when one has taken the job over.
    superseded: mpsc::Sender<String>,
}

impl Called {
    /// Reports a failure of the launcher to the kernel. Returns an error if the shell has ended.
    async fn blame(&self, what: &str) -> Result<(), ()> {
        let failed = Request::PluginFailed { plugin: self.name.clone(), what: what.to_owned() };
        self.urgent.send(Input::Requested(failed)).await.map_err(drop)
    }

    /// Makes a call in a task of its own, so that a panic of the launcher ends only the call. Returns `None` after a panic.
    async fn apart<T, F>(&self, call: impl FnOnce(Arc<dyn Launcher>) -> F) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let mut inner = JoinSet::new();
        inner.spawn(call(Arc::clone(&self.launcher)));
        match inner.join_next().await {
            Some(Ok(result)) => Some(result),
            _ => {
                let _ = self.blame("it panicked in a call").await; // closed: the job is over
                None
            }
        }
    }

    /// Calls the launcher's `detach`, in a task of its own like every call.
    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        let launcher = Arc::clone(&self.launcher);
        let mut inner = JoinSet::new();
        inner.spawn(async move { launcher.detach(keep).await });
        match timeout(DETACH_WITHIN, inner.join_next()).await {
            Ok(Some(Ok(result))) => result,
            Ok(_) => Err(LaunchError::Unreachable("it panicked in `detach`".into())),
            Err(_) => Err(LaunchError::Unreachable(format!("it did not detach within {DETACH_WITHIN:?}"))),
        }
    }
}

async fn carry_out(called: Called, mut waiting: mpsc::Receiver<Order>) {
    let mut next = None;
    loop {
        let order = match next.take() {
            Some(order) => Some(order),
            None => waiting.recv().await,
        };
        let Command { id, effect, .. } = match order {
            None => return,
            Some(Order::Command(command)) => *command,
            Some(Order::Mark(reached)) => {
                let _ = reached.send(()); // the caller may have gone
                continue;
            }
        };
        if let Effect::Acknowledge(proc) = effect {
            let exits = acknowledgements(proc, &mut waiting, &mut next);
            // An exit is reported until an acknowledgement succeeds.
            let _ = called.apart(|launcher| async move { launcher.acknowledge(&exits).await }).await;
            continue;
        }
        let result = call(&called, id, effect.clone()).await;
        let results = answers(&effect, &result);
        if !results.is_empty() && send(&called.urgent, id, results).await.is_err() {
            return;
        }
    }
}

async fn send(
    urgent: &mpsc::Sender<Input>,
    id: CommandId,
    results: Vec<(Domain, Result<TargetReply, Failure>)>,
) -> Result<(), ()> {
    urgent.send(Input::Answered { id, results }).await.map_err(|_| ())
}

/// Carries out one command.
async fn call(called: &Called, id: CommandId, effect: Effect) -> Result<TargetReply, Failure> {
    let secrets = Arc::clone(&called.secrets);
    let result = called.apart(|launcher| async move {
        match effect {
            Effect::Act(Action::Start { batch, .. }) => match secrets.put_back(&batch) {
                Ok(whole) => launcher.start(&whole).await,
                Err(missing) => Err(LaunchError::Refused(missing.to_string())),
            },
            Effect::Act(Action::Stop { procs, grace, .. }) => launcher.stop(&procs, grace).await,
            Effect::Act(Action::SendDirectives(batch)) => launcher.send_directives(id, &batch).await,
            _ => Ok(()),
        }
    });
    match result.await {
        Some(Ok(())) => Ok(TargetReply::Accepted),
        Some(Err(LaunchError::Refused(why))) => Err(Failure::Refused(printable(&why).into_owned())),
        Some(Err(other)) => Err(Failure::Unreachable(printable(&other.to_string()).into_owned())),
        None => Err(Failure::Unreachable("the launcher panicked".into())),
    }
}

/// Returns the exit `first` and those of the acknowledgements that follow it in the queue: one call for all. `next` is
/// the first order after them.
fn acknowledgements(first: ProcId, waiting: &mut mpsc::Receiver<Order>, next: &mut Option<Order>) -> Vec<ProcId> {
    let mut exits = vec![first];
    while let Ok(order) = waiting.try_recv() {
        match order {
            Order::Command(command) if matches!(command.effect, Effect::Acknowledge(_)) => {
                if let Effect::Acknowledge(proc) = command.effect {
                    exits.push(proc);
                }
            }
            other => {
                *next = Some(other);
                break;
            }
        }
    }
    exits
}

/// Returns one result per process of the command. Acknowledgements have none: an exit is reported until one succeeds.
fn answers(effect: &Effect, result: &Result<TargetReply, Failure>) -> Vec<(Domain, Result<TargetReply, Failure>)> {
    let answer = |role: &Role| (Domain::Process(role.clone()), result.clone());
    let of = |procs: &[ProcId]| procs.iter().map(|p| answer(&p.role)).collect();
    match effect {
        Effect::Act(Action::Start { batch, .. }) => batch.starts.iter().map(|o| answer(&o.proc.role)).collect(),
        Effect::Act(Action::Stop { procs, .. }) => of(procs),
        Effect::Act(Action::SendDirectives(batch)) => {
            batch.directives.iter().map(|(proc, _)| answer(&proc.role)).collect()
        }
        _ => Vec::new(),
    }
}

/// Follows the launcher for as long as the job runs. After a panic it starts again, up to [`PANICS_MAX`] times.
async fn follow(called: Called) {
    for _ in 0..PANICS_MAX {
        let mut inner = JoinSet::new(); // dropping this task aborts it
        inner.spawn(list_and_watch(Arc::clone(&called.launcher), called.urgent.clone()));
        match inner.join_next().await {
            Some(Ok(Some(by))) => return drop(called.superseded.send(by).await), // closed: the job is over
            Some(Err(error)) if error.is_panic() => (),
            _ => return,
        }
        if called.blame("it panicked in `list` or `watch`").await.is_err() {
            return;
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
    let reason = format!("the launcher panicked {PANICS_MAX} times: the job cannot be watched any more");
    let _ = called.urgent.send(Input::Requested(Request::Stop { reason, grace: None })).await;
}

/// Lists the launcher's processes, then watches from there. Lists again after a stale cursor or a lost connection.
///
/// Returns `None` if the shell has ended, or the description of another supervisor that has taken the job over.
async fn list_and_watch(launcher: Arc<dyn Launcher>, urgent: mpsc::Sender<Input>) -> Option<String> {
    loop {
        let error = match launcher.list().await {
            Ok(listing) => {
                let from = listing.revision;
                urgent.send(Input::Listed(listing)).await.ok()?;
                watch(launcher.as_ref(), from, &urgent).await?
            }
            Err(error) => error,
        };
        match error {
            LaunchError::Superseded(by) => return Some(by),
            LaunchError::Stale => tokio::time::sleep(RELIST_AFTER).await,
            error => {
                tracing::warn!(%error, "the launcher cannot be listed or watched; retrying");
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }
}

/// Passes changes on until the launcher fails. Returns its error, or `None` if the shell has ended.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Generation;
    use crate::launch::MockLauncher;

    fn stop(id: u64) -> Command {
        let effect = Effect::Act(Action::Stop { procs: vec![ProcId::rank(0, 1)], grace: Duration::ZERO, exact: true });
        Command { id: CommandId(id), generation: Generation(1), incident: None, effect }
    }

    /// Returns the next answer: the command's id and its result.
    async fn answer(inputs: &mut mpsc::Receiver<Input>) -> (CommandId, Result<TargetReply, Failure>) {
        loop {
            match inputs.recv().await {
                Some(Input::Answered { id, mut results }) => return (id, results.remove(0).1),
                Some(_) => {}
                None => panic!("the launcher does not answer any more"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_panicking_launcher_is_called_again_and_commands_are_answered() {
        let launcher = MockLauncher::new(); // expects no calls, so every call panics
        let (urgent, mut inputs) = mpsc::channel(64);
        let mut carrier = Carrier::spawn(Arc::new(launcher), Name::new("mock"), &Arc::default(), &urgent);
        for id in 1..=2 {
            carrier.give(stop(id));
            let answer = tokio::time::timeout(Duration::from_secs(60), answer(&mut inputs));
            let (answered, result) = answer.await.expect("an answer");
            assert_eq!((answered, result), (CommandId(id), Err(Failure::Unreachable("the launcher panicked".into()))));
        }
    }
}
