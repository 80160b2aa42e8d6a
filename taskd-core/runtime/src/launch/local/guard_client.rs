//! The owner's end of the connection to the guard: one task that sends calls, receives answers and reports, and
//! reconnects when the guard is gone.
//!
//! It makes no decisions: calls are sent in the order of arrival, and reports are added to the history unchanged.

use super::builder::{GuardProgram, LocalError, LocalLauncherBuilder};
use super::deadline::SharedDeadline;
use super::guard_connect::{self, Connection, Past};
use super::guard_watch::{GuardWatch, Look};
use super::history::History;
use super::orders::Ground;
use super::orphan_exits;
use super::send_queue::Outgoing;
use super::tee::{Begin, Tee};
use super::workers::Workers;
use crate::job::printable;
use crate::launch::guard::wire::{Answer, Call, FromGuard, ProcReport, ToGuard, WireBatch};
use crate::launch::{GuardState, LaunchError, Phase};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

/// Maximum number of calls that wait to be sent.
const CALLS_MAX: usize = 64;
/// No further calls are accepted while more bytes than this wait to be sent.
const UNSENT_BYTES_MAX: usize = 1 << 20;

/// Interval between two attempts to start or reach a guard, if another supervisor was quicker.
const CONNECT_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Interval between two attempts to reach a guard that may exist.
const RECONNECT_EVERY: Duration = Duration::from_secs(1);

/// A call in transit, and the channel for its answer.
#[derive(Debug)]
struct Request {
    call: Call,
    reply: oneshot::Sender<Result<Answer, LaunchError>>,
    /// Number of orders to stop everything at the time of the call.
    ordered_at: u64,
}

/// The task's handle. If it is in charge, dropping it sends the guard the order to stop everything.
#[derive(Debug)]
pub(super) struct Link {
    requests: mpsc::Sender<Request>,
    outgoing: Arc<Outgoing>,
    /// True if something was started or stopped through this link, so that the running processes are its
    /// responsibility.
    in_charge: AtomicBool,
    /// Grace time for stopping everything when this link is dropped: the value set last.
    grace: Mutex<Duration>,
    pub(super) history: Arc<History>,
    pub(super) workers: Arc<Workers>,
    /// Deadline of the processes.
    pub(super) deadline: Arc<SharedDeadline>,
    /// Printer of the processes' output, if enabled.
    pub(super) tee: Option<Arc<Tee>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        if *self.in_charge.get_mut() {
            let grace = *self.grace.get_mut().unwrap_or_else(PoisonError::into_inner);
            self.outgoing.say_now(&ToGuard::Dropped { grace });
        }
        self.outgoing.disconnect();
        self.task.abort();
    }
}

impl Link {
    /// Connects, and returns when the guard's whole state is in the history.
    pub(super) async fn open(config: LocalLauncherBuilder, ground: &Ground) -> Result<Link, LocalError> {
        let connection = connect(&config, Past::default).await?;
        let tee = config.tee.then(|| Tee::start(config.run_dir.clone())).transpose().map_err(LocalError::Tee)?;
        let tee = tee.map(Arc::new);
        let history = Arc::new(History::new(connection.job.clone(), ground.node.clone(), ground.slots));
        let workers = Workers::new(Arc::clone(&history));
        let (requests, received) = mpsc::channel(CALLS_MAX);
        let (synced, when_synced) = oneshot::channel();
        let (outgoing, grace) = (Arc::<Outgoing>::default(), Mutex::new(config.drop_grace));
        let deadline = Arc::<SharedDeadline>::default();
        let task = Task {
            config,
            outgoing: Arc::clone(&outgoing),
            history: Arc::clone(&history),
            workers: Arc::clone(&workers),
            deadline: Arc::clone(&deadline),
            tee: tee.clone(),
            requests: received,
            synced: Some(synced),
            waiting: BTreeMap::new(),
            next_id: 0,
            last_call: None,
            guard: None,
            killed_for: None,
            warm: None,
            door_is_new: false,
        };
        let task = tokio::spawn(task.run(connection));
        let in_charge = AtomicBool::new(false);
        let link = Link { requests, outgoing, in_charge, grace, history, workers, deadline, tee, task };
        let lost = |_| LocalError::Guard("it ended before it had listed its processes".into());
        when_synced.await.map_err(lost)?;
        link.workers.until_back().await;
        Ok(link)
    }

    /// Sends a call and waits for its answer. A call that was sent is carried out even if the caller stops waiting.
    pub(super) async fn call(&self, call: Call) -> Result<Answer, LaunchError> {
        let (reply, answer) = oneshot::channel();
        let over = || self.history.why_over().unwrap_or_else(|| unreachable("the guard's connection was closed"));
        if matches!(call, Call::Start(_) | Call::Stop { .. }) {
            self.in_charge.store(true, Ordering::Relaxed);
        }
        let ordered_at = self.outgoing.wound_down();
        self.requests.send(Request { call, reply, ordered_at }).await.map_err(|_| over())?;
        answer.await.map_err(|_| over())?
    }

