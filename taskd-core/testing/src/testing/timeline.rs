//! Timelines for tests of detectors: observations in order, each with the state of the job at that time.
//!
//! A timeline contains data only: it makes no decisions and calls no plugin.

use crate::job::{
    Domain, ErrorReport, Exit, GroupId, GroupKind, JobSpec, JobTime, Member, Name, NodeId, Rank, Role, Termination,
    WorkerSpec, World,
};
use crate::launch::{NodeState, NodeStatus, Phase};
use crate::state::{Proc, View};
use crate::trace::{
    Channel, DeviceTimes, Ext, Extension, Observation, Probe, ProbeReply, ProbeResult, Signal, StepTimes,
    StepTransfers, TransferTime,
};
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Ranks on one host of a timeline.
const RANKS_PER_HOST: u32 = 4;
const HEARTBEAT_EVERY: Duration = Duration::from_millis(100);
/// Heartbeats per training step.
const HEARTBEATS_PER_STEP: u64 = 2;
/// Number of events in a random timeline.
const HAPPENINGS: usize = 100;

/// One observation of a timeline, with the state of the job at that time.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The observation that is shown to a detector.
    pub observation: Observation,
    /// The state of the job, with the observation already included.
    pub view: View,
}

/// The observations of a fictitious job, for tests of detectors, in the order in which detectors receive them.
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
    /// Creates a timeline of a job of `ranks` ranks that have just begun to run. Each host has four ranks, each rank
    /// has its own device, and all ranks form one data-parallel group.
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
        let proc = |rank: u32| {
            let mut proc = Proc::ordered(crate::job::Incarnation(1), world.generation(), JobTime::START);
            (proc.node, proc.pid) = (Some(host(rank)), Some(rank + 1000));
            proc
        };
        let status = |node| NodeStatus::new(node, NodeState::Ready, RANKS_PER_HOST);
        let spec = JobSpec::new("timeline", ranks, WorkerSpec::new(["train"]));
        let mut view = View::new(JobTime::START, Arc::new(spec), Arc::new(world.clone()));
        view.procs = (0..ranks).map(|rank| (Role::Rank(Rank(rank)), proc(rank))).collect();
        view.nodes = (0..ranks).map(|rank| (host(rank), status(host(rank)))).collect();
        let begun = Timeline { view, moments: Vec::new() };
        (0..ranks).fold(begun, |timeline, rank| timeline.rank(rank, Signal::Phase(Phase::Running)))
    }

    /// Creates a timeline of four ranks that train for 20 s without a fault.
    #[must_use]
    pub fn healthy() -> Timeline {
        Timeline::of_ranks(4).steady(Duration::from_secs(20))
    }

    /// Creates a random timeline of a job of a few ranks, including inconsistent input: unknown ranks, values that are
    /// not numbers, the largest step. The same seed gives the same timeline.
    #[must_use]
    pub fn random(seed: u64) -> Timeline {
        let mut rng = StdRng::seed_from_u64(seed);
        let ranks = rng.random_range(1..=8);
        (0..HAPPENINGS).fold(Timeline::of_ranks(ranks), |timeline, _| happen(&mut rng, timeline))
    }

    /// Appends a period of the length `silence` without observations.
    #[must_use]
    pub fn wait(mut self, silence: Duration) -> Timeline {
        self.view.now = self.view.now + silence;
        self
    }

    /// Adds an observation of this signal about one rank, in its current incarnation.
    #[must_use]
    pub fn rank(self, rank: u32, signal: Signal) -> Timeline {
        self.tell(Domain::Process(Role::Rank(Rank(rank))), signal)
    }

    /// Adds an observation of this signal about a domain, such as a host.
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
        let observation = Observation::new(now, about, signal).with_incarnation(incarnation);
        self.moments.push(Moment { observation, view: self.view.clone() });
        self
    }

    /// Appends a period in which every running rank sends ten heartbeats per second and completes five steps per
    /// second.
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

    /// Replaces the process of a rank. The new process begins to run after the time `within`.
    #[must_use]
    pub fn replace(mut self, rank: u32, within: Duration) -> Timeline {
        let Some(proc) = self.view.procs.get_mut(&Role::Rank(Rank(rank))) else { return self };
        proc.incarnation = proc.incarnation.next();
        proc.phase = Phase::Pending("ordered".into());
        proc.step = None;
        self.wait(within).rank(rank, Signal::Phase(Phase::Running))
    }

    /// Changes the state of the job in a way for which there is no method, such as a host's state.
    #[must_use]
    pub fn edit(mut self, change: impl FnOnce(&mut View)) -> Timeline {
        change(&mut self.view);
        self
    }

    /// Returns the state of the job at the end of the timeline.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Returns all observations of the timeline, each with the state of the job at its time.
    #[must_use]
    pub fn moments(&self) -> &[Moment] {
        &self.moments
    }
}

