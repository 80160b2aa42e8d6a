//! JSON schemas of types whose form on the wire is written by hand.

use crate::job::seconds::{FORMS, OptionalSeconds, Seconds};
use crate::job::{GroupId, Name};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use std::borrow::Cow;

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
