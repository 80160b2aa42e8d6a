//! A job under fire as it is seen from outside: its processes, what it leaves behind, and what its supervisors report.
//! Shared by the soak runs.
//!
//! Only `job` touches it, as the soak runs say.

pub(crate) mod census;
pub(crate) mod decks;
pub(crate) mod job;
pub(crate) mod leaks;
pub(crate) mod notes;
pub(crate) mod supervised;
