//! The journal through its public edge.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod restart;
mod support;
