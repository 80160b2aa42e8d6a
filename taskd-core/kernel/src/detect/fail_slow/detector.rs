//! The engine as a fault detector: gathers the ranks' steps, and reports verdicts as faults and notes.

use super::engine::FailSlow;
use super::figures::{StepFigures, is_judged, rows_by};
use super::layout::{Layout, Members};
use super::transfers::add_transfers;
use super::verdict::{Change, Component, Verdict};
use crate::detect::device_steps::{Bases, Basis, Choice, DeviceSteps};
use crate::detect::slow_rank::gathering::{Admission, Era, Gathering};
use crate::detect::{Damage, Evidence, Fault, FaultClass, FaultDetector, Findings, Health, Suspect, saved};
use crate::job::{Domain, GroupId, GroupKind, JobTime, Name, NodeId, Rank, Role};
use crate::state::View;
use crate::trace::{DecodeError, Observation, Signal, StepTimes, StepTransfers};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

const NAME: Name = Name::new("fail-slow");
const SNAPSHOT_VERSION: u8 = 5;
/// Maximum number of latest steps with a known begin. The onset of an older slow-down is the oldest known begin.
const BEGINS_MAX: usize = 512;

/// Damage of a slow component: it is still able to train, and nothing is lost yet.
const SLOW: Damage =
    Damage { process: Health::Healthy, state: Health::Healthy, device: Health::Unknown, program: Health::Unknown };

/// Blames ranks, hosts and communication groups that have become slow, and names the cause.
///
/// The detector gathers the [`StepTimes`] of all ranks of the world, and passes them to the engine
/// [`FailSlow`](super::FailSlow). The layout of the job comes from the world: the hosts of its members, and its
/// communication groups (`dp`, `tp`, `pp`, `cp`, `ep`). Without groups all ranks are compared with each other.
///
/// Faults have the class `slow`. Suspects are a rank (`slow-rank`, `slow-input`, `slow-checkpoint`), a host (the same
/// causes) or a communication group (`slow-link`). Causes that lie in no component (an uneven stage or load, a
/// slow-down of all ranks) and those of the whole job (all ranks wait for data, for checkpoints or for transfers) are
/// notes. A blame is withdrawn when the component has its usual times again.
///
/// If ranks report their sends and receives ([`StepTransfers`]), a slow link between two neighbours of a pipeline is
/// named. Of collectives only the transfers of all ranks together are judged, by the shortest wait of a step. In jobs with `tp`, `pp`, `cp` or `ep` groups a rank's computation is the part of the
/// step without a pending collective, because its waits inside the step would count as its own time otherwise.
///
/// If most ranks report the times of their devices ([`DeviceTimes`](crate::trace::DeviceTimes)), the computation and the
/// waits are those of the devices, because a process only launches the work of its device, and waits for it at the end of
/// a step like all others. Waiting for data counts as far as the device is idle meanwhile. A rank without these times is
/// not judged by its computation. When the ranks begin or cease to report them (for eight steps), the blames are
/// withdrawn, and the engine learns again.
///
/// A new generation, and a restarted rank, start without data. This detector is not among the
/// [`defaults`](crate::detect::defaults).
#[derive(Debug, Default)]
pub struct FailSlowDetector {
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    era: Era,
    gathering: Gathering<Sample>,
    devices: DeviceSteps,
    /// The latest transfers of each rank, until its step arrives.
    transfers: BTreeMap<u32, StepTransfers>,
    bases: Bases,
    job: Option<Job>,
}

/// What one rank reported about one step.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Sample {
    /// Beginning of the step.
    began: JobTime,
    figures: StepFigures,
    transfers: Option<StepTransfers>,
}

/// The engine of the world in force.
#[derive(Debug, Serialize, Deserialize)]
struct Job {
    engine: FailSlow,
    basis: Basis,
    /// Rank of each position of the layout, in ascending order.
    ranks: Vec<u32>,
    /// Host of each number of the layout.
    hosts: Vec<NodeId>,
    /// Number and begin of the latest steps.
    begins: VecDeque<(u64, JobTime)>,
}

impl FailSlowDetector {
    /// Creates a detector.
    #[must_use]
    pub fn new() -> FailSlowDetector {
        FailSlowDetector::default()
    }

    /// Returns true if a report of a rank counts. The first one of another world starts without data.
    fn admit(&mut self, rank: Rank, o: &Observation, view: &View) -> bool {
        match self.state.era.admit(rank, o, view) {
            Admission::Ignored => return false,
            Admission::Same => {}
            Admission::New => {
                self.state = State { era: std::mem::take(&mut self.state.era), ..State::default() };
            }
        }
        true
    }

