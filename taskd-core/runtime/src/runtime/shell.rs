//! Main loop: one input, one kernel step, the step's commands. The kernel makes all decisions.

use super::RuntimeBuilder;
use super::clock::{Calendar, JobClock, Pulse};
use super::handle::{ControlError, EVENTS_KEPT, RuntimeHandle, TimestampedEvent};
use super::host_records::{HostRecords, OpenHistory};
use super::launcher_task::{Carrier, DETACH_WITHIN, FINISH_WITHIN};
use super::log::{CLOSE_WITHIN, Log};
use super::news;
use super::output::OutputDirs;
use super::queries::{CALLS_MAX, Call, Orders, Query};
use super::queues::FactQueues;
use super::restore::Past;
use super::sources::Sources;
use super::startup_report::Outset;
use super::unattended::Unattended;
use crate::job::{JobSpec, JobTime, Name};
use crate::journal::{Journal, Recovered};
use crate::kernel::Effect;
use crate::kernel::{Checks, Command, Input, JobReport, Kernel, Mailbox, Outcome, Plugins, Resume, Start};
use crate::launch::{Change, Launcher};
use crate::recover::{Action, JobProfile};
use crate::secrets::Secrets;
use crate::trace::TraceSource;
use crate::trace::switches::TraceControl;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};
use tokio::time::sleep_until;

/// Changes, answers and requests that may wait for the kernel. Beyond that, their senders wait.
const URGENT_MAX: usize = 1024;

/// Default actor of a handle's orders.
const HOST: Name = Name::new("host");

/// Maximum duration of handing a job over to a later supervisor (see [`RuntimeHandle::detach`]).
pub const HAND_OVER_WITHIN: Duration =
    Duration::from_secs(2 * FINISH_WITHIN.as_secs() + DETACH_WITHIN.as_secs() + CLOSE_WITHIN.as_secs());

/// A job with its launcher, sources, detectors and strategies, ready to run.
///
/// ```
/// use std::time::Duration;
/// use taskd_core::detect::{Damage, Fault, FaultClass, Suspect, detector_fn};
/// use taskd_core::job::{JobSpec, Name, WorkerSpec};
/// use taskd_core::runtime::Runtime;
///
/// let error = Runtime::builder()
///     .job(JobSpec::new("demo", 0, WorkerSpec::new(["train"])))
///     .detector(detector_fn("idle", |_, _, _| ()))
///     .build()
///     .unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "the runtime cannot be built: ranks must be 1 to 1048576; no launcher was given: add one with launcher(..); no \
///      strategy was given: add one with strategy(..)"
/// );
/// ```
pub struct Runtime {
    /// The job, without its secrets.
    spec: Arc<JobSpec>,
    secrets: Arc<Secrets>,
    sources: Vec<Box<dyn TraceSource>>,
    plugins: Plugins,
    launcher: Arc<dyn Launcher>,
    handle: RuntimeHandle,
    requests: mpsc::Receiver<Input>,
    calls: mpsc::Receiver<Call>,
    logs: Option<(Journal, Recovered)>,
    history: Option<OpenHistory>,
    resume: Option<Resume>,
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
    /// Returns a builder, which takes the job, the launcher and the plugins of a runtime.
    #[must_use]
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    pub(super) fn assemble(
        (spec, secrets): (Arc<JobSpec>, Arc<Secrets>),
        sources: Vec<Box<dyn TraceSource>>,
        plugins: Plugins,
        launcher: Arc<dyn Launcher>,
        (logs, history, resume): (Option<(Journal, Recovered)>, Option<OpenHistory>, Option<Resume>),
        trace: Option<TraceControl>,
    ) -> Runtime {
        let (urgent, requests) = mpsc::channel(URGENT_MAX);
        let (events, _) = broadcast::channel(EVENTS_KEPT);
        let (calling, calls) = mpsc::channel(CALLS_MAX);
        let monitor = logs.as_ref().map(|(journal, _)| journal.monitor());
        let handle = RuntimeHandle { by: HOST, urgent, calls: calling, events, logs: monitor, trace };
        Runtime { spec, secrets, sources, plugins, launcher, handle, requests, calls, logs, history, resume }
    }

    /// Returns a handle, through which the host program controls the job while it runs.
    #[must_use]
    pub fn handle(&self) -> RuntimeHandle {
        self.handle.clone()
    }

