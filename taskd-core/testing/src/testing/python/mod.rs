//! Test support for code that runs inside Python ranks: a process as a launcher would start it, with the helper on its
//! path, and a page that the test reads.
//!
//! There is no launcher and no guard: their replacements here only write the page. Every error fails the test in which
//! it occurs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are tests")]

mod files;
mod pythons;
mod rank;
mod recorded;
mod start;
mod words;

pub use files::python_files_below;
pub use pythons::{system, version};
pub use rank::{BEAT_TIME, Lifeline, Rank, STATE, STEP, STEP_TIME};
pub use recorded::{Record, Recorded, Seen};
pub use start::{finished, text, waited};
pub use words::{evaluated, texts, variants};
