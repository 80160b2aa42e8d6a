//! What lives in a training process: its end of the lifeline.
//!
//! It never fails the program and never blocks a training step: whatever it cannot have, it does without.

#[allow(unsafe_code)] // locks a mutex that lies in shared memory
mod lifeline;
#[allow(unsafe_code)] // maps memory that processes share
pub(crate) mod page;

pub use lifeline::Lifeline;