    /// Runs the job to its end.
    ///
    /// Dropping the future also ends the job, but without waiting for the end: the launcher is asked to [shut
    /// down](Launcher::begin_shutdown) with the policy's termination grace period, unless the job is in dry-run mode
    /// (the local launcher's guard then stops all ranks by itself). To leave the job running, call
    /// [`detach`](RuntimeHandle::detach) first. If this process is killed, the launcher determines what happens to the
    /// job (the local launcher: its `OnOwnerLoss`).
    pub async fn run(self) -> JobReport {
        let mut shell = Shell::start(self);
        loop {
            match shell.next_call() {
                Some(Call::Detach { keep, reply }) => match shell.detach(keep).await {
                    Ok(()) => {
                        let reason =
                            format!("handed over: the job continues and waits {keep:?} for the next supervisor");
                        let report = shell.finish().await.left(Outcome::Detached, reason);
                        let _ = reply.send(Ok(())); // the caller may have gone
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

    /// Runs the job to its end. Stops it gracefully when `stop` resolves, with the value of `stop` as the reason.
    pub async fn run_until<R: Into<String>>(self, stop: impl Future<Output = R>) -> JobReport {
        let handle = self.handle();
        let mut run = pin!(self.run());
        tokio::select! {
            biased;
            report = &mut run => report,
            reason = stop => {
                let (report, _) = tokio::join!(run, handle.stop(reason)); // error: the job is over
                report
            }
        }
    }
}

/// State of a running job.
struct Shell {
    /// Boxed, because the futures of host programs contain this struct.
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
    /// Call that was received from `calls` but not handled yet.
    called: Option<Call>,
    orders: Orders,
    log: Option<Log>,
    hosts: Option<HostRecords>,
    outset: Outset,
    unattended: Unattended,
    /// Description of the supervisor that has taken the job over, if one has.
    superseded: Option<String>,
}

impl Shell {
    fn start(runtime: Runtime) -> Shell {
        let Runtime { spec, secrets, sources, plugins, launcher, handle, requests, calls, logs, history, resume } =
            runtime;
        let info = launcher.info();
        let rendezvous_service = info.rendezvous_service.clone();
        let job = JobProfile::of(Arc::clone(&spec)).with_rendezvous_service(rendezvous_service.clone());
        let outset = Outset::new(&plugins.strategies, job);
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
        for guarantee in &info.limitations {
            tracing::warn!(launcher = %info.name, "{guarantee}");
        }
        let pulse = Pulse::new(spec.policy.suspend_threshold);
        let procs = (spec.ranks as usize).saturating_add(spec.services.len());
        let unattended = Unattended::of(&spec.policy, &launcher);
        let mut mailbox = Mailbox::new(Checks::default());
        let trace = handle.trace.as_ref().map(TraceControl::mode);
        mailbox.push(Input::Start(Box::new(Start { spec, trace, rendezvous_service, resume: resume.map(Box::new) })));
        let (input, hosts) = history.map(OpenHistory::begin).unzip();
        mailbox.extend(input);
        Shell {
            kernel: Box::new(past.kernel),
            mailbox,
            clock,
            pulse,
            calendar: Calendar::default(),
            output,
            sources: Sources::spawn(sources, procs, &queues, &handle.urgent),
            carrier: Carrier::spawn(launcher, info.name, &secrets, &handle.urgent),
            queues,
            secrets,
            handle,
            requests,
            calls,
            called: None,
            orders: Orders::default(),
            log,
            hosts: hosts.flatten(),
            outset,
            unattended,
            superseded: None,
        }
    }

    /// Returns the next input for the kernel and its time, if any. First moves everything received into the mailbox.
    fn next_input(&mut self) -> Option<(JobTime, Input)> {
        if let Some(slept) = self.pulse.turn() {
            tracing::warn!(?slept, "the supervisor did not run for a while; no rank is blamed for that time");
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

    /// Waits for an input, a call, a deadline, or the next clock check.
    async fn wait(&mut self) {
        let mut wake = self.pulse.next_turn();
        if let Some(deadline) = self.kernel.deadline() {
            wake = wake.min(self.clock.instant(deadline));
        }
        tokio::select! {
            biased; // fixed order, so that runs are reproducible
            input = self.requests.recv() => self.mailbox.extend(input),
            call = self.calls.recv() => self.called = call,
            by = self.carrier.superseded() => self.superseded = Some(by),
            () = self.queues.filled() => {}
            () = sleep_until(wake) => {}
        }
    }

    /// Returns the next call of a handle, if any.
    fn next_call(&mut self) -> Option<Call> {
        self.called.take().or_else(|| self.calls.try_recv().ok())
    }

    /// Answers a query immediately. Passes an order to the kernel, which answers it.
    fn answer(&mut self, query: Query) {
        let order = self.orders.take(query, &self.kernel, &self.output);
        self.mailbox.extend(order);
    }

    /// Hands the processes over.
    ///
    /// Inputs received meanwhile are not decided on. If the launcher refuses, the kernel handles them late; otherwise
    /// the launcher reports them to the next supervisor.
    async fn detach(&mut self, keep: Duration) -> Result<(), ControlError> {
        let Shell { carrier, requests, mailbox, .. } = self;
        let mut detaching = pin!(carrier.detach(keep));
        loop {
            tokio::select! {
                biased;
                result = &mut detaching => return result.map_err(|error| ControlError::Refused(error.to_string())),
                input = requests.recv() => mailbox.extend(input), // keep receiving, so that answers are not blocked
            }
        }
    }

    /// Makes one kernel step: logs it, then carries out its commands. Returns true if it was the last step.
    async fn step(&mut self, now: JobTime, mut input: Input) -> bool {
        self.secrets.mask(&mut input);
        let commands = self.kernel.step(now, &input);
        match &input {
            Input::Listed(listing) => {
                self.outset.hosts_are_known(self.kernel.strategies(), self.kernel.view().nodes.len());
                listing.links.iter().for_each(|status| self.outset.log_link(status));
            }
            Input::Changed(Change::Link(status)) => {
                self.outset.log_link(status);
                self.outset.look_at_replicas(self.kernel.view());
            }
            Input::Ordered(_) => self.kernel.last_order().map(news::of_order).into_iter().for_each(news::log),
            _ => {}
        }
        let written = self.log.as_mut().and_then(|log| log.write(&self.kernel, now, &input, &commands));
        if let Some(written) = written {
            written.await;
        }
        if let Some(hosts) = &mut self.hosts {
            hosts.follow(&self.kernel);
        }
        let mut over = false;
        for command in commands {
            over |= matches!(command.effect, Effect::Act(Action::Finish { .. }));
            self.dispatch(now, command);
        }
        tokio::task::consume_budget().await; // a flood of facts must not starve the host program's other tasks
        over
    }

    /// Ends the run: sources deliver their remaining facts, the launcher takes its last commands, logs are completed.
    async fn finish(self) -> JobReport {
        let Shell { kernel, sources, carrier, log, hosts, mut unattended, output, .. } = self;
        unattended.disarm();
        sources.close().await;
        carrier.finish().await;
        if let Some(log) = log {
            log.finish().await;
        }
        if let Some(hosts) = hosts {
            hosts.finish().await;
        }
        output.in_report(kernel.report())
    }

    fn dispatch(&mut self, now: JobTime, command: Command) {
        match command.effect {
            Effect::Publish(event) => {
                tracing::debug!(?event, "announced");
                news::of(&event, &self.kernel, &self.output).into_iter().for_each(news::log);
                let announcement = TimestampedEvent { at: now, wall: self.kernel.wall(now), event: *event };
                let _ = self.handle.events.send(Arc::new(announcement)); // an error means that there are no subscribers
            }
            Effect::Act(Action::Collect(ask)) => self.sources.collect(command.id, &ask),
            Effect::Act(Action::Start { .. })
            | Effect::Act(Action::Stop { .. })
            | Effect::Acknowledge(_)
            | Effect::Act(Action::SendDirectives(_)) => {
                self.carrier.give(command);
            }
            Effect::Reply { order, result } => self.orders.reply(order, result),
            Effect::Switch { kinds, by, again } => self.handle.switch(kinds, by, again),
            Effect::Act(Action::Enter(_)) | Effect::Act(Action::Cordon { .. }) => {} // the kernel's own; processes learn of their world at their start
            Effect::Act(Action::Finish { ok, reason }) => {
                let output = self.output.in_words().map(|line| format!("; {line}")).unwrap_or_default();
                tracing::info!(ok, %reason, "the job is over{output}");
            }
            Effect::Act(other) => {
                tracing::error!(?other, "the runtime has no handler for this action: it is not executed")
            }
        }
    }
}
