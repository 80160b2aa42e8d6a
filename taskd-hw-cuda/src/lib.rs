//! NVIDIA for taskd: what only this vendor's systems know, in the terms of `taskd-core`.
//!
//! - [`health`]: a source over NVML and the kernel's log: figures, Xid errors, GPUs that are lost.
//! - [`xid`]: lines of the driver's, and NVIDIA's catalog of what to do about each Xid, as data.
//! - [`detect`]: from both to faults, with what NVIDIA says to do.
//! - [`cupti`]: a probe for training processes: kernels, copies, NVTX ranges and NCCL among the records of the job.
//!
//! Nothing here links a library of the vendor's: what it needs is loaded at run time, and where it is missing a typed error
//! says so, and what to do.
//!
//! # What it was run on
//! On no GPU yet. The source runs over the real `nvml-wrapper` and a library that stands in for NVML and says so; the probe
//! runs in real processes over one that stands in for CUPTI; places in CUPTI's records are compared with bindings that were
//! made of NVIDIA's headers; lines of the driver's are those that were published.

pub mod cupti;
pub mod detect;
pub mod health;
pub mod xid;
