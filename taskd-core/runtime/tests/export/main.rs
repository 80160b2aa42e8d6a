//! Records in other programs' files: what these show, and that they are valid whatever was recorded.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

#[cfg(feature = "parquet")]
mod parquet;
mod perfetto;
mod perfetto_reader;
mod support;
