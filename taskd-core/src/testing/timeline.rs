//! Observations in order, each with the job as it stands then: what a detector is shown.
//!
//! It only tells a story: nothing is decided here, and no plugin is called.

use crate::job::{
    Domain, ErrorReport, Exit, GroupId, GroupKind, JobSpec, JobTime, Member, Name, NodeId, Rank, Role, Termination,
    WorkerSpec, World,
};
use crate::kernel::{Proc, Replicas, View};
use crate::launch::{NodeState, NodeStatus, Phase};
use crate::trace::{Evidence, Exhibit, Ext, Extension, Observation, Signal, StepTimes};
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Ranks on one host of a timeline.
const RANKS_PER_HOST: u32 = 4;
const HEARTBEAT_EVERY: Duration = Duration::from_millis(100);
/// Heartbeats in one training step.
const HEARTBEATS_PER_STEP: u64 = 2;
/// Things that happen in a random timeline.
const HAPPENINGS: usize = 100;

/// One observation, and the job as it stands when a detector is shown it.
#[derive(Clone, Debug)]
pub struct Moment {
    /// What was seen.
    pub observation: Observation,
    /// The job, with the observation already in it.
    pub view: View,
}

/// A job's life as detectors see it.
///
/// ```
/// use std::time::Duration;
/// use taskd_core::job::JobTime;
/// use taskd_core::testing::Timeline;
/// use taskd_core::trace::Signal;
///
/// let froze = Timeline::of_ranks(2)
///     .steady(Duration::from_secs(1))
///     .wait(Duration::from_secs(60))
///     .rank(1, Signal::Heartbeat);
/// assert_eq!(froze.view().now, JobTime::START + Duration::from_secs(61));
/// ```
#[derive(Clone, Debug)]
pub struct Timeline {
    view: View,
    moments: Vec<Moment>,
}

impl Timeline {
    /// A job of so many ranks, four on a host, each with a device of its own and all in one data-parallel group. They have
    /// just begun to run.
    #[must_use]
    pub fn of_ranks(ranks: u32) -> Timeline {
        let host = |rank: u32| NodeId(Name::from(format!("host-{}", rank / RANKS_PER_HOST)));
        let member = |rank: u32| Member {
            incarnation: crate::job::Incarnation(1),
            node: Some(host(rank)),
            device: u16::try_from(rank % RANKS_PER_HOST).ok(),
        };
        let group = GroupId { kind: GroupKind::Dp, index: 0 };
        let world = World::first((0..ranks).map(|rank| (Rank(rank), member(rank))).collect())
            .with_groups(BTreeMap::from([(group, (0..ranks).map(Rank).collect())]));
        let proc = |rank: u32| Proc {
            incarnation: crate::job::Incarnation(1),
            generation: world.generation(),
            wanted: true,
            stopped_for: None,
            node: Some(host(rank)),
            pid: Some(rank + 1000),
            phase: Phase::Pending("ordered".into()),
            step: None,
            progress_at: JobTime::START,
            link: None,
            unlinked_at: None,
            unguarded: false,
            reports_steps: false,
            ended_at: None,
        };
        let status = |node| NodeStatus { node, state: NodeState::Ready, slots: RANKS_PER_HOST };
        let view = View {
            now: JobTime::START,
            spec: Arc::new(JobSpec::new("timeline", ranks, WorkerSpec::new(["train"]))),
            procs: (0..ranks).map(|rank| (Role::Rank(Rank(rank)), proc(rank))).collect(),
            nodes: (0..ranks).map(|rank| (host(rank), status(host(rank)))).collect(),
            world: Arc::new(world),
            mending: false,
            replicas: Replicas::default(),
            guards: BTreeMap::new(),
            on_trial: None,
            meets_at: None,
        };
        let begun = Timeline { view, moments: Vec::new() };
        (0..ranks).fold(begun, |timeline, rank| timeline.rank(rank, Signal::Phase(Phase::Running)))
    }

    /// Four ranks that train for 20 s without anything wrong.
    #[must_use]
    pub fn healthy() -> Timeline {
        Timeline::of_ranks(4).steady(Duration::from_secs(20))
    }

