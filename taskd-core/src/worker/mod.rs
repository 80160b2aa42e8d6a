//! What lives in a training process: its end of the lifeline, and the library that records for programs in other languages.
//!
//! `abi` is a crate of its own, which the build script builds into that library.
//!
//! It never fails the program and never blocks a training step: whatever it cannot have, it does without.

mod claim;
pub mod library;
#[allow(unsafe_code)] // locks a mutex that lies in shared memory
mod lifeline;
#[allow(unsafe_code)] // maps memory that processes share
pub(crate) mod page;

pub use lifeline::Lifeline;
