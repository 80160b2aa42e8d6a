//! For plugin authors: suites that check a plugin against its contract, doubles of every kind of plugin, timelines of jobs
//! to show to detectors, Python ranks for tests of what runs inside of them, another host for tests of listeners, and the `main` of tests that are their own guards.
//!
//! Nothing here is for production: it lives behind the feature `test-util`, which belongs into `[dev-dependencies]`.

pub mod conformance;
pub mod doubles;
mod guarded;
pub mod mocks;
mod other_host;
pub mod python;
mod timeline;

pub use guarded::guarded_test;
pub use other_host::OtherHost;
pub use timeline::{Moment, Timeline};
