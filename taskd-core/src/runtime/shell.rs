//! The loop: one input, one step of the kernel, its commands. It decides nothing.

use super::RuntimeBuilder;
use super::calls::{CALLS_MAX, Call, Orders, Query};
use super::carry::{Carrier, DETACH_WITHIN, FINISH_WITHIN};
use super::clock::{Calendar, JobClock, Pulse};
use super::handle::{Announcement, ControlError, EVENTS_KEPT, RuntimeHandle};
use super::log::{CLOSE_WITHIN, Log};
use super::news;
use super::output::OutputDirs;
use super::outset::Outset;
use super::past::Past;
use super::queues::FactQueues;
use super::sources::Sources;
use crate::job::{JobSpec, JobTime, Mode, Name, Policy};
use crate::journal::{Journal, Recovered};
use crate::kernel::{Checks, Command, Input, JobReport, Kernel, Mailbox, Outcome, Plugins, Start};
use crate::launch::{Change, Launcher};
use crate::recover::{Action, Beforehand};
use crate::secrets::Secrets;
use crate::trace::TraceSource;
use crate::trace::switches::TraceControl;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};
use tokio::time::sleep_until;

/// Changes, answers and requests that may wait for the kernel; then their senders wait.
const URGENT_MAX: usize = 1024;

/// Under this name stand the orders of a handle that says nothing else.
const HOST: Name = Name::new("host");

/// The longest that a job takes to be handed over (see [`RuntimeHandle::detach`]).
pub const HAND_OVER_WITHIN: Duration =
    Duration::from_secs(2 * FINISH_WITHIN.as_secs() + DETACH_WITHIN.as_secs() + CLOSE_WITHIN.as_secs());

/// A job and everything that keeps it training.
///
/// ```
/// use std::time::Duration;
/// use taskd_core::detect::{Damage, Fault, FaultClass, Suspect, detector};
/// use taskd_core::job::{JobSpec, Name, WorkerSpec};
/// use taskd_core::runtime::Runtime;
///
/// let error = Runtime::builder()
///     .job(JobSpec::new("demo", 0, WorkerSpec::new(["train"])))
///     .detector(detector("idle", |_, _, _| ()))
///     .build()
///     .unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "the runtime cannot be built: ranks must be 1 to 1048576; no launcher was given: add one with launcher(..); no \
///      strategy was given: add one with strategy(..)"
/// );
/// ```
pub struct Runtime {
    /// Without its secrets.
    spec: Arc<JobSpec>,
    secrets: Arc<Secrets>,
    sources: Vec<Box<dyn TraceSource>>,
    plugins: Plugins,
    launcher: Arc<dyn Launcher>,
    handle: RuntimeHandle,
    requests: mpsc::Receiver<Input>,
    calls: mpsc::Receiver<Call>,
    logs: Option<(Journal, Recovered)>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("job", &self.spec.name)
            .field("launcher", &self.launcher)
            .finish_non_exhaustive()
    }
}

impl Runtime {
    /// Starts to put a runtime together.
    #[must_use]
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    pub(super) fn assemble(
        (spec, secrets): (Arc<JobSpec>, Arc<Secrets>),
        sources: Vec<Box<dyn TraceSource>>,
        plugins: Plugins,
        launcher: Arc<dyn Launcher>,
        logs: Option<(Journal, Recovered)>,
        trace: Option<TraceControl>,
    ) -> Runtime {
        let (urgent, requests) = mpsc::channel(URGENT_MAX);
        let (events, _) = broadcast::channel(EVENTS_KEPT);
        let (calling, calls) = mpsc::channel(CALLS_MAX);
        let monitor = logs.as_ref().map(|(journal, _)| journal.monitor());
        let handle = RuntimeHandle { by: HOST, urgent, calls: calling, events, logs: monitor, trace };
        Runtime { spec, secrets, sources, plugins, launcher, handle, requests, calls, logs }
    }

    /// What the host program holds while the job runs.
    #[must_use]
    pub fn handle(&self) -> RuntimeHandle {
        self.handle.clone()
    }

    /// Runs the job to its end.
    ///
    /// Dropping the future ends the job too, but nobody waits for that: the launcher is told to
    /// [wind down](Launcher::wind_down) with the policy's grace time (the local launcher's guard then stops all ranks by
    /// itself), unless the job is only observed. To leave the job running, [`detach`](RuntimeHandle::detach) first. What becomes of it when this process is
    /// killed is the launcher's to say (the local launcher: its `OnOwnerLoss`).
    pub async fn run(self) -> JobReport {
        let mut shell = Shell::start(self);
        loop {
            match shell.next_call() {
                Some(Call::Detach { keep, reply }) => match shell.detach(keep).await {
                    Ok(()) => {
                        let reason = format!("handed over: the job runs on and waits {keep:?} for the next supervisor");
                        let report = shell.finish().await.left(Outcome::Detached, reason);
                        let _ = reply.send(Ok(())); // nobody may wait any more
                        return report;
                    }
                    Err(refusal) => drop(reply.send(Err(refusal))),
                },
                Some(Call::Kernel(query)) => shell.answer(query),
                None => {}
            }
            if let Some(by) = shell.superseded.take() {
                tracing::warn!("this supervisor ends: {by}");
                return shell.finish().await.left(Outcome::Superseded, by);
            }
            match shell.next_input() {
                Some((now, input)) => {
                    if shell.step(now, input).await {
                        return shell.finish().await;
                    }
                }
                None => shell.wait().await,
            }
        }
    }

