//! A simulated job for tests of detectors and strategies: its view changes as the kernel would change it.
//!
//! No process runs: the tests supply the signals.

use super::{FaultDetector, Finding, Findings};
use crate::job::{
    Counted, Domain, ErrorReport, Exit, JobSpec, JobTime, Name, NodeId, Rank, Role, Termination, WorkerSpec,
};
use crate::state::{NodeState, NodeStatus, Phase, Proc, Replicas, View};
use crate::trace::{Observation, Probe, ProbeReply, ProbeResult, Signal};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const KILLED: Termination = Termination::Signal { number: 9, core_dumped: false };

pub(crate) struct Scene {
    pub(crate) view: View,
}

impl Scene {
    /// A job with `ranks` ranks, all running, in generation 1.
    pub(crate) fn of(ranks: u32) -> Scene {
        Scene::on(ranks, &[])
    }

    /// A job on hosts with the given numbers of slots: ranks in equal blocks over the first two hosts (fewer if there
    /// are fewer ranks or hosts).
    pub(crate) fn on(ranks: u32, hosts: &[(&'static str, u32)]) -> Scene {
        let used = hosts.iter().map(|(name, _)| node(name)).take((ranks as usize).min(2).min(hosts.len()));
        let spec = JobSpec::new("test", ranks, WorkerSpec::new(["train"])).with_nodes(used);
        let world = Arc::new(spec.first_world());
        let status =
            |(name, slots): &(&'static str, u32)| NodeStatus::new(NodeId(Name::new(name)), NodeState::Ready, *slots);
        let nodes = hosts.iter().map(|h| (node(h.0), status(h))).collect();
        let view = View {
            now: JobTime::START,
            spec: Arc::new(spec),
            world,
            procs: BTreeMap::new(),
            nodes,
            mending: false,
            replicas: Replicas::default(),
            guards: BTreeMap::new(),
            on_trial: None,
            rendezvous_service: None,
            host_history: None,
            wall: None,
        };
        let mut scene = Scene { view };
        scene.run_all();
        scene
    }

    fn run_all(&mut self) {
        let View { world, procs, now, .. } = &mut self.view;
        for (rank, member) in world.members() {
            let proc = Proc {
                incarnation: member.incarnation,
                generation: world.generation(),
                wanted: true,
                stopped_for: None,
                node: member.node.clone(),
                pid: Some(100 + rank.0),
                phase: Phase::Running,
                step: None,
                progress_at: *now,
                link: None,
                unlinked_at: None,
                unguarded: false,
                reports_steps: false,
                ended_at: None,
            };
            procs.insert(Role::Rank(*rank), proc);
        }
    }

    /// Starts the next world: a new incarnation of every rank, all running.
    pub(crate) fn restart(&mut self) {
        let view = &self.view;
        let world = view.world.successor(Counted::Yes, |members| {
            for (rank, member) in members {
                member.incarnation = view.next_incarnation(&Role::Rank(*rank));
            }
        });
        self.enter(Arc::new(world));
    }

    pub(crate) fn enter(&mut self, world: Arc<crate::job::World>) {
        self.view.world = world;
        self.run_all();
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.view.now = self.view.now + Duration::from_millis(ms);
    }

    pub(crate) fn proc(&mut self, rank: u32) -> &mut Proc {
        self.view.procs.get_mut(&Role::Rank(Rank(rank))).expect("a rank of the scene")
    }

    pub(crate) fn set_node(&mut self, name: &'static str, state: NodeState) {
        self.view.nodes.get_mut(&node(name)).expect("a host of the scene").state = state;
    }

    /// Passes a signal of a rank's current process to the detector, as the kernel would.
    pub(crate) fn tell(&mut self, detector: &mut dyn FaultDetector, rank: u32, signal: Signal) -> Vec<Finding> {
        let now = self.view.now;
        let proc = self.proc(rank);
        match &signal {
            Signal::Phase(phase) => proc.phase = phase.clone(),
            Signal::Progress { step } => (proc.step, proc.progress_at) = (Some(*step), now),
            _ => {}
        }
        let incarnation = Some(proc.incarnation);
        self.observe(detector, Observation { at: now, about: rank_domain(rank), incarnation, generation: None, signal })
    }

    pub(crate) fn observe(&self, detector: &mut dyn FaultDetector, o: Observation) -> Vec<Finding> {
        let mut out = Findings::default();
        detector.observe(&o, &self.view, &mut out);
        out.drain().collect()
    }

    pub(crate) fn slept(&self, detector: &mut dyn FaultDetector) -> Vec<Finding> {
        let signal = Signal::SupervisorSlept { nanos: 1 };
        let o = Observation { at: self.view.now, about: Domain::Job, incarnation: None, generation: None, signal };
        self.observe(detector, o)
    }

    /// Passes the reply to a probe of one rank to the detector.
    pub(crate) fn answer(
        &self,
        detector: &mut dyn FaultDetector,
        ask: &Probe,
        rank: u32,
        exhibit: ProbeResult,
    ) -> Vec<Finding> {
        let Probe { by, tag, what, .. } = ask.clone();
        let evidence = ProbeReply { by, tag, what, about: rank_domain(rank), result: exhibit };
        let signal = Signal::ProbeReply(Arc::new(evidence));
        let (at, about) = (self.view.now, rank_domain(rank));
        self.observe(detector, Observation { at, about, incarnation: None, generation: None, signal })
    }

    /// Calls `expire` if the deadline has passed.
    pub(crate) fn expire(&self, detector: &mut dyn FaultDetector) -> Vec<Finding> {
        let mut out = Findings::default();
        if detector.deadline().is_some_and(|at| at <= self.view.now) {
            detector.expire(&self.view, &mut out);
            assert!(detector.deadline().is_none_or(|at| at > self.view.now), "the deadline must move on");
        }
        out.drain().collect()
    }
}

pub(crate) fn node(name: &'static str) -> NodeId {
    NodeId(Name::new(name))
}

pub(crate) fn rank_domain(rank: u32) -> Domain {
    Domain::Process(Role::Rank(Rank(rank)))
}

pub(crate) fn dead(how: Termination) -> Signal {
    Signal::Phase(Phase::Dead(how))
}

pub(crate) fn exited(how: Termination) -> Signal {
    Signal::Phase(Phase::Exited(Box::new(Exit::new(how))))
}

/// An exit with code 1 and this error report.
pub(crate) fn failed(error: ErrorReport) -> Signal {
    let error = Some(Box::new(error));
    Signal::Phase(Phase::Exited(Box::new(Exit { error, ..Exit::new(Termination::Code(1)) })))
}

pub(crate) fn exception(text: &str) -> ErrorReport {
    ErrorReport {
        family: Name::new("python"),
        code: Name::new("ValueError"),
        text: text.into(),
        follow_up: false,
        retry_free: false,
        step: None,
    }
}

pub(crate) fn follow_up() -> ErrorReport {
    ErrorReport { code: Name::new("DistError"), follow_up: true, ..exception("connection closed by peer") }
}

pub(crate) fn lost_race() -> ErrorReport {
    ErrorReport { code: Name::new("DistNetworkError"), retry_free: true, ..exception("address already in use") }
}

/// Returns the only fault among the findings.
pub(crate) fn fault(findings: &[Finding]) -> &super::Fault {
    let mut faults = findings.iter().filter_map(|f| match f {
        Finding::Blame(fault) => Some(fault),
        _ => None,
    });
    let fault = faults.next().expect("a fault");
    assert!(faults.next().is_none(), "one fault only");
    fault
}

/// Returns the probe among the findings.
pub(crate) fn question(findings: &[Finding]) -> Probe {
    let asks = findings.iter().find_map(|f| match f {
        Finding::Probe(ask) => Some(ask.clone()),
        _ => None,
    });
    asks.expect("a question")
}
