//! The guard: a tiny process that is the parent of a job's processes on one machine, and outlives whoever started it.
//!
//! It starts, stops and reaps processes, removes what they leave behind, drains their output and keeps their exits until
//! they are acknowledged. It decides nothing about the job: it carries out orders, and when its owner is gone, what it
//! was told beforehand ([`OnOwnerLoss`](super::OnOwnerLoss)). It has no async runtime, waits for everything at one place,
//! and nothing that a peer sends or a disk refuses can end it. So that a death is told at once on a machine whose cores all
//! compute, it asks the scheduler for short turns (Linux 6.12 and later); its processes do not inherit that.
//!
//! A host program runs it from its own binary, if the first thing that its `main` does is to call [`init`]:
//! ```no_run
//! taskd_core::launch::guard::init(); // first in `main`
//! // the program itself
//! ```
//! A program that cannot do that names the `taskd-guard` binary ([`GuardProgram::Path`](super::GuardProgram::Path)).

pub(crate) mod cgroup;
mod claim;
mod conns;
mod counters;
pub(in crate::launch) mod doors;
mod end_of;
mod engine;
mod entry;
mod init;
mod keeps;
mod lifeline;
mod logs;
mod poll;
pub(crate) mod proc_cgroups;
pub(crate) mod proc_fs;
mod procs;
mod refused;
pub(crate) mod run_dir;
mod spawn;
mod standby;
mod streams;
mod sys;
pub(crate) mod tree;
pub(crate) mod wire;

use std::time::Duration;

/// Times that owners choose are no longer than this: no clock could tell their end.
pub(crate) const A_CENTURY: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

pub use counters::GuardCounters;
pub(crate) use entry::{GUARD_NAME, init_was_called, run_in_thread};
pub use entry::{init, main};
pub use init::run_as_init;
pub(crate) use lifeline::how_it_ended;