    /// Sends the guard the order to stop everything, without waiting.
    pub(super) fn wind_down(&self, grace: Duration) {
        self.in_charge.store(true, Ordering::Relaxed);
        *self.grace.lock().unwrap_or_else(PoisonError::into_inner) = grace;
        self.outgoing.say_now(&ToGuard::WindDown { grace });
    }
}

/// Connects to the running guard, or to a new one that receives the `past`.
async fn connect(config: &LocalLauncherBuilder, past: impl Fn() -> Past) -> Result<Connection, LocalError> {
    let until = tokio::time::Instant::now() + guard_connect::GONE_WITHIN;
    loop {
        if let Some(connection) = guard_connect::attach(config).await? {
            return Ok(connection);
        }
        if let Some(connection) = guard_connect::start(config, &past()).await? {
            return Ok(connection);
        }
        if tokio::time::Instant::now() >= until {
            return Err(guard_connect::silent(config)); // another guard has it, and does not answer
        }
        tokio::time::sleep(CONNECT_AGAIN_AFTER).await;
    }
}

/// Serves control links as soon as the guard lends its listener; it was too busy to do so before.
async fn serve_when_lent(config: LocalLauncherBuilder, workers: Arc<Workers>) {
    if config.guard == GuardProgram::None {
        return; // there is no guard to borrow it from
    }
    loop {
        if let Some(listener) = guard_connect::workers_of(&config).await {
            return workers.serve(listener).await;
        }
    }
}

fn unreachable(text: &str) -> LaunchError {
    LaunchError::Unreachable(text.to_owned())
}

struct Task {
    config: LocalLauncherBuilder,
    history: Arc<History>,
    workers: Arc<Workers>,
    deadline: Arc<SharedDeadline>,
    tee: Option<Arc<Tee>>,
    requests: mpsc::Receiver<Request>,
    /// Channel that is notified when the history is complete.
    synced: Option<oneshot::Sender<()>>,
    /// Calls that were not answered yet.
    waiting: BTreeMap<u64, oneshot::Sender<Result<Answer, LaunchError>>>,
    next_id: u64,
    outgoing: Arc<Outgoing>,
    /// Number of the call whose answer ends the link, and the text that every later call gets.
    last_call: Option<(u64, &'static str)>,
    /// The watched guard, if it is a process of its own that is visible here.
    guard: Option<GuardWatch>,
    /// Reason why the guard was killed, if it was.
    killed_for: Option<String>,
    /// The last batch with standbys that was started or prepared; a new guard receives it again.
    warm: Option<WireBatch>,
    /// True if the guard has a new listener for control links.
    door_is_new: bool,
}

/// What follows after a connection ends.
enum Next {
    /// Connect to the guard again, if possible.
    Mend,
    /// Serve this connection, which was made to carry out a call.
    Serve(Connection),
    /// Stop serving; every further call returns this error.
    End(LaunchError),
}

impl Task {
    async fn run(mut self, connection: Connection) {
        let mut next = Next::Serve(connection);
        loop {
            next = match next {
                Next::Serve(mut connection) => {
                    let served = self.serve(&mut connection).await.unwrap_or(Next::Mend);
                    self.outgoing.disconnect();
                    served
                }
                Next::Mend => {
                    self.fail_calls();
                    match self.reconnect().await {
                        Ok(connection) => {
                            self.prepare(connection.is_new);
                            Next::Serve(connection)
                        }
                        Err(error @ (LocalError::Owned { .. } | LocalError::OtherJob { .. })) => {
                            Next::End(LaunchError::Superseded(error.to_string()))
                        }
                        Err(error) => self.do_without_guard(error).await,
                    }
                }
                Next::End(why) => {
                    self.history.end(why);
                    return self.fail_calls();
                }
            }
        }
    }

    /// Fails the calls that were sent over a closed connection.
    fn fail_calls(&mut self) {
        for reply in std::mem::take(&mut self.waiting).into_values() {
            let text = "the guard was gone before it answered: list the processes, then decide";
            let _ = reply.send(Err(self.history.why_over().unwrap_or_else(|| unreachable(text))));
        }
    }

    /// Makes a new guard keep the standbys that its predecessor kept, so that a restarted rank finds one.
    fn prepare(&mut self, is_new: bool) {
        if let Some(batch) = self.warm.clone().filter(|_| is_new) {
            let call = Call::Prepare { batch, in_loop: self.workers.in_loop() };
            self.ask(call);
        }
    }

