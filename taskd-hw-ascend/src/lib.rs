//! Ascend for taskd: what only this vendor's systems know, in the terms of `taskd-core`.
//!
//! - [`ranktable`] reads, checks, writes and patches the files that tell HCCL which device is which rank.
//! - [`mspti`] has ranks record what their devices do, and what of that is missing.
//!
//! Nothing here links a library of the vendor's.

pub mod mspti;
pub mod ranktable;
