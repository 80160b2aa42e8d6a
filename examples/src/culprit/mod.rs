//! Finding out who is to blame: one rank of a real training goes wrong, and detectors say which, why and since when.

pub mod account;
pub mod inject;
pub mod trial;