    /// Sends a call of the link itself, which needs no result.
    fn ask(&mut self, call: Call) {
        let (reply, _) = oneshot::channel();
        self.send(Request { call, reply, ordered_at: self.outgoing.wound_down() });
    }

    /// Connects to the same guard, or to a new one. For a new one, the end of the old guard is reported first, and then
    /// the ends of the processes that died with it.
    async fn reconnect(&mut self) -> Result<Connection, LocalError> {
        if let Some(guard) = &mut self.guard
            && let Some(gone) = guard.ended(self.killed_for.take()).await
        {
            self.history.guard(gone);
        }
        let is_gone = self.guard.as_ref().is_some_and(|guard| matches!(guard.status().state, GuardState::Gone(_)));
        let this = &*self;
        let left = this.history.running();
        let connected = async {
            if is_gone {
                orphan_exits::are_over(&left).await; // these hold what the processes of a new guard need
            }
            loop {
                let connected = connect(&this.config, || {
                    this.history.lose_all();
                    this.history.past()
                });
                match connected.await {
                    // It is not proven that the guard is dead: its processes may be alive.
                    Err(error @ LocalError::Silent { .. }) => this.still_silent(&error).await,
                    Err(error @ LocalError::RunDir { .. }) if !is_gone => this.still_silent(&error).await,
                    done => return done,
                }
            }
        };
        let reported = async {
            orphan_exits::report(&self.history).await;
            std::future::pending().await
        };
        tokio::select! {
            biased;
            never = reported => never,
            connected = connected => connected,
        }
    }

    /// Reports a guard that cannot be reached and may still exist.
    async fn still_silent(&self, error: &LocalError) {
        if let Some(guard) = &self.guard {
            let state = GuardState::Silent(error.to_string());
            self.history.guard(guard.status().with_state(state));
        }
        tokio::time::sleep(RECONNECT_EVERY).await;
    }

    /// Begins to watch the guard of a connection.
    fn watch_guard(&mut self, connection: &mut Connection) {
        let known = self.guard.take().map(|guard| guard.status());
        let end = known.as_ref().and_then(|known| match &known.state {
            GuardState::Gone(end) => Some(end.clone()),
            _ => None,
        });
        let before =
            if connection.is_new { end.or(connection.before.take()) } else { known.and_then(|known| known.before) };
        let is_process = self.config.guard != GuardProgram::None;
        let watch = || GuardWatch::of(connection.guard_pid, self.history.node(), before, Instant::now());
        self.guard = if is_process { watch() } else { None };
        if let Some(guard) = &self.guard {
            self.history.guard(guard.status());
        }
    }

    /// Checks if the guard answers. `Some`: this connection is useless from now on.
    fn look_at_guard(&mut self) -> Option<Next> {
        let at_most = self.config.silent_guard_max;
        match self.guard.as_mut()?.look(Instant::now(), at_most) {
            Look::Well => None,
            Look::Ask => {
                self.ask(Call::Counters); // any answer is enough
                None
            }
            Look::Changed(status) => {
                self.history.guard(status);
                None
            }
            Look::Dead => Some(Next::Mend),
            Look::Overdue => {
                let guard = self.guard.as_ref()?;
                let pid = guard.status().pid;
                self.killed_for = Some(format!(
                    "guard {pid} had not answered for {at_most:?}, and was killed with all its processes"
                ));
                guard.kill();
                Some(Next::Mend)
            }
        }
    }

    /// Waits without a guard because none can be started: no process runs. Each start order tries again.
    async fn do_without_guard(&mut self, mut error: LocalError) -> Next {
        self.history.lose_all();
        while let Some(request) = self.requests.recv().await {
            let answer = match &request.call {
                Call::Start(_) => match self.reconnect().await {
                    Ok(connection) => {
                        self.send(request);
                        return Next::Serve(connection);
                    }
                    Err(now) => {
                        error = now;
                        Err(LaunchError::Unreachable(format!("there is no guard: {error}")))
                    }
                },
                Call::Counters | Call::Prepare { .. } => {
                    Err(LaunchError::Unreachable(format!("there is no guard: {error}")))
                }
                Call::Stop { .. }
                | Call::Acknowledge { .. }
                | Call::Fence { .. }
                | Call::Shutdown { .. }
                | Call::Detach { .. } => Ok(Answer::Done),
            };
            let _ = request.reply.send(answer); // the caller may have stopped waiting
        }
        Next::End(unreachable("the launcher was dropped"))
    }

