//! MindSpore for taskd: msrun's contract with its scheduler and workers, over any launcher.
//!
//! [`MindSporeLauncher`] completes what a launcher starts: the environment of scheduler and workers, a fresh place to meet for
//! each generation, msrun's log files, and the helper that gives an unmodified training script its lifeline, heartbeat,
//! progress and records. [`with_scheduler`] adds the scheduler to a job as the [service] that it is: supervised, started anew
//! with all ranks. [`error`] reads what a failed process says and tells a program's own failure from a lost peer. [`venv`]
//! finds or makes the Python that examples and tests run.
//!
//! On the CPU a process cannot join a running cluster again, so a recovery starts everybody anew, scheduler included
//! ([`Restart`](taskd_core::recover::Restart)); MindSpore's own timeouts are never waited for.
//!
//! Nothing here imports, links or starts MindSpore.
//!
//! [service]: taskd_core::job::JobSpec::services

pub mod error;
mod launch;
pub mod venv;

pub use launch::{MindSpore, MindSporeLauncher, PYTHON_FILES, SCHEDULER, with_scheduler};
