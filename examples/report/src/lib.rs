//! Opens the traces of a run, of whatever kind they are: the part of `cluster_report` that other programs can use.

pub mod kinds;
pub mod launches;
pub mod open;
