//! Figures of devices for detectors of slow ranks: joins them with the steps, and decides if they are compared.
//!
//! A job is compared either by the figures of its processes or by those of its devices, never by a mixture: a rank
//! without figures of a device among ranks that have them is not compared.

use crate::trace::{DeviceTimes, StepTimes};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Number of steps in sequence with the other basis after which a detector changes to it, and learns again. Fewer
/// steps, such as those of a short trace of the devices, change nothing.
const BASIS_STEPS: u32 = 8;

/// What the ranks of a job are compared by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Basis {
    /// The times of the processes.
    #[default]
    Host,
    /// The times of their devices.
    Device,
}

/// What to do with a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Compare the ranks by this basis.
    Use(Basis),
    /// Leave the step out: it lacks the figures by which the job is compared.
    Skip,
    /// Start again with this basis.
    Restart(Basis),
}

/// Chooses what the ranks of a job are compared by, and keeps to it through short traces of the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bases {
    basis: Option<Basis>,
    /// Number of steps in sequence with the other basis.
    against: u32,
}

impl Bases {
    /// Decides on a step that `of` ranks have reported, `with` of them with figures of a device. Eight steps in sequence
    /// with the other basis change it.
    pub fn choose(&mut self, with: usize, of: usize) -> Choice {
        let found = if with * 2 > of { Basis::Device } else { Basis::Host };
        let basis = *self.basis.get_or_insert(found);
        if basis == found {
            self.against = 0;
            return Choice::Use(basis);
        }
        self.against += 1;
        if self.against >= BASIS_STEPS {
            *self = Bases { basis: Some(found), against: 0 };
            return Choice::Restart(found);
        }
        match basis {
            Basis::Host => Choice::Use(Basis::Host), // each rank has the times of its process as well
            Basis::Device => Choice::Skip,
        }
    }
}

/// The figures of a rank's device in a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct DeviceFigures {
    /// Time in which the device computed.
    pub(super) compute_ns: u64,
    /// Time in which it only communicated; `None` if it did not communicate.
    pub(super) wait_ns: Option<u64>,
    /// Time in which the process waited for its next batch, as far as the device had nothing to do meanwhile.
    pub(super) data_ns: u64,
}

impl DeviceFigures {
    /// Returns the figures if they belong to this step and are complete.
    pub(super) fn of(times: &DeviceTimes, step: &StepTimes) -> Option<DeviceFigures> {
        (times.step == step.step && times.lost == 0 && times.compute_ns > 0).then(|| DeviceFigures {
            compute_ns: times.compute_ns,
            wait_ns: (times.communication_ns > 0).then_some(times.wait_ns),
            data_ns: step.data_loader_ns.min(times.idle_ns),
        })
    }
}

/// The latest figures of each rank's device, until the rank's step arrives.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct DeviceSteps {
    latest: BTreeMap<u32, DeviceTimes>,
}

impl DeviceSteps {
    /// Adds the figures of a rank's device. One step of each rank is kept: its source reports the step itself next.
    pub(super) fn add(&mut self, rank: u32, times: &DeviceTimes) {
        self.latest.insert(rank, times.clone());
    }

    /// Returns the figures that belong to this step of a rank; `None` if there are none, or if they are incomplete.
    pub(super) fn take(&mut self, rank: u32, step: &StepTimes) -> Option<DeviceFigures> {
        self.latest.remove(&rank).and_then(|times| DeviceFigures::of(&times, step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_belong_to_the_step_with_their_number_and_are_whole() {
        let device = DeviceTimes {
            step: 7,
            wall_ns: 100,
            compute_ns: 60,
            communication_ns: 30,
            wait_ns: 20,
            copy_ns: 0,
            idle_ns: 5,
            spans: 9,
            lost: 0,
        };
        let step = StepTimes { step: 7, wall_ns: 90, data_loader_ns: 40, ..StepTimes::default() };
        let taken = |device: &DeviceTimes, step: &StepTimes| {
            let mut steps = DeviceSteps::default();
            steps.add(3, device);
            (steps.take(4, step).is_none(), steps.take(3, step), steps.take(3, step).is_none())
        };
        let figures = DeviceFigures { compute_ns: 60, wait_ns: Some(20), data_ns: 5 };
        assert_eq!(taken(&device, &step), (true, Some(figures), true));
        assert_eq!(taken(&device, &StepTimes { step: 8, ..step.clone() }).1, None);
        assert_eq!(taken(&DeviceTimes { lost: 1, ..device.clone() }, &step).1, None);
        assert_eq!(taken(&DeviceTimes { compute_ns: 0, ..device.clone() }, &step).1, None);
        let silent = DeviceTimes { communication_ns: 0, wait_ns: 0, ..device };
        assert_eq!(taken(&silent, &step).1, Some(DeviceFigures { wait_ns: None, ..figures }));
    }

    #[test]
    fn a_short_trace_of_the_devices_changes_no_basis() {
        let mut bases = Bases::default();
        assert_eq!(bases.choose(0, 4), Choice::Use(Basis::Host));
        for _ in 0..20 {
            (1..BASIS_STEPS).for_each(|_| assert_eq!(bases.choose(4, 4), Choice::Use(Basis::Host)));
            assert_eq!(bases.choose(2, 4), Choice::Use(Basis::Host), "half of the ranks are no majority");
        }
        (1..BASIS_STEPS).for_each(|_| assert_eq!(bases.choose(3, 4), Choice::Use(Basis::Host)));
        assert_eq!(bases.choose(3, 4), Choice::Restart(Basis::Device));
        (1..BASIS_STEPS).for_each(|_| assert_eq!(bases.choose(0, 4), Choice::Skip));
        assert_eq!(bases.choose(4, 4), Choice::Use(Basis::Device));
        (1..BASIS_STEPS).for_each(|_| assert_eq!(bases.choose(0, 4), Choice::Skip));
        assert_eq!(bases.choose(0, 4), Choice::Restart(Basis::Host));
    }
}
