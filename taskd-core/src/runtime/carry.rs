//! Commands to the launcher, in the order in which they were given, and its answers and changes back.
//!
//! In order, because a stop that overtakes its start would leave a process that nobody wants. Here alone an order gets the job's
//! secrets, which neither kernel nor log has: a launcher gets whole orders, or none.

use crate::job::{CommandId, Domain, Name, ProcId, Role, printable};
use crate::kernel::{Command, Input, Request};
use crate::launch::{LaunchError, Launcher, Revision};
use crate::recover::{Action, Failure, Output};
use crate::secrets::Secrets;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Commands that may wait for the launcher; further ones are answered "unreachable" at once.
pub const LAUNCHER_QUEUE_MAX: usize = 4096;

/// How long to wait before a launcher that could not be reached is asked again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// How long to wait before a stale cursor is followed by another listing: a launcher whose history is always gone must
/// not keep us busy.
const RELIST_AFTER: Duration = Duration::from_millis(5);

/// How long the end of a job waits for the launcher to take its last commands.
pub(super) const FINISH_WITHIN: Duration = Duration::from_secs(1);

/// How long the launcher may take to hand its processes over.
pub(super) const DETACH_WITHIN: Duration = Duration::from_secs(5);

/// Panics while being watched after which a launcher is given up.
const PANICS_MAX: u32 = 16;

/// The launcher's side of the shell.
pub(super) struct Carrier {
    orders: mpsc::Sender<Order>,
    launcher: Called,
    carrying: JoinSet<()>,
    following: JoinSet<()>,
    others: JoinSet<()>, // all ended when this is dropped: nothing outlives the shell
    superseded: mpsc::Receiver<String>,
}

/// What waits for the launcher.
#[derive(Debug)]
enum Order {
    Command(Box<Command>),
    /// Told when everything before it was carried out.
    Mark(oneshot::Sender<()>),
}

impl Carrier {
    /// `name` is the launcher's; it is not asked for it again, in tasks that must not panic with it.
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

    /// Which supervisor has the job, once another one has.
    pub(super) async fn superseded(&mut self) -> String {
        match self.superseded.recv().await {
            Some(by) => by,
            None => std::future::pending().await, // there is a sender as long as there is a carrier
        }
    }

    /// Hands the processes over to a later owner, after the launcher has taken what was given to it, within a bound. On an
    /// error everything goes on as before. Meanwhile somebody must take answers in.
    pub(super) async fn detach(&mut self, keep: Duration) -> Result<(), LaunchError> {
        let (mark, reached) = oneshot::channel();
        let given = async {
            let sent = self.orders.send(Order::Mark(mark)).await;
            sent.is_ok() && reached.await.is_ok()
        };
        if !timeout(FINISH_WITHIN, given).await.unwrap_or(false) {
            tracing::warn!("the launcher has not taken all commands yet; the next supervisor gives them again");
        }
        self.following.shutdown().await; // nobody follows what belongs to nobody
        let result = self.launcher.detach(keep).await;
        if result.is_err() {
            self.following.spawn(follow(self.launcher.clone()));
        }
        result
    }

    /// Lets the launcher take what was given: an exit that is not acknowledged is told to the next owner again.
    pub(super) async fn finish(self) {
        let Carrier { orders, mut carrying, .. } = self;
        drop(orders);
        let _ = timeout(FINISH_WITHIN, carrying.join_next()).await; // too slow: it is told again
    }

    /// Passes a start, a stop or an acknowledgement on.
    pub(super) fn give(&mut self, command: Command) {
        let order = Order::Command(Box::new(command));
        if let Err(mpsc::error::TrySendError::Full(Order::Command(command))) = self.orders.try_send(order) {
            let why = format!("the launcher has not kept up: {LAUNCHER_QUEUE_MAX} commands wait for it");
            let results = answers(&command.action, &Err(Failure::Unreachable(why)));
            let (urgent, id) = (self.launcher.urgent.clone(), command.id);
            self.others.spawn(async move {
                let _ = urgent.send(Input::Answered { id, results }).await;
            });
        }
    }
}

/// A launcher, and where what it does is told.
#[derive(Clone)]
struct Called {
    launcher: Arc<dyn Launcher>,
    name: Name,
    secrets: Arc<Secrets>,
    urgent: mpsc::Sender<Input>,
    /// Receives a sentence when another supervisor has taken the job over.
    superseded: mpsc::Sender<String>,
}

