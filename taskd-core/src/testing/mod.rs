//! For plugin authors: suites that check a plugin against its contract, doubles of every kind of plugin, timelines of jobs
//! to show to detectors, and Python ranks for tests of what runs inside of them.
//!
//! Nothing here is for production: it lives behind the feature `test-util`, which belongs into `[dev-dependencies]`.

pub mod conformance;
pub mod doubles;
pub mod mocks;
pub mod python;
mod timeline;

pub use timeline::{Moment, Timeline};
