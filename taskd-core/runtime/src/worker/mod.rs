//! The part of taskd in a training process: its end of the lifeline, and the recorder library for programs in other
//! languages.
//!
//! `abi` is a crate of its own, which the build script builds into that library.
//!
//! This code never fails the program and never blocks a training step: it does without any resource that is
//! unavailable.

mod claim;
pub mod library;
#[allow(unsafe_code)] // locks a mutex in shared memory
mod lifeline;
#[allow(unsafe_code)] // maps memory that processes share
pub(crate) mod page;

pub use lifeline::Lifeline;