impl Called {
    /// Notes a failure against the launcher. An error: nobody listens any more.
    async fn blame(&self, what: &str) -> Result<(), ()> {
        let failed = Request::PluginFailed { plugin: self.name.clone(), what: what.to_owned() };
        self.urgent.send(Input::Requested(failed)).await.map_err(drop)
    }

    /// In a task of its own, as every call.
    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        let launcher = Arc::clone(&self.launcher);
        let mut inner = JoinSet::new();
        inner.spawn(async move { launcher.detach(keep).await });
        match timeout(DETACH_WITHIN, inner.join_next()).await {
            Ok(Some(Ok(result))) => result,
            Ok(_) => Err(LaunchError::Unreachable("it panicked when it was to detach".into())),
            Err(_) => Err(LaunchError::Unreachable(format!("it did not detach within {DETACH_WITHIN:?}"))),
        }
    }
}

async fn carry_out(called: Called, mut waiting: mpsc::Receiver<Order>) {
    while let Some(order) = waiting.recv().await {
        let Command { id, action, .. } = match order {
            Order::Command(command) => *command,
            Order::Mark(reached) => {
                let _ = reached.send(()); // nobody may wait any more
                continue;
            }
        };
        let result = call(&called, id, action.clone()).await;
        let results = answers(&action, &result);
        if !results.is_empty() && send(&called.urgent, id, results).await.is_err() {
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
async fn call(called: &Called, id: CommandId, action: Action) -> Result<Output, Failure> {
    let (launcher, secrets) = (Arc::clone(&called.launcher), Arc::clone(&called.secrets));
    let mut inner = JoinSet::new();
    inner.spawn(async move {
        match action {
            Action::Start { batch, .. } => match secrets.put_back(&batch) {
                Ok(whole) => launcher.start(&whole).await,
                Err(missing) => Err(LaunchError::Refused(missing.to_string())),
            },
            Action::Stop { procs, grace, .. } => launcher.stop(&procs, grace).await,
            Action::Acknowledge(proc) => launcher.acknowledge(&[proc]).await,
            Action::Direct(batch) => launcher.direct(id, &batch).await,
            _ => Ok(()),
        }
    });
    match inner.join_next().await {
        Some(Ok(Ok(()))) => Ok(Output::Accepted),
        Some(Ok(Err(LaunchError::Refused(why)))) => Err(Failure::Refused(printable(&why).into_owned())),
        Some(Ok(Err(other))) => Err(Failure::Unreachable(printable(&other.to_string()).into_owned())),
        _ => {
            let _ = called.blame("it panicked in a call").await; // nobody listens: the job is over
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
        Action::Direct(batch) => batch.orders.iter().map(|(proc, _)| answer(&proc.role)).collect(),
        _ => Vec::new(),
    }
}

/// Follows the launcher for as long as the job runs. A launcher that panics is asked again, within a bound.
async fn follow(called: Called) {
    for _ in 0..PANICS_MAX {
        let mut inner = JoinSet::new(); // ends with us
        inner.spawn(list_and_watch(Arc::clone(&called.launcher), called.urgent.clone()));
        match inner.join_next().await {
            Some(Ok(Some(by))) => return drop(called.superseded.send(by).await), // nobody listens: the job is over
            Some(Err(error)) if error.is_panic() => (),
            _ => return,
        }
        if called.blame("it panicked while it was watched").await.is_err() {
            return;
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
    let reason = format!("the launcher panicked {PANICS_MAX} times: the job cannot be watched any more");
    let _ = called.urgent.send(Input::Requested(Request::Stop { reason, grace: None })).await;
}

/// Lists, then watches from there; a stale cursor or a lost connection means: list again. It ends when nobody listens any more, or when
/// another supervisor has the job, which it says.
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
                tracing::warn!(%error, "the launcher cannot be listed or watched; trying again");
                tokio::time::sleep(RETRY_AFTER).await;
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Generation;
    use crate::launch::MockLauncher;

    fn stop(id: u64) -> Command {
        let action = Action::Stop { procs: vec![ProcId::rank(0, 1)], grace: Duration::ZERO, exact: true };
        Command { id: CommandId(id), generation: Generation(1), incident: None, action }
    }

    /// The next answer: to which command, and how it went.
    async fn answer(inputs: &mut mpsc::Receiver<Input>) -> (CommandId, Result<Output, Failure>) {
        loop {
            match inputs.recv().await {
                Some(Input::Answered { id, mut results }) => return (id, results.remove(0).1),
                Some(_) => {}
                None => panic!("nobody answers any more"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_launcher_that_panics_wherever_it_can_is_called_again_and_every_command_answered() {
        let launcher = MockLauncher::new(); // which expects nothing: every call of it panics
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
