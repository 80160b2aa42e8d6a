//! A job whose processes start and stop as ordered.

use std::sync::Arc;
use std::time::Duration;
use taskd_kernel::job::*;
use taskd_kernel::kernel::*;
use taskd_kernel::recover::Action;
use taskd_kernel::state::Proc;
use taskd_kernel::state::*;
use taskd_kernel::trace::{Fact, Probe, Signal};
use taskd_kernel::{detect, recover};

pub(crate) const KILLED: Termination = Termination::Signal { number: 9, core_dumped: false };

/// A job, and what became of its commands.
pub(crate) struct Job {
    pub(crate) kernel: Kernel,
    pub(crate) now: JobTime,
    pub(crate) asked: Option<(CommandId, Probe)>,
    pub(crate) finished: Option<(bool, String)>,
    /// Ranks whose exit a stop waits for until the test reports it.
    pub(crate) slow: Option<u32>,
    /// The rank whose start is never reported.
    pub(crate) starts_hang: Option<u32>,
    /// Ranks have control links, stand in step loops, and do what they are directed to.
    pub(crate) loops: bool,
    /// How a rank ends that is started to join others, in the place of its joining.
    pub(crate) replacements_end: Option<Phase>,
    /// A rank that does not answer when it is to train on.
    pub(crate) slow_to_resume: Option<u32>,
    /// After a repair the ranks have no checksum of their state.
    pub(crate) without_digests: bool,
    /// What it has recorded before.
    pub(crate) replacements_record: Option<ErrorReport>,
    /// Starts and stops.
    pub(crate) deeds: Vec<Action>,
    /// Number of directives to ranks.
    pub(crate) directives: u32,
    decisions: Vec<Decision>,
    replies: Vec<Result<OrderAccepted, OrderRejected>>,
    orders: u64,
}

impl Job {
    pub(crate) fn of(ranks: u32) -> Job {
        Job::on(ranks, &[])
    }

