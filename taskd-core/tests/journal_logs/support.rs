//! A small job that fails now and then, with everything that its kernel received and commanded.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{Damage, Fault, FaultClass, FaultDetector, Findings, Suspect};
use taskd_core::job::*;
use taskd_core::journal::{Header, Journal, JournalConfig, JournalCounts, PluginInfo, Recovered, Step, Written};
use taskd_core::kernel::*;
use taskd_core::launch::*;
use taskd_core::recover::*;
use taskd_core::state::{HostHistory, HostIncident, View};
use taskd_core::trace::{DecodeError, Observation, Signal, switches};

/// Long enough for any disk that works at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const TICK: Duration = Duration::from_millis(100);

/// Blames processes that end and were not meant to, and processes whose figure `loss` is NaN.
pub(crate) struct Exits;

impl FaultDetector for Exits {
    fn name(&self) -> Name {
        Name::new("exits")
    }
    fn observe(&mut self, o: &Observation, view: &View, out: &mut Findings) {
        let wanted = view.proc_of(&o.about).is_some_and(|p| p.wanted);
        let bad = match &o.signal {
            Signal::Phase(phase) => phase.termination().is_some_and(|how| !how.is_success()),
            Signal::Metric { value, .. } => value.is_nan(),
            _ => false,
        };
        if wanted && bad {
            let suspect = Suspect::certain(o.about.clone(), FaultClass::Exit, Damage::PROCESS_GONE);
            out.blame(Fault::new(self.name(), o.at, suspect));
        }
    }
    fn snapshot(&self) -> Option<Bytes> {
        Some(Bytes::new())
    }
    fn restore(&mut self, _saved: &[u8]) -> Result<(), DecodeError> {
        Ok(())
    }
}

/// Blames processes without a report for a while.
pub(crate) struct Silence {
    pub(crate) bound: Duration,
    /// Whether it can be saved.
    pub(crate) saves: bool,
    reported: BTreeMap<Domain, JobTime>,
}

impl Silence {
    pub(crate) fn after(bound: Duration) -> Silence {
        Silence { bound, saves: true, reported: BTreeMap::new() }
    }
}

impl FaultDetector for Silence {
    fn name(&self) -> Name {
        Name::new("silence")
    }
    fn config(&self) -> String {
        format!("bound={:?}", self.bound)
    }
    fn observe(&mut self, o: &Observation, view: &View, _out: &mut Findings) {
        match &o.signal {
            Signal::Heartbeat => drop(self.reported.insert(o.about.clone(), view.now)),
            Signal::Phase(phase) if phase.is_over() => drop(self.reported.remove(&o.about)),
            Signal::SupervisorSlept { .. } => self.reported.values_mut().for_each(|at| *at = view.now),
            _ => {}
        }
    }
    fn deadline(&self) -> Option<JobTime> {
        self.reported.values().min().map(|at| *at + self.bound)
    }
    fn expire(&mut self, view: &View, out: &mut Findings) {
        let silent: Vec<Domain> =
            self.reported.iter().filter(|(_, at)| **at + self.bound <= view.now).map(|(d, _)| d.clone()).collect();
        for domain in silent {
            self.reported.remove(&domain);
            let suspect = Suspect::certain(domain, FaultClass::Silence, Damage::PROCESS_GONE);
            out.blame(Fault::new(self.name(), view.now, suspect));
        }
    }
    fn snapshot(&self) -> Option<Bytes> {
        self.saves.then(|| postcard::to_stdvec(&self.reported).unwrap().into())
    }
    fn restore(&mut self, saved: &[u8]) -> Result<(), DecodeError> {
        self.reported = postcard::from_bytes(saved).map_err(|_| DecodeError)?;
        Ok(())
    }
}

/// Stops everything and starts a new world.
pub(crate) struct Restart;

impl RecoveryStrategy for Restart {
    fn name(&self) -> Name {
        Name::new("restart")
    }
    fn propose(&self, _incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        let world = Arc::new(view.world.successor(Counted::Yes, |members| {
            for (rank, member) in members {
                member.incarnation = view.next_incarnation(&Role::Rank(*rank));
            }
        }));
        let spec = &view.spec.worker;
        let order = |proc| StartOrder::new(proc, Place::anywhere(), Arc::clone(spec));
        let orders = world.members().keys().filter_map(|r| world.proc(*r)).map(order).collect();
        let batch = StartBatch::new(Arc::clone(&world), orders);
        let stop = Action::Stop { procs: view.alive().collect(), grace: Duration::ZERO, exact: true };
        let start = Action::Start { batch, until: Ready::Running };
        let second = Duration::from_secs(1);
        Ok(Proposal::new(
            vec![
                Stage::new("stop", second, vec![stop]),
                Stage::new("start", second, vec![Action::Enter(world), start]),
            ],
            vec![Domain::Job],
            Cost::downtime(second).with_lost_work(second),
            Counted::Yes,
            "start everything anew",
        ))
    }
}

