//! The engine as a fault detector: gathers the ranks' steps, and reports verdicts as faults and notes.

use super::engine::{FailSlow, Row, SERIES, Series};
use super::layout::{Layout, Members, Place};
use super::verdict::{Change, Component, Verdict};
use crate::detect::slow_rank::gathering::{Admission, Era, Gathering};
use crate::detect::{Damage, Evidence, Fault, FaultClass, FaultDetector, Findings, Health, Suspect, saved};
use crate::job::{Domain, GroupId, GroupKind, JobTime, Name, NodeId, Rank, Role};
use crate::state::View;
use crate::trace::{DecodeError, Observation, Signal, StepTimes};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const NAME: Name = Name::new("fail-slow");
const SNAPSHOT_VERSION: u8 = 2;
/// Maximum number of latest steps with a known begin. The onset of an older slow-down is the oldest known begin.
const BEGINS_MAX: usize = 512;
const MS_PER_NS: f64 = 1e-6;

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
/// [`StepTimes`] contain no times of single transfers. Therefore only the transfers of all ranks together are judged,
/// by the shortest wait of a step. In jobs with `tp`, `pp`, `cp` or `ep` groups a rank's computation is the part of the
/// step without a pending collective, because its waits inside the step would count as its own time otherwise.
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
    job: Option<Job>,
}

/// What one rank reported about one step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Sample {
    began: JobTime,
    row: Row,
}

/// The engine of the world in force.
#[derive(Debug, Serialize, Deserialize)]
struct Job {
    engine: FailSlow,
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

    /// Handles a rank's completed step.
    fn completed(&mut self, rank: Rank, o: &Observation, times: &StepTimes, view: &View, out: &mut Findings) {
        match self.state.era.admit(rank, o, view) {
            Admission::Ignored => return,
            Admission::Same => {}
            Admission::New => {
                self.state = State { era: std::mem::take(&mut self.state.era), ..State::default() };
            }
        }
        let is_split = view.world.groups().keys().any(|group| group.kind != GroupKind::Dp);
        self.state.gathering.add(rank.0, times.step, Sample::of(times, o.at.min(view.now), is_split));
        while let Some((number, samples)) = self.state.gathering.next_whole(view) {
            if samples.len() >= 2 && samples.len() * 2 >= view.training().count() {
                self.state.job.get_or_insert_with(|| Job::of(view)).judge(number, &samples, view, out);
            }
        }
    }
}

impl Sample {
    /// Creates a sample; `None` if the figures cannot be used. `is_split` is true if ranks wait for each other inside a
    /// step.
    fn of(times: &StepTimes, ended: JobTime, is_split: bool) -> Option<Sample> {
        let wait = if is_split { times.wait_ns.max(times.communication_ns) } else { times.wait_ns };
        let apart = [wait, times.data_loader_ns, times.save_checkpoint_ns];
        let compute = apart.into_iter().fold(times.wall_ns, u64::saturating_sub);
        let mut row = [f32::NAN; SERIES];
        row[Series::Compute as usize] = ms(compute);
        row[Series::Wait as usize] = ms(wait);
        row[Series::Data as usize] = ms(times.data_loader_ns);
        row[Series::Checkpoint as usize] = ms(times.save_checkpoint_ns);
        if times.forward_ns > 0 {
            row[Series::Forward as usize] = ms(times.forward_ns);
        }
        row[Series::Cpu as usize] = times.cpu_ns.map_or(f32::NAN, ms);
        let began = ended.before(Duration::from_nanos(times.wall_ns));
        (compute > 0 && times.lost == 0).then_some(Sample { began, row })
    }
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "only the first digits of a time matter"
)]
fn ms(nanos: u64) -> f32 {
    (nanos as f64 * MS_PER_NS) as f32
}

impl Job {
    /// Reads the layout of the world.
    fn of(view: &View) -> Job {
        let world = &view.world;
        let ranks: Vec<u32> = world.members().keys().map(|rank| rank.0).collect();
        let node_of = |rank: &u32| view.proc(&Role::Rank(Rank(*rank))).and_then(|proc| proc.node.clone());
        let mut hosts: Vec<NodeId> = ranks.iter().filter_map(node_of).collect();
        hosts.sort();
        hosts.dedup();
        let mut places: Vec<Place> = (0..)
            .zip(&ranks)
            .map(|(at, rank)| {
                let host = node_of(rank).and_then(|node| hosts.binary_search(&node).ok()).map_or(u32::MAX, narrow);
                // Without data-parallel groups each rank of a job without groups is a replica of its own.
                Place { host, replica: if world.groups().is_empty() { at } else { 0 }, ..Place::default() }
            })
            .collect();
        let at = |rank: &Rank| ranks.binary_search(&rank.0).ok();
        let mut groups = Vec::new();
        for (id, members) in world.groups() {
            for (position, rank) in (0..).zip(members) {
                let Some(place) = at(rank).and_then(|at| places.get_mut(at)) else { continue };
                match id.kind {
                    GroupKind::Dp => place.replica = position,
                    GroupKind::Tp => place.tp = position,
                    GroupKind::Pp => place.stage = position,
                    GroupKind::Ep => place.ep = position,
                    GroupKind::Cp => place.cp = position,
                    _ => {}
                }
            }
            groups.push(Members { id: id.clone(), ranks: members.iter().filter_map(at).map(narrow).collect() });
        }
        Job { engine: FailSlow::new(Layout::new(places, groups)), ranks, hosts, begins: VecDeque::new() }
    }

    /// Handles a step that all ranks have completed.
    fn judge(&mut self, number: u64, samples: &BTreeMap<u32, Sample>, view: &View, out: &mut Findings) {
        let row = |rank: &u32| samples.get(rank).map_or([f32::NAN; SERIES], |sample| sample.row);
        let rows: Vec<Row> = self.ranks.iter().map(row).collect();
        if let Some(began) = samples.values().map(|sample| sample.began).min() {
            self.begins.push_back((number, began));
            if self.begins.len() > BEGINS_MAX {
                self.begins.pop_front();
            }
        }
        for change in self.engine.step(number, &rows) {
            match change {
                Change::Found(verdict) => self.report(verdict, view, out),
                Change::Cleared { component, cause } => {
                    if let Some(domain) = self.domain(&component)
                        && cause.is_blame()
                        && !self.engine.is_named(&component)
                    {
                        out.clear(domain, FaultClass::Slow);
                    }
                }
            }
        }
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
        if let (Signal::Step(times), Domain::Process(Role::Rank(rank))) = (&o.signal, &o.about) {
            self.completed(*rank, o, times, view, out);
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
