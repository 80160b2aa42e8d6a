//! Is something wrong, where, since when, and how sure are we? The trait [`FaultDetector`] and the built-in detectors.
//!
//! Detectors are pure: they never await, read a clock, start anything or decide what to do about a fault.

mod detector;
mod fault;

#[cfg(any(test, feature = "test-util"))]
pub use detector::MockFaultDetector;
pub use detector::{Debounce, DetectorExt, FaultDetector, FnDetector, When, detector};
pub use fault::{Clue, Damage, Fault, FaultClass, Finding, Findings, Sound, Suspect};