    /// Whatever can happen to a job of a few ranks, also what makes no sense: unknown ranks, numbers that are none, the
    /// largest step. The same seed gives the same timeline.
    #[must_use]
    pub fn random(seed: u64) -> Timeline {
        let mut rng = StdRng::seed_from_u64(seed);
        let ranks = rng.random_range(1..=8);
        (0..HAPPENINGS).fold(Timeline::of_ranks(ranks), |timeline, _| happen(&mut rng, timeline))
    }

    /// Nothing is seen for so long.
    #[must_use]
    pub fn wait(mut self, silence: Duration) -> Timeline {
        self.view.now = self.view.now + silence;
        self
    }

    /// A source says this about one rank, in its present incarnation.
    #[must_use]
    pub fn rank(self, rank: u32, signal: Signal) -> Timeline {
        self.tell(Domain::Process(Role::Rank(Rank(rank))), signal)
    }

    /// A source says this.
    #[must_use]
    pub fn tell(mut self, about: Domain, signal: Signal) -> Timeline {
        let now = self.view.now;
        let mut incarnation = None;
        if let Domain::Process(role) = &about
            && let Some(proc) = self.view.procs.get_mut(role)
        {
            incarnation = Some(proc.incarnation);
            match &signal {
                Signal::Phase(phase) => proc.phase = phase.clone(),
                Signal::Progress { step } => proc.step = Some(*step),
                _ => {}
            }
            if matches!(signal, Signal::Phase(Phase::Running) | Signal::Progress { .. }) {
                proc.progress_at = now;
            }
        }
        let observation = Observation { at: now, about, incarnation, generation: None, signal };
        self.moments.push(Moment { observation, view: self.view.clone() });
        self
    }

    /// Every rank that runs beats ten times a second and completes five steps a second, for so long.
    #[must_use]
    pub fn steady(mut self, time: Duration) -> Timeline {
        let beats = time.as_nanos() / HEARTBEAT_EVERY.as_nanos();
        for beat in 1..=u64::try_from(beats).unwrap_or(u64::MAX) {
            self = self.wait(HEARTBEAT_EVERY);
            let training: Vec<(Rank, u64)> =
                self.view.training().map(|(rank, p)| (rank, p.step.map_or(1, |step| step.saturating_add(1)))).collect();
            for (rank, step) in training {
                self = self.rank(rank.0, Signal::Heartbeat);
                if beat % HEARTBEATS_PER_STEP == 0 {
                    self = self.rank(rank.0, Signal::Progress { step });
                }
            }
        }
        self
    }

    /// Another process takes the rank's place. It runs after the given time.
    #[must_use]
    pub fn replace(mut self, rank: u32, within: Duration) -> Timeline {
        let Some(proc) = self.view.procs.get_mut(&Role::Rank(Rank(rank))) else { return self };
        proc.incarnation = proc.incarnation.next();
        proc.phase = Phase::Pending("ordered".into());
        proc.step = None;
        self.wait(within).rank(rank, Signal::Phase(Phase::Running))
    }

    /// Changes the job as it stands in a way for which there is no method, such as a host's state.
    #[must_use]
    pub fn edit(mut self, change: impl FnOnce(&mut View)) -> Timeline {
        change(&mut self.view);
        self
    }

    /// The job as it stands in the end.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// All that was seen.
    #[must_use]
    pub fn moments(&self) -> &[Moment] {
        &self.moments
    }
}

fn happen(rng: &mut StdRng, timeline: Timeline) -> Timeline {
    let rank = rng.random_range(0..10); // some of them are not in the world
    let timeline = match rng.random_range(0..4) {
        0 => timeline, // at the same moment
        1 | 2 => timeline.wait(Duration::from_millis(rng.random_range(1..500))),
        _ => timeline.wait(Duration::from_millis(rng.random_range(500..120_000))),
    };
    match rng.random_range(0..20) {
        0 => timeline.replace(rank, Duration::from_millis(rng.random_range(0..5_000))),
        1..4 => timeline.steady(HEARTBEAT_EVERY * 2),
        4..14 => timeline.rank(rank, any_signal(rng)),
        14..17 => timeline.tell(Domain::Process(Role::Rank(Rank(rank))), any_phase(rng)),
        _ => {
            let (about, signal) = (any_domain(rng, rank), any_signal(rng));
            timeline.tell(about, signal)
        }
    }
}

