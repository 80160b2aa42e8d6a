//! The JSON schemas of what taskd reads and writes, for tools that are not written in Rust (feature `schema`).
//!
//! It describes the types as they are and never changes how they are read.
//!
//! The schemas of this version are files, `schema/*.json` beside this crate's sources; a test compares them with what is
//! here.

use crate::job::document::Document;
use crate::job::seconds::{FORMS, OptionalSeconds, Seconds};
use crate::job::{GroupId, Name};
use crate::kernel::JobReport;
use crate::runtime::Announcement;
use crate::runtime::control::{Answer, Request};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema, schema_for};
use std::borrow::Cow;

/// Every document with its file name: jobs, events (one a line), reports, lines of the control socket.
#[must_use]
pub fn all() -> Vec<(&'static str, Schema)> {
    vec![
        ("job-spec", schema_for!(Document)),
        ("announcement", schema_for!(Announcement)),
        ("job-report", schema_for!(JobReport)),
        ("control-request", schema_for!(Request)),
        ("control-answer", schema_for!(Answer)),
    ]
}

macro_rules! schemas {
    ($($type:ty, $name:literal => $schema:tt;)*) => {$(
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )*};
}

schemas! {
    Name, "Name" => { "type": "string", "description": "A short name." };
    GroupId, "GroupId" => {
        "type": "string",
        "pattern": "^.+:[0-9]+$",
        "description": "A communication group: its kind and its index among groups of that kind, such as \"tp:3\"."
    };
    Seconds, "Seconds" => { "type": ["string", "number"], "description": FORMS };
    OptionalSeconds, "OptionalSeconds" => { "type": ["string", "number", "null"], "description": FORMS };
}
