//! The JSON schemas of taskd's documents and messages, for tools that are not written in Rust (feature `schema`).
//!
//! The schemas describe the types; they do not affect how documents are parsed.
//!
//! `schema/*.json` of `taskd-core` contains the schemas of this version; a test compares the files with
//! the functions' results.

use crate::job::document::Document;
use crate::kernel::JobReport;
use crate::runtime::TimestampedEvent;
use crate::runtime::control::{Request, Response};
use schemars::{Schema, schema_for};

/// Returns the JSON schemas with their file names: jobs, events (one per line), reports, requests and responses of the
/// control socket.
#[must_use]
pub fn all() -> Vec<(&'static str, Schema)> {
    vec![
        ("job-spec", schema_for!(Document)),
        ("timestamped-event", schema_for!(TimestampedEvent)),
        ("job-report", schema_for!(JobReport)),
        ("control-request", schema_for!(Request)),
        ("control-response", schema_for!(Response)),
    ]
}
