//! A job under fire as it is seen from outside: its processes, what it leaves behind, and what its supervisors tell. Shared by
//! the soak runs.
//!
//! It never touches the job.

pub(crate) mod census;
pub(crate) mod decks;
pub(crate) mod leaks;
pub(crate) mod notes;
pub(crate) mod supervised;
