//! Test support for plugin authors: suites that check a plugin against its contract, doubles of every kind of plugin,
//! timelines of jobs for detectors, Python ranks for tests of code that runs inside them, a second host for tests of
//! listeners, the `main` of tests that are their own guards, and what a test costs.
//!
//! This module is not for production: it is behind the feature `test-util`, which belongs in `[dev-dependencies]`.

pub mod conformance;
pub mod doubles;
mod guarded;
pub mod mocks;
mod other_host;
pub mod python;
mod timeline;
mod usage;

pub use guarded::guarded_test;
pub use other_host::OtherHost;
pub use timeline::{Moment, Timeline};
pub use usage::{peak_memory_kib, thread_time};
