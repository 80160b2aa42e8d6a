//! PyTorch for taskd: the worker contract of torchrun.

pub mod error;
pub mod venv;
