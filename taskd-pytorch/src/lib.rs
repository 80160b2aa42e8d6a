//! PyTorch for taskd: the worker contract of torchrun.
