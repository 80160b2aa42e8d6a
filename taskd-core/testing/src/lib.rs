//! Conformance suites, test doubles, mocks and the seeded simulation of taskd.
//!
//! Use this package through `taskd-core` with its feature `test-util`, which belongs in `[dev-dependencies]`.

pub mod sim;
pub mod testing;

use taskd_runtime::{delegate, detect, job, kernel, launch, recover, state, trace, worker};
