//! Ascend support for taskd: rank tables, mspti profiling and MindCluster job configuration, in the terms of
//! `taskd-core`.
//!
//! - [`ranktable`] reads, checks, writes and patches rank tables, the files that assign ranks to devices for HCCL.
//! - [`mspti`] makes ranks record the activity of their devices (NPUs), and reports how many records are missing.
//! - [`mindcluster`] reads the configuration of MindCluster jobs: allowed strategies, limits and the environment of
//!   ranks.
//! - `profiler` (feature `analysis`) reads the output of Ascend's profilers for the analysis of all ranks.
//!
//! The crate links no library of the vendor.

pub mod mindcluster;
pub mod mspti;
#[cfg(feature = "analysis")]
pub mod profiler;
pub mod ranktable;
