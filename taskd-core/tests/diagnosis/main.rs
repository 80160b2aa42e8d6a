//! The diagnosing detectors in simulated training jobs, seeded: with something injected, and clean.
//!
//! What is injected and what was blamed is counted, printed, and held against bounds.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod collectives;
mod devices;
mod hang;
mod runtime;
mod slow_rank;
mod training;
