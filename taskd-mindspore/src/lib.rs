//! MindSpore for taskd: msrun's contract with its scheduler and workers, over any launcher.
//!
//! [`MindSporeLauncher`] wraps another launcher and completes the processes that this launcher starts: it adds the
//! environment of scheduler and workers, a new rendezvous address for each generation, msrun's log files, and the
//! helper that gives an unmodified training script its lifeline, heartbeat, progress and records. [`with_scheduler`]
//! adds the scheduler to a job as a [service] that taskd supervises and restarts together with all ranks. [`error`]
//! interprets the output of a failed process and distinguishes a program's own failure from a lost peer. With the
//! feature `venv`, `venv` finds or creates the Python environment for examples and tests.
//!
//! On the CPU a process cannot rejoin a running MindSpore cluster, so a recovery restarts all processes, including the
//! scheduler ([`Restart`](taskd_core::recover::Restart)), and does not wait for MindSpore's own timeouts.
//!
//! This crate does not import, link or start MindSpore.
//!
//! [service]: taskd_core::job::JobSpec::services

pub mod error;
mod launch;
#[cfg(feature = "venv")]
pub mod venv;

pub use launch::{MindSpore, MindSporeLauncher, PYTHON_FILES, SCHEDULER, with_scheduler};
