//! Suites that check a plugin against the contract of its trait, clause by clause.
//!
//! A suite judges only what can be observed through the trait, and what its caller declares about the plugin's
//! environment. It never omits a clause silently: a clause that it could not check is [skipped](Report::skipped) with
//! the reason.
//!
//! | plugin | suite | its clauses |
//! |---|---|---|
//! | [`TraceSource`](crate::trace::TraceSource) | [`trace_source()`] | [`mod@trace_source`] |
//! | [`FaultDetector`](crate::detect::FaultDetector) | [`fault_detector()`] | [`mod@fault_detector`] |
//! | [`Launcher`](crate::launch::Launcher) | [`launcher()`] | [`mod@launcher`] |
//! | [`RecoveryStrategy`](crate::recover::RecoveryStrategy) | [`recovery_strategy()`] | [`mod@recovery_strategy`] |
//!
//! Every suite ends in `check`, which returns its findings, or `assert`, which panics with all of them.

pub mod fault_detector;
pub mod launcher;
pub mod recovery_strategy;
pub mod trace_source;
mod verdict;

pub use fault_detector::fault_detector;
pub use launcher::launcher;
pub use recovery_strategy::recovery_strategy;
pub use trace_source::trace_source;
pub use verdict::{Clause, Report, Violation};
#[doc(hidden)]
pub use verdict::{Verdict, insist};
