//! The control socket, over real connections to real runtimes.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod abuse;
mod calls;
#[path = "../journal_logs/elsewhere.rs"]
mod elsewhere;
mod full_disk;
mod garbage;
mod place;
mod support;
#[path = "../documents/validator.rs"]
mod validator;
