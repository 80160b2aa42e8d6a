//! Collects the ranks' reports of each step.
//!
//! This module compares nothing.

use crate::detect::device_steps::{Basis, DeviceFigures};
use crate::job::{Generation, Incarnation, JobTime, Rank, Role};
use crate::state::{Phase, View};
use crate::trace::{Observation, StepTimes};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Maximum number of incomplete steps. Above it the oldest step is used as it is, and ranks missing from it are not
/// awaited until they report a step again.
const WAITING_STEPS_MAX: usize = 64;

/// What one rank reported about one step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Reported {
    host: Option<Sample>,
    pub(super) device: Option<Sample>,
}

impl Reported {
    /// Creates a report; `None` if no figure can be used.
    pub(super) fn of(times: &StepTimes, device: Option<DeviceFigures>, ended: JobTime) -> Option<Reported> {
        let host = Sample::of(times, ended);
        let device = device.filter(|_| times.lost == 0).map(|device| Sample::of_device(times, &device, ended));
        (host.is_some() || device.is_some()).then_some(Reported { host, device })
    }

    /// Returns the times on which a comparison is based.
    pub(super) const fn by(&self, basis: Basis) -> Option<Sample> {
        match basis {
            Basis::Host => self.host,
            Basis::Device => self.device,
        }
    }
}

/// One rank's times in one step, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Sample {
    /// Start of the step.
    pub(super) began: JobTime,
    /// The rank's own time without saving checkpoints, which is not work that others wait for in every step.
    pub(super) own: f64,
    pub(super) wait: f64,
    /// The part of the own time in which the rank's thread was on a CPU.
    pub(super) cpu: Option<f64>,
    pub(super) data: f64,
}

impl Sample {
    /// Creates a sample; `None` if the figures cannot be used.
    pub(super) fn of(times: &StepTimes, ended: JobTime) -> Option<Sample> {
        let own = float(times.own_ns().saturating_sub(times.save_checkpoint_ns));
        let sample = Sample {
            began: ended.before(Duration::from_nanos(times.wall_ns)),
            own,
            wait: float(times.wait_ns),
            cpu: times.cpu_ns.map(|cpu| float(cpu).min(own)),
            data: float(times.data_loader_ns),
        };
        (own > 0.0 && times.lost == 0).then_some(sample)
    }

    /// Creates a sample of the figures of the rank's device. Without communication of the device, the process waits.
    fn of_device(times: &StepTimes, device: &DeviceFigures, ended: JobTime) -> Sample {
        Sample {
            began: ended.before(Duration::from_nanos(times.wall_ns)),
            own: float(device.compute_ns.saturating_add(device.data_ns)),
            wait: float(device.wait_ns.unwrap_or(times.wait_ns)),
            cpu: None,
            data: float(device.data_ns),
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "of times in nanoseconds only the first digits matter")]
fn float(nanos: u64) -> f64 {
    nanos as f64
}

/// Generation of the world and incarnations of the ranks to which the gathered steps belong.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::detect) struct Era {
    generation: Generation,
    incarnations: BTreeMap<u32, Incarnation>,
}

/// Result of [`Era::admit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::detect) enum Admission {
    /// The step is of another process than the current one of the rank, or of a rank outside of the world.
    Ignored,
    /// The step belongs to the same world and processes as those before.
    Same,
    /// The step is the first one of another world, or of a restarted rank: what was gathered before does not count.
    New,
}

impl Era {
    /// Decides whether a step of a rank counts.
    pub(in crate::detect) fn admit(&mut self, rank: Rank, o: &Observation, view: &View) -> Admission {
        let Some(proc) = view.proc(&Role::Rank(rank)) else { return Admission::Ignored };
        let is_of_another = o.incarnation.is_some_and(|incarnation| incarnation != proc.incarnation);
        if is_of_another || !view.world.members().contains_key(&rank) {
            return Admission::Ignored;
        }
        let (generation, incarnation) = (view.world.generation(), proc.incarnation);
        let known = self.incarnations.insert(rank.0, incarnation);
        if generation == self.generation && known.is_none_or(|known| known == incarnation) {
            return Admission::Same;
        }
        *self = Era { generation, incarnations: [(rank.0, incarnation)].into() };
        Admission::New
    }
}

/// Steps that some ranks have not reported yet.
///
/// `S` is what is kept of a rank's report.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::detect) struct Gathering<S> {
    steps: BTreeMap<u64, BTreeMap<u32, S>>,
    /// Number of the last step that each rank has reported, by rank.
    reached: BTreeMap<u32, u64>,
    /// Ranks whose reports of steps are not awaited, because they have reported none for too long.
    silent: BTreeSet<u32>,
    /// The lowest rank whose report of the oldest step is awaited; all ranks below it have been checked.
    waits_for: u32,
}

impl<S> Default for Gathering<S> {
    fn default() -> Gathering<S> {
        let (steps, reached, silent) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Gathering { steps, reached, silent, waits_for: 0 }
    }
}

impl<S> Gathering<S> {
    /// Adds a rank's report of a step; without a sample if its figures cannot be used.
    pub(in crate::detect) fn add(&mut self, rank: u32, step: u64, sample: Option<S>) {
        match self.reached.get(&rank) {
            Some(last) if *last == step => return,
            Some(last) if *last > step => *self = Gathering::default(), // the program has restarted its count
            _ => {}
        }
        self.reached.insert(rank, step);
        self.silent.remove(&rank);
        let samples = self.steps.entry(step).or_default();
        samples.extend(sample.map(|sample| (rank, sample)));
    }

    /// Removes and returns the oldest step, if no rank will report it any more.
    pub(in crate::detect) fn next_whole(&mut self, view: &View) -> Option<(u64, BTreeMap<u32, S>)> {
        let (&step, _) = self.steps.first_key_value()?;
        if self.steps.len() > WAITING_STEPS_MAX {
            let missing: Vec<u32> = self.missing(0, step, view).collect();
            self.silent.extend(missing);
        } else {
            let missing = self.missing(self.waits_for, step, view).next();
            if let Some(rank) = missing {
                self.waits_for = rank;
                return None;
            }
        }
        self.waits_for = 0;
        self.steps.pop_first()
    }

    /// Returns training ranks from `from` on that may still report this step.
    fn missing<'a>(&'a self, from: u32, step: u64, view: &'a View) -> impl Iterator<Item = u32> + 'a {
        let members = view.world.members().range(Rank(from)..).map(|(rank, _)| *rank);
        let is_past = move |rank: &Rank| self.reached.get(&rank.0).is_some_and(|reached| *reached >= step);
        let trains = |rank: &Rank| view.proc(&Role::Rank(*rank)).is_some_and(|p| p.wanted && p.phase == Phase::Running);
        let missing = members.filter(move |rank| !is_past(rank) && !self.silent.contains(&rank.0));
        missing.filter(trains).map(|rank| rank.0)
    }
}
