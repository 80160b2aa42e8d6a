//! The owner's end of the connection to the guard: one task that sends calls, takes answers and news, and mends the
//! connection when the guard is gone.
//!
//! It decides nothing: calls go out in the order in which they come, news goes into the history as it is.

use super::builder::{GuardProgram, LocalError, LocalLauncherBuilder};
use super::deaths;
use super::guard_watch::{GuardWatch, Look};
use super::guards::{self, Connection, Past};
use super::history::History;
use super::orders::Ground;
use super::outgoing::Outgoing;
use super::tee::{Begin, Tee};
use super::workers::Workers;
use crate::job::printable;
use crate::launch::guard::wire::{Answer, Call, FromGuard, ProcReport, ToGuard, WireBatch};
use crate::launch::{GuardState, GuardStatus, LaunchError, Phase};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

/// Calls that may wait to be sent.
const CALLS_MAX: usize = 64;
/// While more bytes than this wait to be sent, no further calls are taken.
const UNSENT_BYTES_MAX: usize = 1 << 20;

/// Between two tries to start or reach a guard, where another supervisor was quicker.
const CONNECT_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Between two tries to reach a guard that may be there.
const RECONNECT_EVERY: Duration = Duration::from_secs(1);

/// A call on its way, and where its answer goes.
#[derive(Debug)]
struct Request {
    call: Call,
    reply: oneshot::Sender<Result<Answer, LaunchError>>,
    /// How often everything had been told to stop when it was ordered.
    ordered_at: u64,
}

