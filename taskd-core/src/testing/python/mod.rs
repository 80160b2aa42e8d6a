//! For tests of what runs inside of Python ranks: a process as a launcher would start it, with the helper on its path, and
//! a page that the test reads.
//!
//! There is no launcher and no guard: what stands for them here only writes the page. Everything fails the test in which it
//! happens.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are tests")]

mod pythons;
mod rank;
mod recorded;
mod start;
mod words;

pub use pythons::{system, version};
pub use rank::{BEAT_TIME, Lifeline, Rank, STATE, STEP, STEP_TIME};
pub use recorded::{Record, Recorded, Seen};
pub use start::{finished, text, waited};
pub use words::{evaluated, texts, variants};