fn any_domain(rng: &mut StdRng, rank: u32) -> Domain {
    let node = NodeId(Name::from(format!("host-{}", rank / RANKS_PER_HOST)));
    match rng.random_range(0..6) {
        0 => Domain::Job,
        1 => Domain::Node(node),
        2 => Domain::Device(node, rng.random()),
        3 => Domain::Process(Role::Service(Name::new("store"))),
        4 => Domain::Group(GroupId { kind: GroupKind::Dp, index: rng.random_range(0..2) }),
        _ => Domain::Plugin(Name::new("conformance")),
    }
}

fn any_phase(rng: &mut StdRng) -> Signal {
    let how = match rng.random_range(0..4) {
        0 => Termination::Code(0),
        1 => Termination::Code(rng.random()),
        2 => Termination::Signal { number: rng.random_range(1..65), core_dumped: rng.random() },
        _ => Termination::Unknown,
    };
    Signal::Phase(match rng.random_range(0..4) {
        0 => Phase::Running,
        1 => Phase::Dead(how),
        _ => Phase::Exited(Box::new(Exit { error: rng.random_bool(0.5).then(|| any_error(rng)), ..Exit::new(how) })),
    })
}

fn any_signal(rng: &mut StdRng) -> Signal {
    match rng.random_range(0..11) {
        0 | 1 => Signal::Heartbeat,
        2 => Signal::Progress { step: pick(rng, &[0, 1, 7, 1_000, u64::MAX]) },
        3 | 4 => {
            let names = ["loss", "step.time_ms", "device.temperature_c", "heartbeat_age_ms", ""];
            let values = [0.0, -1.0, 95.5, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
            Signal::Metric { name: Name::new(pick(rng, &names)), value: pick(rng, &values) }
        }
        5 => Signal::Error(any_error(rng)),
        6 => Signal::Lost { count: pick(rng, &[0, 1, u64::MAX]) },
        7 => match rng.random_range(0..3) {
            0 => Signal::SupervisorSlept { nanos: pick(rng, &[0, 2_000_000_000, u64::MAX]) },
            1 => Signal::Ext(Box::new(Ext::of(&Noise(rng.random())))),
            _ => Signal::Evidence(Arc::new(Evidence {
                by: Name::new("somebody-else"),
                tag: rng.random(),
                what: Name::new("process-state"),
                about: Domain::Job,
                exhibit: Exhibit::Silence,
            })),
        },
        8 => Signal::Step(Box::new(any_step(rng))),
        9 => Signal::CollectivePending {
            group: pick(rng, &["default", "dp_1", ""]).into(),
            sequence: pick(rng, &[0, 7, u64::MAX]),
            nanos: pick(rng, &[0, 1_000_000_000, u64::MAX]),
        },
        _ => any_phase(rng),
    }
}

/// Also one whose figures do not go together.
fn any_step(rng: &mut StdRng) -> StepTimes {
    let mut nanos = || pick(rng, &[0, 1, 20_000_000, 100_000_000, u64::MAX]);
    StepTimes {
        wall_ns: nanos(),
        cpu_ns: Some(nanos()),
        wait_ns: nanos(),
        data_loader_ns: nanos(),
        save_checkpoint_ns: nanos(),
        step: pick(rng, &[0, 1, 2, 3, 1_000, u64::MAX]),
        lost: pick(rng, &[0, 0, 0, 1, u64::MAX]),
        ..StepTimes::default()
    }
}

fn any_error(rng: &mut StdRng) -> Box<ErrorReport> {
    Box::new(ErrorReport {
        family: Name::new(pick(rng, &["python", "cuda.xid", "hccl", ""])),
        code: Name::new(pick(rng, &["ValueError", "79", ""])),
        text: "something went wrong\nin two lines".into(),
        follow_up: rng.random(),
        retry_free: rng.random(),
        step: rng.random_bool(0.5).then(|| rng.random_range(0..100)),
    })
}

fn pick<T: Copy>(rng: &mut StdRng, among: &[T]) -> T {
    among[rng.random_range(0..among.len())]
}

/// A signal that no crate knows.
struct Noise(u8);

impl Extension for Noise {
    const NAME: Name = Name::new("conformance.noise");
    fn encode(&self) -> Bytes {
        Bytes::copy_from_slice(&[self.0])
    }
    fn decode(body: &[u8]) -> Option<Noise> {
        body.first().copied().map(Noise)
    }
}