    /// Runs the job to its end, and ends it in order when `stop` resolves, with what it resolves to as the reason.
    pub async fn run_until<R: Into<String>>(self, stop: impl Future<Output = R>) -> JobReport {
        let handle = self.handle();
        let mut run = pin!(self.run());
        tokio::select! {
            biased;
            report = &mut run => report,
            reason = stop => {
                let (report, ()) = tokio::join!(run, handle.stop(reason));
                report
            }
        }
    }
}

/// A running job.
struct Shell {
    /// On the heap: the futures of host programs hold this.
    kernel: Box<Kernel>,
    mailbox: Mailbox,
    clock: JobClock,
    pulse: Pulse,
    calendar: Calendar,
    output: OutputDirs,
    queues: Arc<FactQueues>,
    sources: Sources,
    carrier: Carrier,
    secrets: Arc<Secrets>,
    handle: RuntimeHandle,
    requests: mpsc::Receiver<Input>,
    calls: mpsc::Receiver<Call>,
    /// What was taken from `calls`.
    called: Option<Call>,
    orders: Orders,
    log: Option<Log>,
    outset: Outset,
    unattended: Unattended,
    /// Which supervisor has the job, once another one has.
    superseded: Option<String>,
}

/// Tells the launcher when the run is dropped before its end.
struct Unattended {
    launcher: Option<Arc<dyn Launcher>>,
    grace: Duration,
}

impl Unattended {
    /// What is only observed is somebody else's to stop.
    fn of(policy: &Policy, launcher: &Arc<dyn Launcher>) -> Unattended {
        let launcher = (policy.mode == Mode::Act).then(|| Arc::clone(launcher));
        Unattended { launcher, grace: policy.stop_grace }
    }
}

impl Drop for Unattended {
    fn drop(&mut self) {
        let Some(launcher) = self.launcher.take() else { return };
        let told = catch_unwind(AssertUnwindSafe(|| launcher.wind_down(self.grace)));
        if told.is_err() {
            tracing::error!("the launcher panicked when its job was dropped: see what is left of it");
        }
    }
}

impl Shell {
    fn start(runtime: Runtime) -> Shell {
        let Runtime { spec, secrets, sources, plugins, launcher, handle, requests, calls, logs } = runtime;
        let info = launcher.info();
        let meets_at = info.meets_at.clone();
        let job = Beforehand::of(Arc::clone(&spec)).meeting_at(meets_at.clone());
        let outset = Outset::tell(&plugins.strategies, job);
        let (past, log) = match logs {
            None => (Past::none(plugins), None),
            Some((journal, recovered)) => (Past::of(&recovered, plugins), Some(Log::new(journal))),
        };
        let clock = JobClock::from(past.now);
        let queues = Arc::new(FactQueues::new(clock));
        let output = OutputDirs::of(&info);
        if let Some(line) = output.in_words() {
            tracing::info!("{line}");
        }
        for guarantee in &info.goes_without {
            tracing::warn!(launcher = %info.name, "{guarantee}");
        }
        let pulse = Pulse::new(spec.policy.slept_over);
        let unattended = Unattended::of(&spec.policy, &launcher);
        let mut mailbox = Mailbox::new(Checks::default());
        let trace = handle.trace.as_ref().map(TraceControl::mode);
        mailbox.push(Input::Start(Box::new(Start { spec, trace, meets_at })));
        Shell {
            kernel: Box::new(past.kernel),
            mailbox,
            clock,
            pulse,
            calendar: Calendar::default(),
            output,
            sources: Sources::spawn(sources, &queues, &handle.urgent),
            carrier: Carrier::spawn(launcher, info.name, &secrets, &handle.urgent),
            queues,
            secrets,
            handle,
            requests,
            calls,
            called: None,
            orders: Orders::default(),
            log,
            outset,
            unattended,
            superseded: None,
        }
    }

