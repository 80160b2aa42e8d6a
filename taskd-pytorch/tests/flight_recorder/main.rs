//! Dumps of torch's flight recorder: real ones of small gloo jobs (made by `record.py` with torch 2.15), and such as
//! NCCL writes, built by hand.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests are tests

#[path = "../support/mod.rs"]
mod support;

mod bytes;
mod live;
mod samples;
mod synthetic;
