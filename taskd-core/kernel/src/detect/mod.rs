//! Fault detection: the trait [`FaultDetector`] and the built-in detectors, which find out what is wrong, where, since
//! when, and with which confidence.
//!
//! Detectors are pure: they never await, read a clock, start a process, or decide how to handle a fault.

mod detector;
mod device_steps;
mod exit;
pub mod fail_slow;
mod failed_step;
mod fault;
#[cfg(test)]
pub(crate) mod fixture;
pub mod hang;
pub mod host_history;
pub mod log_pattern;
mod numerical;
mod program;
#[cfg(test)]
mod properties;
pub mod reference;
mod restart_storm;
mod saved;
mod shrunk;
mod silence;
mod slow_rank;
mod stall;

#[cfg(any(test, feature = "test-util"))]
pub use detector::MockFaultDetector;
pub use detector::{Debounce, FaultDetector, FaultDetectorExt, FnDetector, When, detector_fn};
pub use exit::ExitDetector;
pub(crate) use exit::INTERRUPTED;
pub use fail_slow::FailSlowDetector;
pub use failed_step::FailedStepDetector;
pub(crate) use fault::CHARGED;
pub use fault::{Damage, Evidence, Fault, FaultClass, Finding, Findings, Health, OPERATOR, Suspect};
pub use hang::HangDetector;
pub use log_pattern::LogPatternDetector;
pub use numerical::NumericalDetector;
pub use program::ProgramErrorDetector;
pub use restart_storm::RestartStormDetector;
pub use shrunk::ShrunkDetector;
pub use silence::SilenceDetector;
pub use slow_rank::SlowRankDetector;
pub use stall::StallDetector;

/// Returns the default detectors with their default settings: `exit`, `failed-step`, `program-error`, `silence`,
/// `stall`, `restart-storm`, `hang`, `shrunk`.
///
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use std::time::Duration;
/// use taskd_core::detect::{FaultDetectorExt, StallDetector, defaults};
///
/// // All of them, but for one that is set differently:
/// let mut detectors = defaults();
/// detectors.retain(|d| d.name() != "stall");
/// detectors.push(StallDetector::after(Duration::from_secs(3600)).boxed());
/// # assert_eq!(detectors.len(), defaults().len());
/// ```
#[must_use]
pub fn defaults() -> Vec<Box<dyn FaultDetector>> {
    vec![
        ExitDetector::default().boxed(),
        FailedStepDetector::new().boxed(),
        ProgramErrorDetector::default().boxed(),
        SilenceDetector::default().boxed(),
        StallDetector::default().boxed(),
        RestartStormDetector::default().boxed(),
        HangDetector::default().boxed(),
        ShrunkDetector::default().boxed(),
    ]
}
