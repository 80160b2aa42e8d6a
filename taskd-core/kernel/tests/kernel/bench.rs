//! A kernel that is driven by hand, with the plainest plugins.

use std::sync::Arc;
use std::time::Duration;
use taskd_kernel::detect::{Damage, Evidence, Fault, FaultClass, FaultDetector, Suspect, detector_fn};
use taskd_kernel::job::*;
use taskd_kernel::kernel::*;
use taskd_kernel::recover::*;
use taskd_kernel::state::View;
use taskd_kernel::state::*;
use taskd_kernel::trace::Signal;

pub(crate) const MS: u64 = 1_000_000;

/// Blames every process that ends and was not meant to.
pub(crate) fn exits() -> Box<dyn FaultDetector> {
    Box::new(detector_fn("exit", |o, view, out| {
        let (Signal::Phase(phase), Domain::Process(role)) = (&o.signal, &o.about) else { return };
        let unwanted = view.proc(role).is_some_and(|p| !p.wanted);
        let well = phase.termination().is_some_and(Termination::is_success);
        if phase.is_over() && !unwanted && !well {
            let suspect = Suspect::certain(o.about.clone(), FaultClass::Exit, Damage::PROCESS_GONE);
            out.blame(
                Fault::new(Name::new("exit"), o.at, suspect).with_evidence(Evidence::text("phase", phase.to_string())),
            );
        }
    }))
}

/// Replaces lost ranks only; touches nothing but their processes.
pub(crate) struct Replace;

impl RecoveryStrategy for Replace {
    fn name(&self) -> Name {
        Name::new("replace")
    }
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        let lost = incident.lost_ranks(view);
        if lost.is_empty() {
            return Err("nothing is lost".into());
        }
        let world = Arc::new(view.world.successor(Counted::Yes, |members| {
            for rank in &lost {
                let next = view.next_incarnation(&Role::Rank(*rank));
                members.entry(*rank).and_modify(|m| m.incarnation = next);
            }
        }));
        let old = lost.iter().filter_map(|r| view.world.proc(*r)).collect();
        let orders = lost
            .iter()
            .filter_map(|r| world.proc(*r))
            .map(|proc| StartOrder::new(proc, Place::anywhere(), Arc::clone(&view.spec.worker)));
        let batch = StartBatch::new(Arc::clone(&world), orders.collect());
        let stop = Action::Stop { procs: old, grace: Duration::ZERO, exact: true };
        let start = Action::Start { batch, until: Ready::Running };
        Ok(Proposal::new(
            vec![
                Stage::new("stop", Duration::from_secs(1), vec![stop]),
                Stage::new("start", Duration::from_secs(1), vec![Action::Enter(world), start]),
            ],
            lost.iter().map(|r| Domain::Process(Role::Rank(*r))).collect(),
            Cost::downtime(Duration::from_secs(20)), // more than any strategy that keeps processes
            Counted::Yes,
            format!("replace {lost:?}"),
        ))
    }
}

/// A kernel that is driven by hand.
pub(crate) struct Bench {
    pub(crate) kernel: Kernel,
    pub(crate) now: u64,
}

impl Bench {
    pub(crate) fn new(ranks: u32, adjust: impl FnOnce(&mut Policy)) -> Bench {
        Bench::with(ranks, adjust, Plugins { detectors: vec![exits()], strategies: vec![Box::new(Replace)] })
    }

    pub(crate) fn with(ranks: u32, adjust: impl FnOnce(&mut Policy), plugins: Plugins) -> Bench {
        let mut spec = JobSpec::new("test", ranks, WorkerSpec::new(["train"]));
        adjust(&mut spec.policy);
        let mut bench = Bench { kernel: Kernel::new(plugins), now: 0 };
        assert!(
            bench
                .give(Input::Start(Box::new(Start {
                    spec: Arc::new(spec),
                    trace: None,
                    rendezvous_service: None,
                    resume: None
                })))
                .is_empty()
        );
        bench
    }

    pub(crate) fn give(&mut self, input: Input) -> Vec<Command> {
        self.kernel.step(JobTime::from_nanos(self.now), &input)
    }

    pub(crate) fn at(&mut self, ms: u64) -> Vec<Command> {
        self.now = ms * MS;
        self.give(Input::Deadline)
    }