    /// Handles a rank's completed step.
    fn completed(&mut self, rank: Rank, o: &Observation, times: &StepTimes, view: &View, out: &mut Findings) {
        let is_split = view.world.groups().keys().any(|group| group.kind != GroupKind::Dp);
        let device = self.state.devices.take(rank.0, times);
        let began = o.at.min(view.now).before(Duration::from_nanos(times.wall_ns));
        let transfers = self.state.transfers.remove(&rank.0).filter(|transfers| transfers.step == times.step);
        let figures = StepFigures::with(times, device, is_split);
        let sample = figures.map(|figures| Sample { began, figures, transfers });
        self.state.gathering.add(rank.0, times.step, sample);
        while let Some((number, samples)) = self.state.gathering.next_whole(view) {
            if is_judged(samples.len(), view.training().count()) {
                self.judge(number, &samples, view, out);
            }
        }
    }

    /// Handles a step that all ranks have completed.
    fn judge(&mut self, number: u64, samples: &BTreeMap<u32, Sample>, view: &View, out: &mut Findings) {
        let with = samples.values().filter(|sample| sample.figures.has_device()).count();
        let basis = match self.state.bases.choose(with, samples.len()) {
            Choice::Use(basis) => basis,
            Choice::Skip => return,
            Choice::Restart(basis) => {
                if let Some(job) = self.state.job.take() {
                    job.withdraw(out);
                }
                basis
            }
        };
        self.state.job.get_or_insert_with(|| Job::of(view, basis)).judge(number, samples, view, out);
    }
}

impl Job {
    /// Reads the layout of the world.
    fn of(view: &View, basis: Basis) -> Job {
        let world = &view.world;
        let ranks: Vec<u32> = world.members().keys().map(|rank| rank.0).collect();
        let node_of = |rank: &u32| view.proc(&Role::Rank(Rank(*rank))).and_then(|proc| proc.node.clone());
        let mut hosts: Vec<NodeId> = ranks.iter().filter_map(node_of).collect();
        hosts.sort();
        hosts.dedup();
        let host_of =
            |rank: &u32| node_of(rank).and_then(|node| hosts.binary_search(&node).ok()).map_or(u32::MAX, narrow);
        let of_rank: Vec<u32> = ranks.iter().map(host_of).collect();
        let at = |rank: &Rank| ranks.binary_search(&rank.0).map_or(u32::MAX, narrow);
        let groups = world.groups().iter();
        let groups = groups.map(|(id, members)| Members { id: id.clone(), ranks: members.iter().map(at).collect() });
        let layout = Layout::of_groups(&of_rank, groups.collect());
        Job { engine: FailSlow::new(layout), basis, ranks, hosts, begins: VecDeque::new() }
    }

    /// Handles a step that all ranks have completed.
    fn judge(&mut self, number: u64, samples: &BTreeMap<u32, Sample>, view: &View, out: &mut Findings) {
        let figures: Vec<Option<StepFigures>> =
            self.ranks.iter().map(|rank| samples.get(rank).map(|sample| sample.figures)).collect();
        let mut rows = rows_by(self.basis, &figures);
        let transfers = self.ranks.iter().map(|rank| samples.get(rank).and_then(|sample| sample.transfers.as_ref()));
        add_transfers(&mut rows, self.basis, self.engine.layout(), &self.ranks, &transfers.collect::<Vec<_>>());
        if let Some(began) = samples.values().map(|sample| sample.began).min() {
            self.begins.push_back((number, began));
            if self.begins.len() > BEGINS_MAX {
                self.begins.pop_front();
            }
        }
        for change in self.engine.step(number, &rows) {
            match change {
                Change::Found(verdict) => self.report(verdict, view, out),
                Change::Cleared { component, cause } if cause.is_blame() && !self.engine.is_named(&component) => {
                    self.clear(&component, out);
                }
                Change::Cleared { .. } => {}
            }
        }
    }

    fn clear(&self, component: &Component, out: &mut Findings) {
        if let Some(domain) = self.domain(component) {
            out.clear(domain, FaultClass::Slow);
        }
    }

    /// Withdraws all blames.
    fn withdraw(&self, out: &mut Findings) {
        let blamed: BTreeSet<&Component> = self.engine.blamed().collect();
        blamed.into_iter().for_each(|component| self.clear(component, out));
    }

