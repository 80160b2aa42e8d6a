//! Ascend for taskd: what only this vendor's systems know, in the terms of `taskd-core`.
//!
//! - [`ranktable`] reads, checks, writes and patches the files that tell HCCL which device is which rank.
//! - [`mspti`] has ranks record what their devices do, and what of that is missing.
//! - [`mindcluster`] understands jobs that were configured for MindCluster: which strategies they allow, and what ranks are told.
//!
//! Nothing here links a library of the vendor's.

pub mod mindcluster;
pub mod mspti;
pub mod ranktable;
