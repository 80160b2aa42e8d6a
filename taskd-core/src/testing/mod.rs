//! For plugin authors: suites that check a plugin against its contract, and doubles of every kind of plugin.
//!
//! Nothing here is for production: it lives behind the feature `test-util`, which belongs into `[dev-dependencies]`.

pub mod conformance;
pub mod doubles;
pub mod mocks;
