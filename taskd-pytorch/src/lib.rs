//! PyTorch for taskd: torchrun's contract with a worker, over any launcher.
//!
//! [`TorchLauncher`] wraps another launcher and completes the processes that this launcher starts: it adds torchrun's
//! worker environment, a new rendezvous for each generation, and a Python helper that gives an unmodified training
//! script its lifeline, heartbeat and progress. [`error`] interprets a failed rank's output and distinguishes a
//! program's own failure from a lost peer. [`flight_recorder`] reads the dumps of torch's flight recorder. [`store`] is
//! a server for torch's `TCPStore` clients that outlives every rank. With the feature `analysis`, `kineto` reads the
//! profiler's traces. With the feature `venv`, `venv` finds or creates the Python environment for examples and tests.
//!
//! This crate does not import, link or start PyTorch.

pub mod error;
pub mod flight_recorder;
#[cfg(feature = "analysis")]
pub mod kineto;
mod launch;
pub mod store;
#[cfg(feature = "venv")]
pub mod venv;

pub use launch::{PYTHON_FILES, STORE, Torch, TorchLauncher, with_store};
