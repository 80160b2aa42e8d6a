//! Finds out which rank is to blame: a fault is injected into one rank of a real training, and detectors report the
//! rank, the cause and the onset.

pub mod account;
pub mod inject;
pub mod trial;