    pub(crate) fn on(ranks: u32, hosts: &[&'static str]) -> Job {
        Job::with(ranks, hosts, |_| ())
    }

    pub(crate) fn with(ranks: u32, hosts: &[&'static str], adjust: impl FnOnce(&mut Policy)) -> Job {
        Job::of_spec(ranks, hosts, |spec| adjust(&mut spec.policy))
    }

    /// A job whose launcher has ranks meet again at a service.
    pub(crate) fn meeting_at(ranks: u32, service: &'static str) -> Job {
        Job::started(ranks, &[], |_| (), Some(Name::new(service)))
    }

    pub(crate) fn of_spec(ranks: u32, hosts: &[&'static str], adjust: impl FnOnce(&mut JobSpec)) -> Job {
        Job::started(ranks, hosts, adjust, None)
    }

    fn started(ranks: u32, hosts: &[&'static str], adjust: impl FnOnce(&mut JobSpec), meets_at: Option<Name>) -> Job {
        let nodes: Vec<NodeId> = hosts.iter().map(|name| NodeId(Name::new(name))).collect();
        let mut spec = JobSpec::new("test", ranks, WorkerSpec::new(["train"])).with_nodes(nodes.clone());
        adjust(&mut spec);
        let mut job = Job::not_started();
        job.give(Input::Start(Box::new(Start {
            spec: Arc::new(spec),
            trace: None,
            rendezvous_service: meets_at,
            resume: None,
        })));
        let ready = |node| NodeStatus::new(node, NodeState::Ready, ranks);
        let nodes = nodes.into_iter().map(ready).collect();
        job.give(Input::Listed(Listing::default().with_nodes(nodes)));
        job
    }

    /// A job of which the kernel knows nothing yet.
    pub(crate) fn not_started() -> Job {
        Job {
            kernel: Kernel::new(plugins()),
            now: JobTime::START,
            asked: None,
            finished: None,
            slow: None,
            starts_hang: None,
            loops: false,
            replacements_end: None,
            slow_to_resume: None,
            without_digests: false,
            replacements_record: None,
            deeds: vec![],
            directives: 0,
            decisions: vec![],
            replies: vec![],
            orders: 0,
        }
    }

    pub(crate) fn give(&mut self, input: Input) {
        for command in self.kernel.step(self.now, &input) {
            let deed = command.effect.action().filter(|a| matches!(a, Action::Start { .. } | Action::Stop { .. }));
            self.deeds.extend(deed.cloned());
            match command.effect {
                Effect::Publish(event) => {
                    if let Event::Decided(decision) = *event {
                        self.decisions.push(*decision);
                    }
                }
                Effect::Reply { result, .. } => self.replies.push(result),
                Effect::Act(Action::Start { batch, .. }) => {
                    let hangs = self.starts_hang.map(Rank);
                    for order in batch.starts.into_iter().filter(|o| hangs.is_none() || o.proc.role.rank() != hangs) {
                        self.set_phase_of(order.proc.clone(), Phase::Running);
                        let joins = order.spec.env.contains_key(JOIN_VARIABLE);
                        match self.replacements_end.clone().filter(|_| joins) {
                            Some(end) => {
                                if let Some(error) = self.replacements_record.clone() {
                                    let what = WorkerMessage::ErrorRecorded(Box::new(error));
                                    let answer = WorkerEvent::new(order.proc.clone(), what);
                                    self.give(Input::Changed(Change::Worker(answer)));
                                }
                                self.set_phase_of(order.proc, end);
                            }
                            None if self.loops => {
                                self.link(order.proc, if joins { LoopPosition::Parked } else { LoopPosition::InLoop })
                            }
                            None => {}
                        }
                    }
                }
                Effect::Act(Action::SendDirectives(batch)) => {
                    for (proc, directive) in batch.directives {
                        self.directives += 1;
                        self.follow(command.id, proc, &directive);
                    }
                }
                Effect::Act(Action::Stop { procs, .. }) => {
                    let slow = self.slow.map(Rank);
                    for proc in procs.into_iter().filter(|p| slow.is_none() || p.role.rank() != slow) {
                        let dead = self.kernel.view().proc(&proc.role).and_then(|p| p.phase.termination());
                        let how = dead.unwrap_or(Termination::Signal { number: 15, core_dumped: false });
                        self.set_phase_of(proc, Phase::Exited(Box::new(Exit::new(how))));
                    }
                }
                Effect::Act(Action::Collect(ask)) => self.asked = Some((command.id, ask)),
                Effect::Act(Action::Finish { ok, reason }) => self.finished = Some((ok, reason)),
                _ => {}
            }
        }
    }

    /// A rank of a job with step loops: it reports that it is there.
    pub(crate) fn link(&mut self, proc: ProcId, at: LoopPosition) {
        self.link_with(proc, at, (at == LoopPosition::InLoop).then(|| equal_digest(0)));
    }

    /// The same with this checksum.
    pub(crate) fn link_with(&mut self, proc: ProcId, at: LoopPosition, digest: Option<StateDigest>) {
        let linked = ControlLink::new(self.kernel.view().world.generation(), "test", at)
            .with_capabilities(["abort", "join", "sync-state", "resume"].map(Name::new).into())
            .with_digest(digest.map(Box::new));
        self.give(Input::Changed(Change::Link(LinkStatus::new(proc, Some(linked)))));
    }

    /// A rank of a job with step loops: it has done what it was directed to.
    fn follow(&mut self, id: CommandId, proc: ProcId, directive: &Directive) {
        if matches!(directive, Directive::Resume { .. }) {
            if proc.role.rank().map(|rank| rank.0) == self.slow_to_resume {
                return;
            }
            self.link(proc.clone(), LoopPosition::InLoop);
        }
        let step = self.kernel.view().proc(&proc.role).and_then(|known| known.step);
        let state = matches!(directive, Directive::Abort {}).then(|| WorkerState {
            step: step.unwrap_or(0) + 1,
            committed: step,
            window: Window::Before,
            layout: String::new(),
            buckets: Vec::new(),
            bytes: 0,
            sharded: Vec::new(),
        });
        let has_digest = matches!(directive, Directive::SyncState { .. }) && !self.without_digests;
        let digest = has_digest.then(|| equal_digest(step.unwrap_or(0)));
        let answered = Box::new(DirectiveReply::default().with_state(state).with_digest(digest));
        let what = WorkerMessage::Reply { id, result: Ok(answered) };
        self.give(Input::Changed(Change::Worker(WorkerEvent::new(proc, what))));
    }

    pub(crate) fn set_phase_of(&mut self, proc: ProcId, phase: Phase) {
        let node = self.kernel.view().proc(&proc.role).and_then(|p| p.node.clone());
        let status = ProcStatus::new(proc, "1", phase).with_node(node).with_pid(1);
        self.give(Input::Changed(Change::Proc(status)));
    }

    pub(crate) fn set_phase(&mut self, rank: u32, phase: Phase) {
        let incarnation = self.proc(rank).incarnation;
        self.set_phase_of(ProcId { role: Role::Rank(Rank(rank)), incarnation }, phase);
    }

    pub(crate) fn proc(&self, rank: u32) -> &Proc {
        self.kernel.view().proc(&Role::Rank(Rank(rank))).expect("a rank of the job")
    }

    pub(crate) fn observe(&mut self, rank: u32, signal: Signal) {
        let fact = Fact::new(Domain::Process(Role::Rank(Rank(rank))), signal);
        self.give(Input::Observed(vec![fact.into_observation(self.now)]));
    }

    /// Lets time pass, in steps, with a deadline whenever one is due.
    pub(crate) fn pass(&mut self, ms: u64) {
        let until = self.now + Duration::from_millis(ms);
        while let Some(due) = self.kernel.deadline().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.give(Input::Deadline);
        }
        self.now = until;
    }

    /// Gives an order; its answer.
    pub(crate) fn order(&mut self, order: Order) -> Result<OrderAccepted, String> {
        self.orders += 1;
        let (by, reason) = (Name::new("ann"), "she knows why".to_owned());
        self.give(Input::Ordered(Box::new(OrderEnvelope { id: OrderId(self.orders), by, reason, order })));
        self.replies.pop().expect("an answer in the same step").map_err(|denial| denial.to_string())
    }

    /// The hosts of all ranks.
    pub(crate) fn hosts(&self) -> Vec<&str> {
        let procs = self.kernel.view().procs.values();
        procs.map(|p| p.node.as_ref().map_or("-", |node| node.0.as_str())).collect()
    }

    /// The strategies that were chosen so far, in order.
    pub(crate) fn chosen(&self) -> Vec<&str> {
        let chosen = self.decisions.iter().map(|decision| decision.chosen.as_ref());
        chosen.map(|chosen| chosen.map_or("none", |chosen| chosen.strategy.as_str())).collect()
    }

    /// The latest decision.
    pub(crate) fn decision(&self) -> Decision {
        self.decisions.last().expect("a decision").clone()
    }

    pub(crate) fn last(&self) -> IncidentReport {
        self.kernel.report().incidents.last().expect("an incident").clone()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.kernel.view().world.generation().0
    }
}

pub(crate) fn plugins() -> Plugins {
    Plugins { detectors: detect::defaults(), strategies: recover::defaults() }
}

pub(crate) fn exited(how: Termination, error: Option<ErrorReport>) -> Phase {
    Phase::Exited(Box::new(Exit::new(how).with_error(error.map(Box::new))))
}

pub(crate) fn report(code: &'static str, text: &str) -> ErrorReport {
    let (family, code, text) = (Name::new("python"), Name::new(code), text.to_owned());
    ErrorReport::new(family, code, text)
}

pub(crate) fn failed(error: ErrorReport) -> Phase {
    exited(Termination::Code(1), Some(error))
}

/// The checksum that all ranks have at a step.
pub(crate) fn equal_digest(step: u64) -> StateDigest {
    let (digest, group) = ("equal".into(), Some("dp".into()));
    StateDigest { loop_number: 1, step, digest, group, took_us: 1, first_of_kind: false }
}
