//! For plugin authors: suites that check a plugin against its contract, doubles of every kind of plugin, and timelines of
//! jobs to show to detectors.
//!
//! Nothing here is for production: it lives behind the feature `test-util`, which belongs into `[dev-dependencies]`.

pub mod conformance;
pub mod doubles;
pub mod mocks;
mod timeline;

pub use timeline::{Moment, Timeline};
