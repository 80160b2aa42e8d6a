//! The guard: a small process that is the parent of a job's processes on one host, and outlives the supervisor that
//! started it.
//!
//! The guard starts, stops and reaps processes, removes what they leave behind, drains their output and keeps their
//! exits until they are acknowledged. It takes no decision about the job: it carries out orders, and once its owner is
//! lost, the order that it received for that case ([`OnOwnerLoss`](super::OnOwnerLoss)). If its owner has set a
//! deadline ([`Fence`](super::Fence)), the guard kills all processes at that time, also if the owner is stopped or dead
//! by then, and continues: it keeps their exits, and a later owner can start others. It has no async runtime and waits
//! for all events in one poll call; no peer's message and no disk error can end it. So that a death is reported at once
//! on a host without an idle core, the guard requests short scheduler slices (Linux 6.12 and later); its child
//! processes do not inherit them.
//!
//! A host program runs the guard from its own binary, if its `main` calls [`init`] first:
//! ```no_run
//! taskd_core::launch::guard::init(); // first in `main`
//! // the program itself
//! ```
//! A program that cannot do that configures the path of the `taskd-guard` binary
//! ([`GuardProgram::Path`](super::GuardProgram::Path)).

pub(crate) mod cgroup;
mod claim;
mod conns;
mod counters;
mod engine;
mod entry;
mod exit_watch;
mod fd_store;
mod init;
mod lifeline;
pub(in crate::launch) mod listen_sockets;
mod logs;
mod poll;
pub(crate) mod proc_cgroups;
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

/// Upper bound of the durations that owners choose, so that adding one to a clock does not overflow.
pub(crate) const A_CENTURY: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

pub use counters::GuardCounters;
pub(crate) use entry::{GUARD_NAME, init_was_called, run_in_thread};
pub use entry::{init, main};
pub use init::run_as_init;
pub(crate) use lifeline::how_it_ended;
