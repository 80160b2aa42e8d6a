//! Voters over real connections, with real stores. Every voter has a runtime of its own, which ends as a process ends.

mod conformance;
mod damage;
mod elections;
mod losses;
mod partitions;
mod reboots;
mod suite;
mod world;
