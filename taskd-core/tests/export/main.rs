//! Records in other programs' files: what these show, and that they are valid whatever was recorded.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod perfetto;
mod perfetto_reader;
mod support;
