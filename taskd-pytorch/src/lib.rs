//! PyTorch for taskd: torchrun's contract with a worker, over any launcher.
//!
//! [`TorchLauncher`] completes what a launcher starts: the worker environment, a fresh rendezvous for each generation, and
//! a one-file helper that gives an unmodified training script its lifeline, heartbeat and progress. [`error`] reads what a
//! failed rank says and tells a program's own failure from a lost peer. [`store`] is a server for torch's `TCPStore` clients
//! that outlives every rank. [`venv`] finds or makes the Python that examples and tests run.
//!
//! Nothing here imports, links or starts PyTorch.

pub mod error;
mod launch;
pub mod store;
pub mod venv;

pub use launch::{PYTHON_FILES, STORE, Torch, TorchLauncher, with_store};