fn happen(rng: &mut StdRng, timeline: Timeline) -> Timeline {
    let rank = rng.random_range(0..10); // some of these ranks are not in the world
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
        _ => Phase::Exited(Box::new(Exit::new(how).with_error(rng.random_bool(0.5).then(|| any_error(rng))))),
    })
}

fn any_signal(rng: &mut StdRng) -> Signal {
    match rng.random_range(0..13) {
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
            _ => Signal::ProbeReply(Arc::new(ProbeReply::new(
                &Probe::new("somebody-else", "process-state", Vec::new(), Duration::ZERO).with_tag(rng.random()),
                Domain::Job,
                ProbeResult::Silence,
            ))),
        },
        8 => Signal::Step(Box::new(any_step(rng))),
        9 => Signal::CollectivePending {
            group: pick(rng, &["default", "dp_1", ""]).into(),
            sequence: pick(rng, &[0, 7, u64::MAX]),
            nanos: pick(rng, &[0, 1_000_000_000, u64::MAX]),
        },
        10 => Signal::DeviceStep(Box::new(any_device_step(rng))),
        11 => Signal::StepTransfers(Box::new(any_transfers(rng))),
        _ => any_phase(rng),
    }
}

/// Returns the times of a random training step, which may be inconsistent.
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

/// Returns the times of a device in a random training step, which may be inconsistent.
fn any_device_step(rng: &mut StdRng) -> DeviceTimes {
    let mut nanos = || pick(rng, &[0, 1, 20_000_000, 100_000_000, u64::MAX]);
    DeviceTimes {
        wall_ns: nanos(),
        compute_ns: nanos(),
        communication_ns: nanos(),
        wait_ns: nanos(),
        idle_ns: nanos(),
        step: pick(rng, &[0, 1, 2, 3, 1_000, u64::MAX]),
        lost: pick(rng, &[0, 0, 0, 1, u64::MAX]),
        ..DeviceTimes::default()
    }
}

/// Returns the transfers of a random training step, which may be inconsistent.
fn any_transfers(rng: &mut StdRng) -> StepTransfers {
    let mut nanos = || pick(rng, &[0, 1, 20_000_000, 100_000_000, u64::MAX]);
    let first = vec![TransferTime { sequence: 1, before_end_ns: nanos() }];
    let (ended_unix_ns, shortest_ns) = (nanos(), nanos());
    let (peer, is_send, calls) =
        (pick(rng, &[0, 1, 2, u32::MAX]), pick(rng, &[false, true]), pick(rng, &[1, u32::MAX]));
    let channels = vec![Channel { peer, is_send, group: 7, calls, shortest_ns, first }];
    StepTransfers { step: pick(rng, &[0, 1, 2, 3, 1_000, u64::MAX]), ended_unix_ns, channels, left_out: 0 }
}

fn any_error(rng: &mut StdRng) -> Box<ErrorReport> {
    Box::new(
        ErrorReport::new(
            Name::new(pick(rng, &["python", "cuda.xid", "hccl", ""])),
            Name::new(pick(rng, &["ValueError", "79", ""])),
            "something went wrong\nin two lines",
        )
        .with_follow_up(rng.random())
        .with_retry_free(rng.random())
        .with_step(rng.random_bool(0.5).then(|| rng.random_range(0..100))),
    )
}

fn pick<T: Copy>(rng: &mut StdRng, among: &[T]) -> T {
    among[rng.random_range(0..among.len())]
}

/// A signal type that no crate defines.
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
