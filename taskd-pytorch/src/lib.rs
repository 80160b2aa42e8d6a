//! PyTorch for taskd: the worker contract of torchrun.

pub mod venv;
