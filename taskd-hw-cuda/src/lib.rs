//! NVIDIA support for taskd: GPU health, Xid errors, fault detection and CUPTI profiling, in the terms of `taskd-core`.
//!
//! - [`health`]: a trace source over NVML and the kernel log: metrics, Xid errors and lost GPUs.
//! - [`xid`]: a parser for the driver's Xid lines, and NVIDIA's Xid catalog (recommended action per Xid) as data.
//! - [`detect`]: a detector that turns Xid errors and GPU metrics into faults, with the action that NVIDIA recommends.
//! - [`cupti`]: a probe for training processes: kernels, copies, NVTX ranges and NCCL kernels, as records of the job.
//!
//! The crate links no NVIDIA library. It loads libraries at run time; if one is missing, a typed error names the
//! library and what to do.
//!
//! # Test coverage
//! Not yet run on a GPU. Tests run the source over the real `nvml-wrapper` and a stand-in NVML library that declares
//! itself as one. They run the probe in real processes over a stand-in CUPTI library, compare the field offsets of
//! CUPTI's records with bindings generated from NVIDIA's headers, and parse driver lines that were published.

pub mod cupti;
pub mod detect;
pub mod health;
pub mod xid;
