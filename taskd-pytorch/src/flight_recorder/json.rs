//! The JSON form of a dump, read into the same flat list of values as a pickle.

use super::DumpError;
use super::value::{Id, Value, Values};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Reads a JSON document. Returns its values, and the number of the outermost one.
///
/// The depth of the document is limited by `serde_json` (128).
pub(super) fn read(bytes: &[u8]) -> Result<(Values, Id), DumpError> {
    let mut values = Values::default();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let top = Element(&mut values).deserialize(&mut deserializer);
    let top = top.and_then(|top| deserializer.end().map(|()| top));
    let syntax = |error: serde_json::Error| DumpError::Syntax { at: error.column() as u64, why: error.to_string() };
    Ok((values, top.map_err(syntax)?))
}

/// Reads one value into the list.
struct Element<'a>(&'a mut Values);

impl Element<'_> {
    fn add<E: Error>(self, value: Value) -> Result<Id, E> {
        self.0.add(value).map_err(E::custom)
    }
}

impl<'de> DeserializeSeed<'de> for Element<'_> {
    type Value = Id;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Id, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Element<'_> {
    type Value = Id;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Id, E> {
        self.add(Value::None)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Id, E> {
        self.add(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Id, E> {
        self.add(Value::Int(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Id, E> {
        self.add(i64::try_from(value).map_or(Value::None, Value::Int))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Id, E> {
        self.add(Value::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Id, E> {
        self.add(Value::Text(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Id, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = access.next_element_seed(Element(self.0))? {
            elements.push(element);
        }
        self.add(Value::List(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Id, A::Error> {
        let mut pairs = Vec::new();
        while let Some(name) = access.next_key_seed(Element(self.0))? {
            pairs.push((name, access.next_value_seed(Element(self.0))?));
        }
        self.add(Value::Dict(pairs))
    }
}
