//! External observation of a job under fire: its processes, the files that it leaves, and the reports of its
//! supervisors. Shared by the soak runs.
//!
//! Only `job` acts on the job, as the soak runs direct.

pub(crate) mod census;
pub(crate) mod decks;
pub(crate) mod job;
pub(crate) mod leaks;
pub(crate) mod notes;
pub(crate) mod supervised;