    pub(crate) fn set_phase(&mut self, rank: u32, incarnation: u32, phase: Phase) -> Vec<Command> {
        let proc = ProcId::rank(rank, incarnation);
        let status = ProcStatus::new(proc, "i", phase).with_pid(1);
        self.give(Input::Changed(Change::Proc(status)))
    }

    /// As `set_phase`, of a process on this host.
    pub(crate) fn set_phase_on(&mut self, host: &'static str, rank: u32, phase: Phase) -> Vec<Command> {
        let (proc, node) = (ProcId::rank(rank, 1), Some(NodeId(Name::new(host))));
        let status = ProcStatus::new(proc, "i", phase).with_node(node).with_pid(1);
        self.give(Input::Changed(Change::Proc(status)))
    }

    /// Lists nothing and lets the first world run.
    pub(crate) fn up(self) -> Bench {
        self.up_by(|bench, rank| bench.set_phase(rank, 1, Phase::Running))
    }

    /// Lists nothing, and lets the first world run on these hosts.
    pub(crate) fn up_on(self, hosts: &[&'static str]) -> Bench {
        self.up_by(|bench, rank| bench.set_phase_on(hosts[rank as usize], rank, Phase::Running))
    }

    fn up_by(mut self, runs: impl Fn(&mut Bench, u32) -> Vec<Command>) -> Bench {
        let commands = self.give(Input::Listed(Listing::default()));
        let id = start_of(&commands).expect("the first start").0;
        let ranks = self.kernel.view().world.size();
        let results = (0..ranks).map(|r| (rank_domain(r), Ok(TargetReply::Accepted))).collect();
        self.give(Input::Answered { id, results });
        for rank in 0..ranks {
            runs(&mut self, rank);
        }
        self
    }
}

pub(crate) fn rank_domain(rank: u32) -> Domain {
    Domain::Process(Role::Rank(Rank(rank)))
}

pub(crate) fn start_of(commands: &[Command]) -> Option<(CommandId, Vec<ProcId>)> {
    commands.iter().find_map(|c| match &c.effect {
        Effect::Act(Action::Start { batch, .. }) => Some((c.id, batch.starts.iter().map(|o| o.proc.clone()).collect())),
        _ => None,
    })
}

pub(crate) fn stopped(commands: &[Command]) -> Vec<ProcId> {
    let stops = commands.iter().filter_map(|c| match &c.effect {
        Effect::Act(Action::Stop { procs, .. }) => Some(procs.clone()),
        _ => None,
    });
    stops.flatten().collect()
}

pub(crate) fn finish(commands: &[Command]) -> Option<(bool, &str)> {
    commands.iter().find_map(|c| match &c.effect {
        Effect::Act(Action::Finish { ok, reason }) => Some((*ok, reason.as_str())),
        _ => None,
    })
}

pub(crate) fn killed() -> Phase {
    Phase::Exited(Box::new(Exit::new(Termination::Signal { number: 9, core_dumped: false })))
}

pub(crate) fn done() -> Phase {
    Phase::Exited(Box::new(Exit::new(Termination::Code(0))))
}

/// What the kernel announces, in order.
pub(crate) fn events(commands: &[Command]) -> Vec<&Event> {
    let announced = commands.iter().filter_map(|c| match &c.effect {
        Effect::Publish(event) => Some(&**event),
        _ => None,
    });
    announced.collect()
}

pub(crate) fn count(bench: &Bench, what: DropReason) -> u64 {
    bench.kernel.counts().drops.get(&what).copied().unwrap_or(0)
}

pub(crate) fn taken(bench: &Bench, branch: Branch) -> u64 {
    bench.kernel.counts().branches.get(&branch).copied().unwrap_or(0)
}

pub(crate) fn accepted(rank: u32) -> Vec<(Domain, Result<TargetReply, Failure>)> {
    vec![(rank_domain(rank), Ok(TargetReply::Accepted))]
}

pub(crate) fn asked_to_look_into(rank: u32, incarnation: u32) -> Input {
    let suspect = Suspect::certain(rank_domain(rank), FaultClass::Leave, Damage::PROCESS_GONE);
    let fault =
        Fault::new(Name::new("operator"), JobTime::START, suspect).with_incarnation(Some(Incarnation(incarnation)));
    Input::Requested(Request::Fault(Box::new(fault)))
}