pub(crate) fn plugins() -> Plugins {
    plugins_with(Silence::after(Duration::from_millis(350)))
}

/// The plugins with a silence detector that can be saved, or not.
pub(crate) fn plugins_that(saves: bool) -> Plugins {
    plugins_with(Silence { saves, ..Silence::after(Duration::from_millis(350)) })
}

/// Files and snapshots so small that a short job has several.
pub(crate) fn small() -> JournalConfig {
    JournalConfig {
        decisions_segment_bytes: 4096,
        observations_segment_bytes: 4096,
        snapshot_every_decisions: 25,
        ..JournalConfig::default()
    }
}

pub(crate) fn plugins_with(silence: Silence) -> Plugins {
    Plugins { detectors: vec![Box::new(Exits), Box::new(silence)], strategies: vec![Box::new(Restart)] }
}

/// A header that names these plugins.
pub(crate) fn header(plugins: &Plugins) -> Header {
    let detectors = plugins.detectors.iter().map(|d| PluginInfo::from(&**d));
    let strategies = plugins.strategies.iter().map(|s| PluginInfo::from(&**s));
    Header {
        job: Name::new("digits"),
        job_id: "7f3a".into(),
        ranks: 4,
        started_unix_ms: 1_700_000_000_000,
        plugins: detectors.chain(strategies).collect(),
    }
}

pub(crate) fn open(dir: &Path, config: JournalConfig) -> (Journal, Recovered) {
    Journal::open(dir, header(&plugins()), config).unwrap()
}

/// A job of a few ranks, with a kernel that is driven by hand and a launcher that always obeys.
pub(crate) struct Job {
    pub(crate) kernel: Kernel,
    pub(crate) now: JobTime,
    pub(crate) steps: Vec<Step>,
    journal: Option<Journal>,
    mute: Option<u32>,
}

impl Job {
    /// A job whose kernel is logged, with a snapshot whenever one is due.
    pub(crate) fn logged(plugins: Plugins, journal: Journal) -> Job {
        Job::of(Kernel::new(plugins), JobTime::START, Some(journal), 4)
    }

    /// Goes on with a kernel that was restored.
    pub(crate) fn go_on(kernel: Kernel, now: JobTime, journal: Journal) -> Job {
        let ranks = kernel.view().world.size();
        Job::of(kernel, now, Some(journal), ranks)
    }

    fn of(kernel: Kernel, now: JobTime, journal: Option<Journal>, ranks: u32) -> Job {
        let mut job = Job { kernel, now, steps: Vec::new(), journal, mute: None };
        job.supervisor_starts(ranks);
        job
    }

    /// Ends the supervisor: everything is on disk.
    pub(crate) fn close(&mut self) {
        if let Some(journal) = self.journal.take() {
            assert!(journal.close(PATIENCE));
        }
    }

    /// Waits for the last step.
    pub(crate) async fn written(&self) -> Written {
        self.journal.as_ref().unwrap().written(self.kernel.seq()).await
    }

    pub(crate) fn counts(&self) -> JournalCounts {
        let journal = self.journal.as_ref().unwrap();
        assert!(journal.flush(PATIENCE));
        journal.counts()
    }

    fn supervisor_starts(&mut self, ranks: u32) {
        let mut policy = Policy::default();
        policy.budget = BudgetSpec { recoveries_max: 1000, refill_every: Duration::from_secs(1) };
        let spec = JobSpec::new("digits", ranks, WorkerSpec::new(["train"])).with_policy(policy);
        self.give(Input::Start(Box::new(Start {
            spec: Arc::new(spec),
            trace: Some(switches::Mode::Native),
            rendezvous_service: None,
            resume: None,
        })));
        let alive: Vec<ProcId> = self.kernel.view().alive().collect();
        let status = |proc| status(proc, Phase::Running);
        let procs = alive.into_iter().map(status).collect();
        self.give(Input::Listed(Listing::default().with_procs(procs)));
    }

