//! What several example programs share: the account of a run, and the training program of the quick start.

pub mod account;
pub mod trainer;
