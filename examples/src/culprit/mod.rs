//! Finding out which rank is to blame: one rank of a real training goes wrong, and detectors report which, why and
//! since when.

pub mod account;
pub mod inject;
pub mod trial;