    /// One step, and whatever the launcher makes of its commands.
    pub(crate) fn give(&mut self, input: Input) {
        let commands = self.kernel.step(self.now, &input);
        let (seq, now) = (self.kernel.seq(), self.now);
        if let Some(journal) = &mut self.journal {
            journal.append(seq, now, &input, &commands);
            if journal.snapshot_due() {
                journal.snapshot(&self.kernel.snapshot());
            }
        }
        self.steps.push(Step { seq, now, input: Some(input), commands: Some(commands.clone()) });
        for command in commands {
            match command.effect {
                Effect::Act(Action::Start { batch, .. }) => {
                    for order in batch.starts {
                        self.change(order.proc, Phase::Running);
                    }
                }
                Effect::Act(Action::Stop { procs, .. }) => {
                    for proc in procs {
                        let killed = Termination::Signal { number: 15, core_dumped: false };
                        self.change(proc, Phase::Exited(Box::new(Exit::new(killed))));
                    }
                }
                _ => {}
            }
        }
    }

    fn change(&mut self, proc: ProcId, phase: Phase) {
        self.give(Input::Changed(Change::Proc(status(proc, phase))));
    }

    /// Trains for `ticks` ticks: in each, every rank sends heartbeat and progress, and deadlines that have passed are
    /// handled.
    pub(crate) fn train(&mut self, ticks: u64) {
        for _ in 0..ticks {
            self.now = self.now + TICK;
            while let Some(deadline) = self.kernel.deadline().filter(|d| *d <= self.now) {
                let now = std::mem::replace(&mut self.now, deadline);
                self.give(Input::Deadline);
                self.now = now;
            }
            let step = self.now.as_nanos() / 100_000_000;
            let loud = self.kernel.view().training().filter(|(rank, _)| Some(rank.0) != self.mute);
            let facts = loud.flat_map(|(rank, proc)| {
                let say = |signal| fact(self.now, rank, proc.incarnation, signal);
                let loss = Signal::Metric { name: Name::new("loss"), value: 1.0 / step as f64 };
                [say(Signal::Heartbeat), say(Signal::Progress { step }), say(loss)]
            });
            let facts = facts.collect();
            self.give(Input::Observed(facts));
        }
    }

    pub(crate) fn kill(&mut self, rank: u32) {
        let proc = self.kernel.view().world.proc(Rank(rank)).unwrap();
        let killed = Termination::Signal { number: 9, core_dumped: false };
        self.change(proc, Phase::Exited(Box::new(Exit::new(killed))));
    }

    /// A figure that is not a number: a fault that is found by an observation.
    pub(crate) fn spoil(&mut self, rank: u32) {
        let incarnation = self.kernel.view().world.proc(Rank(rank)).unwrap().incarnation;
        let signal = Signal::Metric { name: Name::new("loss"), value: f64::NAN };
        self.give(Input::Observed(vec![fact(self.now, Rank(rank), incarnation, signal)]));
    }

    /// A rank reports nothing any more until it is started again.
    pub(crate) fn mute(&mut self, rank: u32) {
        self.mute = Some(rank);
        self.train(8);
        self.mute = None;
    }

    /// Some of everything.
    pub(crate) fn live(&mut self) {
        self.train(5);
        self.kill(1);
        self.train(5);
        self.spoil(0);
        self.train(5);
        self.mute(2);
        self.train(5);
    }
}

fn status(proc: ProcId, phase: Phase) -> ProcStatus {
    ProcStatus::new(proc, "i", phase).with_pid(1)
}

pub(crate) fn fact(at: JobTime, rank: Rank, incarnation: Incarnation, signal: Signal) -> Observation {
    let about = Domain::Process(Role::Rank(rank));
    Observation::new(at, about, signal).with_incarnation(incarnation)
}

/// The files of a directory by name, with what is in them.
pub(crate) fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    entries.map(|path| (path.file_name().unwrap().into(), std::fs::read(&path).unwrap())).collect()
}

/// The files of one log, in order.
pub(crate) fn files_of(dir: &Path, log: &str) -> Vec<PathBuf> {
    let names = files(dir).into_keys().filter(|name| name.to_string_lossy().starts_with(log));
    names.map(|name| dir.join(name)).collect()
}

/// Steps as text: figures that are not numbers are unequal to themselves.
pub(crate) fn text(steps: &[Step]) -> Vec<String> {
    steps.iter().map(|s| format!("{s:?}")).collect()
}

/// A history of hosts with one incident, and one that was dropped before.
pub(crate) fn host_history() -> HostHistory {
    let mut history = HostHistory::new().with_dropped(1);
    let at = WallTime::from_unix_ms(1_782_000_000_000);
    let (class, job) = (Name::new("device"), Name::new("earlier"));
    history.record(&NodeId(Name::new("n0")), HostIncident { at, class, job, incident: IncidentId(3) });
    history
}
