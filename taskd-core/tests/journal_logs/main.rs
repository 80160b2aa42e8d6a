//! The journal through its public edge.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod disk;
mod edit;
mod elsewhere;
mod foreign;
mod killed;
mod lock;
mod recorded;
mod replay;
mod restart;
mod support;
