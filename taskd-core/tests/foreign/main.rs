//! Real processes of another launcher are watched: found, reported with how they ended, judged, and left alone.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod observed;
mod processes;
mod sources;
mod support;