    /// What the kernel should be given now, if anything, and at what time: all that has come in is in the mailbox first.
    fn next_input(&mut self) -> Option<(JobTime, Input)> {
        if let Some(slept) = self.pulse.turn() {
            tracing::warn!(?slept, "the supervisor did not run for a while; nobody is blamed for that time");
            let nanos = u64::try_from(slept.as_nanos()).unwrap_or(u64::MAX);
            self.mailbox.push_first(Input::Slept { nanos });
        }
        if let Some(unix_ms) = self.calendar.turn() {
            self.mailbox.push(Input::WallClock { unix_ms });
        }
        while let Ok(input) = self.requests.try_recv() {
            self.mailbox.push(input);
        }
        if !self.mailbox.has_facts()
            && let Some((arrived, facts)) = self.queues.pop()
        {
            self.mailbox.push_facts(arrived, facts);
        }
        self.mailbox.next(self.clock.now(), self.kernel.deadline())
    }

    /// Waits until something comes in, a deadline is due, or it is time to look at the clock.
    async fn wait(&mut self) {
        let mut wake = self.pulse.next_turn();
        if let Some(deadline) = self.kernel.deadline() {
            wake = wake.min(self.clock.instant(deadline));
        }
        tokio::select! {
            biased; // a fixed order: the same run twice is the same run
            input = self.requests.recv() => self.mailbox.extend(input),
            call = self.calls.recv() => self.called = call,
            by = self.carrier.superseded() => self.superseded = Some(by),
            () = self.queues.filled() => {}
            () = sleep_until(wake) => {}
        }
    }

    /// What a handle asks, if one does.
    fn next_call(&mut self) -> Option<Call> {
        self.called.take().or_else(|| self.calls.try_recv().ok())
    }

    /// Answers a question at once; an order is answered by the kernel.
    fn answer(&mut self, query: Query) {
        let order = self.orders.take(query, &self.kernel, &self.output);
        self.mailbox.extend(order);
    }

    /// Hands the processes over. What comes in meanwhile is not decided on: after a refusal it is as late as it is, and
    /// the next supervisor is told of it by the launcher.
    async fn detach(&mut self, keep: Duration) -> Result<(), ControlError> {
        let Shell { carrier, requests, mailbox, .. } = self;
        let mut detaching = pin!(carrier.detach(keep));
        loop {
            tokio::select! {
                biased;
                result = &mut detaching => return result.map_err(|error| ControlError::Refused(error.to_string())),
                input = requests.recv() => mailbox.extend(input), // answers must not wait for us
            }
        }
    }

    /// One step of the kernel: logged, then carried out. True: it was the last one.
    async fn step(&mut self, now: JobTime, mut input: Input) -> bool {
        self.secrets.mask(&mut input);
        let commands = self.kernel.step(now, &input);
        match &input {
            Input::Listed(listing) => {
                self.outset.hosts_are_known(self.kernel.strategies(), self.kernel.view().nodes.len());
                listing.links.iter().for_each(|status| self.outset.rank_says(status));
            }
            Input::Changed(Change::Link(status)) => {
                self.outset.rank_says(status);
                self.outset.look_at_replicas(self.kernel.view());
            }
            Input::Ordered(_) => self.kernel.last_order().map(news::of_order).into_iter().for_each(news::log),
            _ => {}
        }
        let written = self.log.as_mut().and_then(|log| log.write(&self.kernel, now, &input, &commands));
        if let Some(written) = written {
            written.await;
        }
        let mut over = false;
        for command in commands {
            over |= matches!(command.action, Action::Finish { .. });
            self.dispatch(now, command);
        }
        tokio::task::consume_budget().await; // a flood of facts must not starve the host program's other tasks
        over
    }

    /// The job is over: sources hand on what they have, the launcher takes its last commands, the logs are written to
    /// their end.
    async fn finish(self) -> JobReport {
        let Shell { kernel, sources, carrier, log, mut unattended, output, .. } = self;
        unattended.launcher = None;
        sources.close().await;
        carrier.finish().await;
        if let Some(log) = log {
            log.finish().await;
        }
        output.in_report(kernel.report())
    }

    fn dispatch(&mut self, now: JobTime, command: Command) {
        match command.action {
            Action::Announce(event) => {
                tracing::debug!(?event, "announced");
                news::of(&event, &self.kernel, &self.output).into_iter().for_each(news::log);
                let announcement = Announcement { at: now, wall: self.kernel.wall(now), event: *event };
                let _ = self.handle.events.send(Arc::new(announcement)); // nobody listens: nobody misses it
            }
            Action::Collect(ask) => self.sources.collect(command.id, &ask),
            Action::Start { .. } | Action::Stop { .. } | Action::Acknowledge(_) | Action::Direct(_) => {
                self.carrier.give(command);
            }
            Action::Reply { order, result } => self.orders.reply(order, result),
            Action::Switch { kinds, by, again } => self.handle.switch(kinds, by, again),
            Action::Enter(_) | Action::Cordon { .. } => {} // the kernel's own; processes learn of their world at their start
            Action::Finish { ok, reason } => {
                let output = self.output.in_words().map(|line| format!("; {line}")).unwrap_or_default();
                tracing::info!(ok, %reason, "the job is over{output}");
            }
        }
    }
}