/// The task's handle. Dropping it tells the guard to stop everything, if it is in charge.
#[derive(Debug)]
pub(super) struct Link {
    requests: mpsc::Sender<Request>,
    outgoing: Arc<Outgoing>,
    /// Something was started or stopped through it: what runs is ours.
    in_charge: AtomicBool,
    /// How long everything may take to stop when this is dropped: what was said last.
    grace: Mutex<Duration>,
    pub(super) history: Arc<History>,
    pub(super) workers: Arc<Workers>,
    /// What is printed of what processes print, where that is wanted.
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
    /// Connects, and returns when everything that the guard knows is in the history.
    pub(super) async fn open(config: LocalLauncherBuilder, ground: &Ground) -> Result<Link, LocalError> {
        let connection = connect(&config, Past::default).await?;
        let tee = config.tee.then(|| Tee::start(config.run_dir.clone())).transpose().map_err(LocalError::Tee)?;
        let tee = tee.map(Arc::new);
        let history = Arc::new(History::new(connection.job.clone(), ground.node.clone(), ground.slots));
        let workers = Workers::new(Arc::clone(&history));
        let (requests, received) = mpsc::channel(CALLS_MAX);
        let (synced, when_synced) = oneshot::channel();
        let (outgoing, grace) = (Arc::<Outgoing>::default(), Mutex::new(config.drop_grace));
        let task = Task {
            config,
            outgoing: Arc::clone(&outgoing),
            history: Arc::clone(&history),
            workers: Arc::clone(&workers),
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
        let link = Link { requests, outgoing, in_charge, grace, history, workers, tee, task };
        let lost = |_| LocalError::Guard("it ended before it had said what runs".into());
        when_synced.await.map_err(lost)?;
        link.workers.until_back().await;
        Ok(link)
    }

    /// Sends a call and waits for its answer. A call that was sent is carried out, whether or not anybody waits.
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

    /// Tells the guard to stop everything, without waiting for anybody.
    pub(super) fn wind_down(&self, grace: Duration) {
        self.in_charge.store(true, Ordering::Relaxed);
        *self.grace.lock().unwrap_or_else(PoisonError::into_inner) = grace;
        self.outgoing.say_now(&ToGuard::WindDown { grace });
    }
}

/// A connection to the guard that runs, or to a new one that is told of the `past`.
async fn connect(config: &LocalLauncherBuilder, past: impl Fn() -> Past) -> Result<Connection, LocalError> {
    let until = tokio::time::Instant::now() + guards::GONE_WITHIN;
    loop {
        if let Some(connection) = guards::attach(config).await? {
            return Ok(connection);
        }
        if let Some(connection) = guards::start(config, &past()).await? {
            return Ok(connection);
        }
        if tokio::time::Instant::now() >= until {
            return Err(guards::silent(config)); // another guard has the directory, and does not say so where it is looked for
        }
        tokio::time::sleep(CONNECT_AGAIN_AFTER).await;
    }
}

/// Serves control links as soon as the guard lends its listener, which it was too busy to do.
async fn serve_when_lent(config: LocalLauncherBuilder, workers: Arc<Workers>) {
    if config.guard == GuardProgram::None {
        return; // there is no guard to borrow it from
    }
    loop {
        if let Some(listener) = guards::workers_of(&config).await {
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
    tee: Option<Arc<Tee>>,
    requests: mpsc::Receiver<Request>,
    /// Told when the history is complete.
    synced: Option<oneshot::Sender<()>>,
    /// Calls without answer.
    waiting: BTreeMap<u64, oneshot::Sender<Result<Answer, LaunchError>>>,
    next_id: u64,
    outgoing: Arc<Outgoing>,
    /// The call whose answer is the last word, and what every later call is told.
    last_call: Option<(u64, &'static str)>,
    /// The guard, where it is a process of its own that is visible here.
    guard: Option<GuardWatch>,
    /// Why the guard was killed, if it was.
    killed_for: Option<String>,
    /// What was started, or prepared for, last of what has standbys: a guard that is new has to be told of it.
    warm: Option<WireBatch>,
    /// The guard has another listener for control links.
    door_is_new: bool,
}

/// How it goes on after a connection.
enum Next {
    /// With a new one, if there can be one.
    Mend,
    /// With this one, which was made for a call.
    Serve(Connection),
    /// Not at all, and what every further call answers.
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

    /// Calls that were sent over a connection that is gone.
    fn fail_calls(&mut self) {
        for reply in std::mem::take(&mut self.waiting).into_values() {
            let text = "the guard was gone before it answered: list what runs, then decide";
            let _ = reply.send(Err(self.history.why_over().unwrap_or_else(|| unreachable(text))));
        }
    }

    /// A new guard keeps standbys for what its predecessor did: whoever comes back finds one.
    fn prepare(&mut self, is_new: bool) {
        if let Some(batch) = self.warm.clone().filter(|_| is_new) {
            let call = Call::Prepare { batch, in_loop: self.workers.in_loop() };
            let (reply, _) = oneshot::channel(); // nobody waits for it
            self.send(Request { call, reply, ordered_at: self.outgoing.wound_down() });
        }
    }

    /// To the same guard, or to a new one; then what died with the old one is reported first, and before that, how that one has ended.
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
                deaths::are_over(&left).await; // a new guard would start others while these hold what those need
            }
            loop {
                let connected = connect(&this.config, || {
                    this.history.lose_all();
                    this.history.past()
                });
                match connected.await {
                    // Nothing proves that the guard is dead: what it guards may live.
                    Err(error @ LocalError::Silent { .. }) => this.still_silent(&error).await,
                    Err(error @ LocalError::RunDir { .. }) if !is_gone => this.still_silent(&error).await,
                    done => return done,
                }
            }
        };
        let told = async {
            deaths::tell(&self.history).await;
            std::future::pending().await
        };
        tokio::select! {
            biased;
            never = told => never,
            connected = connected => connected,
        }
    }

    /// The guard cannot be reached, and may be there.
    async fn still_silent(&self, error: &LocalError) {
        if let Some(guard) = &self.guard {
            let state = GuardState::Silent(error.to_string());
            self.history.guard(GuardStatus { state, ..guard.status() });
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

    /// Looks whether the guard answers. `Some`: this connection is of no use any more.
    fn look_at_guard(&mut self) -> Option<Next> {
        let at_most = self.config.silent_guard_max;
        match self.guard.as_mut()?.look(Instant::now(), at_most) {
            Look::Well => None,
            Look::Ask => {
                let (reply, _) = oneshot::channel(); // that it answers is enough
                self.send(Request { call: Call::Counters, reply, ordered_at: self.outgoing.wound_down() });
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
                    "guard {pid} had not answered for {at_most:?}, and was killed with all that it guarded"
                ));
                guard.kill();
                Some(Next::Mend)
            }
        }
    }

    /// There is no guard and none can be started: nothing runs. Each start tries again.
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
                Call::Stop { .. } | Call::Acknowledge { .. } | Call::Shutdown { .. } | Call::Detach { .. } => {
                    Ok(Answer::Done)
                }
            };
            let _ = request.reply.send(answer); // nobody may wait any more
        }
        Next::End(unreachable("the launcher was dropped"))
    }

    /// Serves one connection until it ends.
    async fn serve(&mut self, connection: &mut Connection) -> io::Result<Next> {
        self.outgoing.connect(&connection.stream)?;
        self.watch_guard(connection);
        let mut serving = JoinSet::new(); // ends with the connection: who takes over serves them
        match connection.workers.take() {
            Some(listener) => drop(serving.spawn(Arc::clone(&self.workers).serve(listener))),
            None => drop(serving.spawn(serve_when_lent(self.config.clone(), Arc::clone(&self.workers)))),
        }
        let mut part = vec![0; 64 << 10];
        loop {
            while let Some(message) = connection.frames.next()? {
                if let Some(next) = self.hear(message) {
                    return Ok(next);
                }
            }
            if std::mem::take(&mut self.door_is_new)
                && let Some(listener) = guards::workers_of(&self.config).await
            {
                serving.spawn(Arc::clone(&self.workers).serve(listener)); // beside the old one, in which a rank may wait
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
                () = sleep_until(look_at.unwrap_or_else(Instant::now).into()), if look_at.is_some() => {
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
            Err(why) => drop(request.reply.send(Err(LaunchError::Refused(why.to_string())))), // nobody may wait any more
        }
    }

    fn learn(&self, report: ProcReport, begin: Begin) {
        if let Some(tee) = self.tee.as_ref().filter(|_| report.phase == Phase::Running) {
            tee.follow(report.proc.clone(), begin);
        }
        self.history.learn(report);
    }

    fn hear(&mut self, message: FromGuard) -> Option<Next> {
        if let Some(back) = self.guard.as_mut().and_then(GuardWatch::heard) {
            self.history.guard(back);
        }
        match message {
            FromGuard::Proc(report) => self.learn(*report, Begin::Now),
            FromGuard::Synced => drop(self.synced.take().map(|synced| synced.send(()))),
            FromGuard::Answer { id, answer } => {
                if let Ok(Answer::Started(reports)) = &answer {
                    reports.iter().cloned().for_each(|report| self.learn(report, Begin::Start));
                }
                let last = self.last_call.filter(|(last, _)| *last == id && answer.is_ok());
                if let Some(reply) = self.waiting.remove(&id) {
                    let _ = reply.send(answer); // nobody may wait any more
                }
                return last.map(|(_, why)| Next::End(unreachable(why)));
            }
            FromGuard::TakenOver { by_pid } => {
                let text = format!("process {by_pid} has taken this job over: this one has left it alone");
                return Some(Next::End(LaunchError::Superseded(text)));
            }
            FromGuard::Notice(text) => tracing::warn!("{}", printable(&text)),
            FromGuard::Contained(text) => tracing::info!("{}", printable(&text)),
            FromGuard::Ending(end) => {
                let status = self.guard.as_mut().and_then(|guard| guard.said_that_it_ends(end));
                status.into_iter().for_each(|status| self.history.guard(status));
            }
            FromGuard::DoorIsNew => self.door_is_new = true,
            FromGuard::Welcome { .. } | FromGuard::Refused(_) => (),
        }
        None
    }
}