    /// Serves one connection until it ends.
    async fn serve(&mut self, connection: &mut Connection) -> io::Result<Next> {
        self.outgoing.connect(&connection.stream)?;
        self.watch_guard(connection);
        self.deadline.begin_again();
        let mut serving = JoinSet::new(); // ends with the connection: a new owner serves them
        match connection.workers.take() {
            Some(listener) => drop(serving.spawn(Arc::clone(&self.workers).serve(listener))),
            None => drop(serving.spawn(serve_when_lent(self.config.clone(), Arc::clone(&self.workers)))),
        }
        let mut part = vec![0; 64 << 10];
        loop {
            while let Some(message) = connection.frames.next_message()? {
                if let Some(next) = self.receive(message) {
                    return Ok(next);
                }
            }
            if std::mem::take(&mut self.door_is_new)
                && let Some(listener) = guard_connect::workers_of(&self.config).await
            {
                serving.spawn(Arc::clone(&self.workers).serve(listener)); // a rank may wait on the old listener
            }
            if let Some(call) = self.deadline.next_call(self.next_id) {
                self.ask(call);
            }
            let unsent = self.outgoing.unsent();
            let look_at = self.guard.as_ref().map(GuardWatch::look_at);
            let interest = if unsent == 0 { Interest::READABLE } else { Interest::READABLE | Interest::WRITABLE };
            tokio::select! {
                biased;
                ready = connection.stream.ready(interest) => {
                    let ready = ready?;
                    if ready.is_readable() {
                        match connection.stream.try_read(&mut part) {
                            Ok(0) => return Ok(Next::Mend),
                            Ok(n) => connection.frames.push(&part[..n]),
                            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
                            Err(error) => return Err(error),
                        }
                    }
                    if ready.is_writable() {
                        match connection.stream.try_io(Interest::WRITABLE, || self.outgoing.flush()) {
                            Ok(()) => (),
                            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
                            Err(error) => return Err(error),
                        }
                    }
                }
                () = self.outgoing.added.notified() => (),
                () = self.deadline.changed.notified() => (),
                () = sleep_until(look_at.unwrap_or_else(Instant::now).into()), if look_at.is_some() => {
                    self.deadline.look(Instant::now());
                    if let Some(next) = self.look_at_guard() {
                        return Ok(next);
                    }
                }
                request = self.requests.recv(), if unsent < UNSENT_BYTES_MAX => match request {
                    Some(request) => self.send(request),
                    None => return Ok(Next::End(unreachable("the launcher was dropped"))),
                },
            }
        }
    }

    fn send(&mut self, request: Request) {
        let id = self.next_id;
        self.next_id += 1;
        match &request.call {
            Call::Start(batch) | Call::Prepare { batch, .. } => {
                self.warm = batch.with_standbys().or(self.warm.take());
            }
            Call::Shutdown { .. } => self.last_call = Some((id, "this launcher was shut down")),
            Call::Detach { .. } => self.last_call = Some((id, "this launcher has detached from its job")),
            _ => (),
        }
        match self.outgoing.add(id, request.call, request.ordered_at) {
            Ok(()) => drop(self.waiting.insert(id, request.reply)),
            Err(why) => drop(request.reply.send(Err(LaunchError::Refused(why.to_string())))), // its caller may be gone
        }
    }

    fn learn(&self, report: ProcReport, begin: Begin) {
        if let Some(tee) = self.tee.as_ref().filter(|_| report.phase == Phase::Running) {
            tee.follow(report.proc.clone(), begin);
        }
        self.history.learn(report);
    }

    fn receive(&mut self, message: FromGuard) -> Option<Next> {
        if let Some(back) = self.guard.as_mut().and_then(GuardWatch::received) {
            self.history.guard(back);
        }
        match message {
            FromGuard::Proc(report) => self.learn(*report, Begin::Now),
            FromGuard::Synced => drop(self.synced.take().map(|synced| synced.send(()))),
            FromGuard::Answer { id, answer } => {
                self.deadline.answered(id);
                if let Ok(Answer::Started(reports)) = &answer {
                    reports.iter().cloned().for_each(|report| self.learn(report, Begin::Start));
                }
                let last = self.last_call.filter(|(last, _)| *last == id && answer.is_ok());
                if let Some(reply) = self.waiting.remove(&id) {
                    let _ = reply.send(answer); // the caller may have stopped waiting
                }
                return last.map(|(_, why)| Next::End(unreachable(why)));
            }
            FromGuard::TakenOver { by_pid } => {
                let text = format!("process {by_pid} has taken this job over: this supervisor has released it");
                return Some(Next::End(LaunchError::Superseded(text)));
            }
            FromGuard::Notice(text) => tracing::warn!("{}", printable(&text)),
            FromGuard::Contained(text) => tracing::info!("{}", printable(&text)),
            FromGuard::Ending(end) => {
                let status = self.guard.as_mut().and_then(|guard| guard.announced_end(end));
                status.into_iter().for_each(|status| self.history.guard(status));
            }
            FromGuard::Standbys(ready) => self.history.has_standbys(ready),
            FromGuard::DoorIsNew => self.door_is_new = true,
            FromGuard::Welcome { .. } | FromGuard::Refused(_) => (),
        }
        None
    }
}
