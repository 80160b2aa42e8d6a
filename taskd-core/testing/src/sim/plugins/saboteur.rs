//! A detector that panics on request.

use super::POISON;
use crate::detect::{FaultDetector, Findings};
use crate::job::Name;
use crate::state::View;
use crate::trace::{Observation, Signal};

/// Panics at the metric `sim.poison`. The world adds it to every job's plugins.
#[derive(Debug)]
pub(in crate::sim) struct Saboteur;

impl FaultDetector for Saboteur {
    fn name(&self) -> Name {
        Name::new("sim.saboteur")
    }

    fn observe(&mut self, observation: &Observation, _view: &View, _out: &mut Findings) {
        if let Signal::Metric { name, .. } = &observation.signal
            && *name == POISON
        {
            std::panic::resume_unwind(Box::new("poisoned")); // a panic that prints nothing: there are thousands
        }
    }
}