    fn report(&self, verdict: Verdict, view: &View, out: &mut Findings) {
        let summary = self.summary(&verdict);
        let Some(domain) = self.domain(&verdict.component).filter(|_| verdict.cause.is_blame()) else {
            let figures: Vec<&str> = verdict.evidence.iter().map(|clue| clue.text.as_str()).collect();
            let text = format!("{}: {}", summary.text, figures.join("; "));
            out.note(Domain::Job, Evidence { text, ..summary });
            return;
        };
        let begin = self.begins.iter().rev().find(|(step, _)| *step <= verdict.onset_step).or(self.begins.front());
        let onset = begin.map_or(view.now, |(_, began)| (*began).min(view.now));
        let incarnation = match &domain {
            Domain::Process(role) => view.proc(role).map(|proc| proc.incarnation),
            _ => None,
        };
        let suspect = Suspect::new(domain, FaultClass::Slow, SLOW, verdict.confidence_permille);
        let mut fault = Fault::new(NAME, onset, suspect).with_incarnation(incarnation).with_evidence(summary);
        fault.evidence.extend(verdict.evidence);
        if self.basis == Basis::Device {
            let text = "computation and waits are those of the devices, measured by the devices themselves";
            fault.evidence.push(Evidence::text("fail_slow_devices", text));
        }
        out.blame(fault);
    }

    /// Returns the domain of a component; `None` if the component is no domain that can be blamed.
    fn domain(&self, component: &Component) -> Option<Domain> {
        match component {
            Component::Rank(at) => Some(Domain::Process(Role::Rank(self.rank(*at)?))),
            Component::Host(host) => self.hosts.get(*host as usize).cloned().map(Domain::Node),
            Component::Group(id) => Some(Domain::Group(id.clone())),
            Component::Link(a, b) => self.chain(*a, *b).map(Domain::Group),
            Component::Stage(_) | Component::Replica(_) | Component::Job => None,
        }
    }

    /// Returns the pipeline that contains both ranks.
    fn chain(&self, a: u32, b: u32) -> Option<GroupId> {
        let has_both = |group: &&Members| group.ranks.contains(&a) && group.ranks.contains(&b);
        let mut chains = self.engine.layout().groups().iter().filter(|group| group.id.kind == GroupKind::Pp);
        chains.find(has_both).map(|group| group.id.clone())
    }

    fn rank(&self, at: u32) -> Option<Rank> {
        self.ranks.get(at as usize).copied().map(Rank)
    }

    /// Returns the verdict in one sentence.
    fn summary(&self, verdict: &Verdict) -> Evidence {
        let rank = |at: &u32| self.rank(*at).map_or(*at, |rank| rank.0);
        let component = match &verdict.component {
            Component::Rank(at) => format!("rank {}", rank(at)),
            Component::Host(host) => {
                self.hosts.get(*host as usize).map_or_else(|| format!("host {host}"), |node| node.to_string())
            }
            Component::Stage(stage) => format!("stage {stage}"),
            Component::Replica(replica) => format!("replica {replica}"),
            Component::Group(id) => id.to_string(),
            Component::Link(a, b) => format!("the link between rank {} and rank {}", rank(a), rank(b)),
            Component::Job => "the job".to_owned(),
        };
        let (cause, percent) = (verdict.cause.name(), verdict.slowdown_percent);
        let ranks = verdict.ranks.len();
        let text = format!("{cause}: {component} ({ranks} rank(s)), {percent:.0} % over the usual time");
        Evidence::figure("fail_slow_percent", percent.into(), None, text)
    }

    fn is_sound(&self) -> bool {
        self.engine.is_sound() && self.ranks.len() == self.engine.layout().len()
    }
}

fn narrow(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

impl FaultDetector for FailSlowDetector {
    fn name(&self) -> Name {
        NAME
    }

    fn observe(&mut self, o: &Observation, view: &View, out: &mut Findings) {
        let Domain::Process(Role::Rank(rank)) = &o.about else { return };
        match &o.signal {
            Signal::DeviceStep(times) if self.admit(*rank, o, view) => self.state.devices.add(rank.0, times),
            Signal::StepTransfers(transfers) if self.admit(*rank, o, view) => {
                self.state.transfers.insert(rank.0, (**transfers).clone());
            }
            Signal::Step(times) if self.admit(*rank, o, view) => self.completed(*rank, o, times, view, out),
            _ => {}
        }
    }

    fn snapshot(&self) -> Option<Bytes> {
        saved::save(SNAPSHOT_VERSION, &self.state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), DecodeError> {
        let state: State = saved::load(SNAPSHOT_VERSION, saved)?;
        if state.job.as_ref().is_some_and(|job| !job.is_sound()) {
            return Err(DecodeError);
        }
        self.state = state;
        Ok(())
    }
}
