//! The probe over a stand-in for libmspti.so: binding, protocol, joins, switches and losses, in a real process that records.
//!
//! No NPU is behind any of this, and nothing here says how one behaves.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod bytes;
mod layouts;
mod probe;
mod source;
mod standin_rank;
mod texts;

/// The probe's own sources, those that need no process around them.
#[path = "../../src/mspti/probe"]
#[allow(dead_code, missing_docs, unreachable_pub, missing_debug_implementations)] // not everything is asked of them here
mod own {
    pub(crate) mod cache;
    pub(crate) mod figures;
    pub(crate) mod joins;
    pub(crate) mod records;
    pub(crate) mod texts;
    pub(crate) mod translate;
    pub(crate) use taskd_probe::{record as forms, slots};
}
