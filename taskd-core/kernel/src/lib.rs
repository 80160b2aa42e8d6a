//! The pure layers of taskd: jobs, their state, detectors, recovery strategies and the deterministic kernel.
//!
//! Use this package through `taskd-core`, which re-exports it. Nothing here reads a clock, a file, a socket or a random
//! number, starts a thread or awaits: the package has neither tokio nor rustix nor libc, and lints (`clippy.toml`
//! beside this package's manifest) deny those parts of the standard library. The layers, from the lowest to the
//! highest: `redact`, [`check`], [`job`], [`state`] and [`trace`] (records only), [`detect`], [`recover`], [`kernel`].

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod check;
mod delegate;
pub mod detect;
pub mod job;
pub mod kernel;
pub mod recover;
#[doc(hidden)]
pub mod redact;
pub mod state;
pub mod trace;

/// Re-exports for code that this crate's macros generate in other crates.
#[doc(hidden)]
pub mod __private {
    pub use bytes::Bytes;
}
